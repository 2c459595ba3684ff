"""The rights of this user on the tables of a queue. A database checks them when it plans a statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.explain.sent import as_sent
from claimjobs.explain.subject import NOBODY, Subject
from claimjobs.findings import Finding

WRITTEN: Final = ("status", "owner_id", "owner_date", "run_at", "attempts", "last_error", "suspect")
"""The roles whose columns are written after a job was enqueued."""
ALL: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")


def rights(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Which rights of a consumer are missing on the tables of the queue."""
    missing: dict[sa.Table, list[str]] = {}
    for table, right, statement in _needed(subject):
        if _lacks(connection, subject, statement):
            missing.setdefault(table, []).append(right)
    lacks = [f"{', '.join(found)} on {table.fullname}" for table, found in missing.items()]
    if lacks:
        says = f"this user lacks {' and '.join(lacks)}, which a consumer needs"
        step = "explain with a consumer's account, or grant what docs/security.md has for one"
        yield Finding("rights", "will not work", f"{says}: {step}")
    elif _lacks(connection, subject, _sample(subject.table, "INSERT")):
        yield Finding("rights", "ok", "this user may claim; it has no INSERT on the whole table of jobs, to enqueue")
    else:
        yield Finding("rights", "ok", "this user may read and write the tables of the queue as it must")


def _needed(subject: Subject) -> Iterator[tuple[sa.Table, str, Any]]:
    """The rights of a consumer, each with a statement that needs it, and reaches no row."""
    backend, jobs, claims = subject.backend, subject.backend.source.table, subject.backend.roles.table
    columns = [getattr(backend.roles, role) for role in WRITTEN]
    written = [column for column in columns if column is not None and column.table is jobs]
    rights: dict[sa.Table, Sequence[str]] = {jobs: ["SELECT", *(["UPDATE"] if written else [])]}
    if claims is not jobs:
        rights[claims] = ("SELECT", "INSERT", "UPDATE")
    if backend.by_lease:
        rights[backend.owners] = ALL
    rights[backend.queues] = ("SELECT",)
    if backend.roles.batches is not None:
        rights[backend.batches] = ALL
    if _deletes(subject):
        rights = {table: (*found, "DELETE") if table in (jobs, claims) else found for table, found in rights.items()}
    for table, found in rights.items():
        yield from ((table, right, _sample(table, right, written if table is jobs else ())) for right in found)
    if not written:
        yield jobs, "UPDATE (to lock rows)", _nothing(jobs).with_for_update()


def _deletes(subject: Subject) -> bool:
    """Whether done jobs are deleted."""
    settles = [phase.statement for phase in subject.settler.phases(NOBODY, [])]
    return any(isinstance(statement, sa.Delete) and statement.table is subject.table for statement in settles)


def _lacks(connection: sa.Connection, subject: Subject, statement: Any) -> bool:
    sql, parameters = as_sent(connection, statement, {})
    try:
        with connection.begin_nested():  # a refusal ends no more than this
            if isinstance(statement, sa.Select):  # some databases check the right to lock only when it runs
                connection.execute(statement).close()
            else:
                subject.inspection.plan(connection, sql, parameters)
    except sa.exc.DBAPIError as error:  # or a refusal of the statement itself, after the rights were checked
        return subject.backend.dialect.errors.refuses_account(error)
    return False


def _nothing(table: sa.Table) -> sa.Select[Any]:
    first = next(iter([*table.primary_key, *table.columns]))
    return sa.select(first).where(sa.false())


def _sample(table: sa.Table, right: str, columns: Sequence[sa.Column[Any]] = ()) -> Any:
    """A statement that needs a right, for UPDATE on these columns, and reaches no row."""
    written = list(columns) or [*table.primary_key, *table.columns][:1]
    samples = {
        "SELECT": _nothing(table),
        "INSERT": sa.insert(table).from_select(
            [column.name for column in written], sa.select(*written).where(sa.false()), include_defaults=False
        ),
        "UPDATE": sa.update(table).where(sa.false()).values({column: column for column in written}),
        "DELETE": sa.delete(table).where(sa.false()),
    }
    return samples[right]
