"""Partitions by time: whether those of the coming time are there."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from claimjobs.explain.subject import Subject
from claimjobs.findings import Finding
from claimjobs.table.time_partitions import find_missing, unit_in_database, why_taken


def coming_partitions(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Whether the table has a partition for each coming period. None for a table without partitions by time."""
    unit = unit_in_database(connection, subject.table)
    if unit is None:
        return
    dialect, table = subject.backend.dialect, subject.table
    free, taken, rest_rows = find_missing(connection, dialect, table)
    is_next = len(free) == 1 and rest_rows is not None  # the next `purge`, which runs each day, makes it
    if not taken and (not free or is_next):
        yield Finding("partitions", "ok", f"there is a partition for each coming {unit}")
    if taken:
        yield Finding("partitions", "warning", why_taken(dialect, table, taken))
    if free and not is_next:
        rest = dialect.partitions.shown(table, dialect.partitions.rest)
        what = f"its jobs go into the partition {rest}, which is never dropped"
        if rest_rows is None:
            what = f"its jobs cannot be inserted, because the partition {rest} is gone, too"
        says = f"there is no partition for the time from {free[0].first} on: {what}. Run `claimjobs purge` each day"
        yield Finding("partitions", "warning", says)
