"""The rights of this user on the tables of a queue. A database checks them when it plans a statement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from claimjobs.explain.sent import as_sent
from claimjobs.explain.subject import NOBODY, Subject
from claimjobs.findings import Finding
from claimjobs.table.definitions import BATCHES_TABLE
from claimjobs.table.grants import Columns, of_consumer


def rights(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Which rights of a consumer are missing on the tables of the queue, as `setup-tables --grants` prints them."""
    needed = of_consumer(subject.backend, deletes=_deletes(subject))
    if subject.backend.source.batches is None:
        # Without it a consumer works, but does not notice those that record their claims per batch.
        needed = {table: found for table, found in needed.items() if table.name != BATCHES_TABLE}
    missing = {
        table: [
            right for right, columns in found.items() if _lacks(connection, subject, _sample(table, right, columns))
        ]
        for table, found in needed.items()
    }
    lacks = [f"{', '.join(found)} on {table.fullname}" for table, found in missing.items() if found]
    if lacks:
        says = f"this user lacks {' and '.join(lacks)}, which a consumer needs"
        step = "explain with a consumer's account, or grant what `claimjobs setup-tables --grants` prints for one"
        yield Finding("rights", "will not work", f"{says}: {step}")
    elif _lacks(connection, subject, _sample(subject.table, "INSERT", ())):
        yield Finding("rights", "ok", "this user may claim; it has no INSERT on the whole table of jobs, to enqueue")
    else:
        yield Finding("rights", "ok", "this user may read and write the tables of the queue as it must")


def _deletes(subject: Subject) -> bool:
    """Whether done jobs are deleted."""
    settles = [phase.statement for phase in subject.settler.phases(NOBODY, [])]
    return any(isinstance(statement, sa.Delete) and statement.table is subject.table for statement in settles)


def _lacks(connection: sa.Connection, subject: Subject, statement: Any) -> bool:
    sql, parameters = as_sent(connection, statement, {})
    try:
        with connection.begin_nested():  # a refusal ends no more than this
            subject.inspection.plan(connection, sql, parameters)
    except sa.exc.DBAPIError as error:  # or a refusal of the statement itself, after the rights were checked
        return subject.backend.dialect.errors.refuses_account(error)
    return False


def _sample(table: sa.Table, right: str, columns: Columns) -> Any:
    """A statement that needs a right on these columns, and reaches no row."""
    written = [column for column in table.columns if column.name in columns] or list(table.primary_key)[:1]
    written = written or list(table.columns)[:1]
    none = sa.select(*written).where(sa.false())
    samples = {
        "SELECT": none,
        "INSERT": sa.insert(table).from_select([column.name for column in written], none, include_defaults=False),
        "UPDATE": sa.update(table).where(sa.false()).values({column: column for column in written}),
        "DELETE": sa.delete(table).where(sa.false()),
    }
    return samples[right]
