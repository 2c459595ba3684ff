"""Postgres 13 and later: what differs from the portable base, and why."""
