"""A Postgres for users who have no server."""
