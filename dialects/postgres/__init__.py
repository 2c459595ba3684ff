"""Postgres 13 and later: what differs from the portable base, and why."""

from __future__ import annotations

from claimjobs.dialects.postgres.dialect import Postgres

__all__ = ["Postgres"]
