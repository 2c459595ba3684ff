"""Durability: whether the tables of the queue keep their rows when the server crashes."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from claimjobs.explain.subject import Subject
from claimjobs.findings import Finding


def durability(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """The tables that the server empties after a crash. None if it empties none of them."""
    backend = subject.backend
    tables = [backend.source.table, backend.roles.table]
    if backend.by_lease:
        tables.append(backend.owners)
    if backend.roles.batches is not None:
        tables.append(backend.roles.batches.table)
    for table in dict.fromkeys(tables):
        fix = tuple(backend.dialect.table_rules.emptied_by_crash(connection, table))
        if fix:
            says = f"the server writes no log for {table.fullname}, and empties it after a crash: let it write one"
            yield Finding("durability", "warning", says, fix)
