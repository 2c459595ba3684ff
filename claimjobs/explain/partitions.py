"""Partitions by time: whether those of the coming time are there."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from claimjobs.explain.subject import Subject
from claimjobs.findings import Finding
from claimjobs.table.time_partitions import lacking, unit_in_database


def coming_partitions(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Whether the table has a partition for each coming period. None for a table without partitions by time."""
    unit = unit_in_database(connection, subject.table)
    if unit is None:
        return
    missing = lacking(connection, subject.backend.dialect, subject.table)
    if not missing:
        yield Finding("partitions", "ok", f"there is a partition for each coming {unit}")
        return
    says = (
        f"there is no partition for the time from {missing[0].first} on: its jobs go into the partition "
        f"{subject.backend.dialect.partitions.rest!r}, which is never dropped. Run `claimjobs purge` each day"
    )
    yield Finding("partitions", "warning", says)
