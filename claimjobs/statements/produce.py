"""Enqueue: jobs come into the table."""

from __future__ import annotations

import sqlalchemy as sa

from claimjobs.roles import Roles


def produce(roles: Roles) -> sa.Insert:
    """Insert jobs; run with a list of mappings of one shape. What a mapping leaves out has its default."""
    return sa.insert(roles.table)
