"""Enqueue: insert jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.table.job_state import Column
from claimjobs.table.roles import ColumnRoles


def insert_rows(roles: ColumnRoles) -> sa.Insert:
    """Insert jobs. Run it with a list of mappings with equal keys; other columns have their defaults.

    It is inline: the new key of a single row is not read back.
    """
    return sa.insert(roles.table).inline()


def insert_new(roles: ColumnRoles, dialect: Dialect, unique: Sequence[Column]) -> sa.Insert:
    """Insert jobs, but not those whose values of `unique` the table has; returns the keys of the inserted ones."""
    return dialect.insert_unless_there(roles.table, unique).returning(*roles.key)


def there(roles: ColumnRoles, dialect: Dialect, unique: Sequence[Column]) -> sa.Select[Any]:
    """Which of the `values` of the columns `unique` this transaction sees in the table."""
    return sa.select(*unique).select_from(roles.table).where(dialect.among(unique, "values"))
