"""The rights of this user on the tables of a queue. A database checks them when it plans a statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.explain.sent import as_sent
from claimjobs.explain.subject import NOBODY, Subject
from claimjobs.findings import Finding
from claimjobs.table.definitions import queues_table

ALL: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")


def rights(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Which rights are missing on the tables of the queue."""
    missing = {
        table: [right for right in needed if _lacks(connection, subject, _each(table)[right])]
        for table, needed in _needed(subject).items()
    }
    lacks = [f"{', '.join(found)} on {table.fullname}" for table, found in missing.items() if found]
    if lacks:
        yield Finding("rights", "will not work", f"this user lacks {' and '.join(lacks)}: grant it")
    elif _lacks(connection, subject, _each(subject.table)["INSERT"]):
        says = f"this user lacks INSERT on {subject.table.fullname}: it can claim, but not enqueue"
        yield Finding("rights", "warning", says)
    else:
        yield Finding("rights", "ok", "this user may read and write the tables of the queue as it must")


def _needed(subject: Subject) -> dict[sa.Table, Sequence[str]]:
    """The rights that a consumer needs. It inserts no jobs; `DELETE` only if done jobs are deleted."""
    backend, table = subject.backend, subject.table
    settles = [phase.statement for phase in subject.settler.phases(NOBODY, [])]
    deletes = any(isinstance(statement, sa.Delete) and statement.table is table for statement in settles)
    writes = backend.user_table is None or backend.lock_source
    needed: dict[sa.Table, Sequence[str]] = {
        table: ("SELECT", *(["UPDATE"] if writes else []), *(["DELETE"] if deletes else []))
    }
    if backend.user_table is not None:
        needed[backend.roles.table] = ALL
    if backend.by_lease:
        needed |= {backend.owners: ALL, queues_table(): ("SELECT",)}
    return needed


def _lacks(connection: sa.Connection, subject: Subject, statement: Any) -> bool:
    sql, parameters = as_sent(connection, statement, {})
    try:
        subject.inspection.plan(connection, sql, parameters)
    except sa.exc.DBAPIError as error:  # or a refusal of the statement itself, after the rights were checked
        return subject.backend.dialect.errors.refuses_account(error)
    return False


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
