"""Enqueue: jobs come into the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.table.job_state import Column
from claimjobs.table.roles import Roles


def produce(roles: Roles) -> sa.Insert:
    """Insert jobs; run with a list of mappings of one shape. What a mapping leaves out has its default.

    Inline: of a single row, too, nobody asks which key it got.
    """
    return sa.insert(roles.table).inline()


def produce_new(roles: Roles, dialect: Dialect, unique: Sequence[Column]) -> sa.Insert:
    """Insert jobs but for those whose values of `unique` are there; returns the keys of those that came in."""
    return dialect.insert_unless_there(roles.table, unique).returning(*roles.key)


def there(roles: Roles, dialect: Dialect, unique: Sequence[Column]) -> sa.Select[Any]:
    """Which of the `values` of the columns `unique` are in the table, as far as this transaction sees."""
    return sa.select(*unique).select_from(roles.table).where(dialect.among(unique, "values"))
