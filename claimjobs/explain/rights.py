"""The rights of this user on the tables of a queue. A database checks them when it plans a statement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from claimjobs.explain.sent import as_sent
from claimjobs.explain.subject import Subject
from claimjobs.findings import Finding


def rights(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Which rights are missing on the table of jobs, the side-car and the owners."""
    backend = subject.backend
    tables = dict.fromkeys((subject.table, backend.roles.table, *([backend.owners] if backend.by_lease else [])))
    missing = {table: list(_missing(connection, subject, table)) for table in tables}
    lacks = [f"{', '.join(names)} on {table.fullname}" for table, names in missing.items() if names]
    if not lacks:
        yield Finding("rights", "ok", "this user may read and write the tables of the queue")
        return
    needed = any(names for table, names in missing.items() if names != ["INSERT"] or table is not subject.table)
    says = f"this user lacks {' and '.join(lacks)}: " + ("grant it" if needed else "it can claim, but not enqueue")
    yield Finding("rights", "will not work" if needed else "warning", says)


def _missing(connection: sa.Connection, subject: Subject, table: sa.Table) -> Iterator[str]:
    for right, statement in _each(table).items():
        sql, parameters = as_sent(connection, statement, {})
        try:
            subject.inspection.plan(connection, sql, parameters)
        except sa.exc.DBAPIError as error:
            if subject.backend.dialect.errors.refuses_account(error):
                yield right


def _each(table: sa.Table) -> dict[str, Any]:
    """A statement for each right. None of them reaches a row."""
    column = next(iter(table.primary_key or table.columns))
    none = sa.select(column).where(sa.false())
    return {
        "SELECT": none,
        "INSERT": sa.insert(table).from_select([column.name], none, include_defaults=False),
        "UPDATE": sa.update(table).where(sa.false()).values({column: column}),
        "DELETE": sa.delete(table).where(sa.false()),
    }
