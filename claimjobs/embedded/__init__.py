"""The Postgres of whoever has no server."""
