"""Upgrade the tables that claimjobs made: numbered steps of SQL (`table_rules.steps`), in their order.

A table's comment says the version of its schema. A step and the comment that names it are one transaction where the
database has transactions of DDL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from claimjobs.database.connect import connected, dialect_for
from claimjobs.database.error_translation import reason
from claimjobs.errors import ClaimjobsError, TableMissing, UnfitTable
from claimjobs.table.create import alter
from claimjobs.table.ddl import table_name, text
from claimjobs.table.definitions import MADE_BY, OWNER_TABLE, SCHEMA, SHARED_TABLES, version_of
from claimjobs.table.reflection import resolve


@dataclass(frozen=True)
class OutdatedTable:
    """A table of an earlier version, and the statements that upgrade it."""

    table: sa.Table
    version: int
    changes: Sequence[Sequence[str]]
    """The statements of each step, and of the comment after it."""


def plan(engine: sa.Engine, names: Sequence[str] = ()) -> list[OutdatedTable]:
    """The tables of earlier versions in the connection's schema; of those of jobs and side-cars only these names, which
    may include a schema.

    Raises ConnectionFailed, TableMissing if claimjobs made no table here, and UnfitTable for a later schema, or for
    the name of a table that claimjobs did not make.
    """
    rules = dialect_for(engine).table_rules
    with connected(engine) as connection:
        made = connection.scalars(rules.named_with_words, {"words": MADE_BY}).all()
        shared = [name for name in made if name in SHARED_TABLES]
        tables = [resolve(connection, name) for name in (*shared, *(names or sorted({*made} - {*shared})))]
    if not tables:
        raise TableMissing(OWNER_TABLE)
    outdated = []
    for table in tables:
        version = version_of(table.comment)
        if version is None:
            raise UnfitTable(
                f"table {table.fullname!r} was not made by claimjobs, which therefore does not alter it: "
                f"see `claimjobs setup-tables --table {table.fullname}` for what it lacks"
            )
        if version > SCHEMA:
            raise UnfitTable(
                f"table {table.fullname!r} has schema {version}, and this version of claimjobs knows schemas up to "
                f"{SCHEMA}: upgrade with the later version of claimjobs"
            )
        if version < SCHEMA:
            kind = table.name if table.name in SHARED_TABLES else "jobs" if "priority" in table.c else "side-car"
            steps = {step.version: step for step in rules.steps if step.version > version and step.kind == kind}
            changes = []
            for number in sorted({*steps, SCHEMA}):
                change = [steps[number].statement.format(table=table_name(engine, table))] if number in steps else []
                table.comment = re.sub(rf"{MADE_BY}, schema \d+", f"{MADE_BY}, schema {number}", table.comment or "")
                changes.append((*change, text(sa.schema.SetTableComment(table), engine).removesuffix(";")))
            outdated.append(OutdatedTable(table, version, changes))
    return outdated


def upgrade(engine: sa.Engine, outdated: Sequence[OutdatedTable]) -> Iterator[OutdatedTable]:
    """Upgrade these tables, and yield each one when it is done.

    A statement waits 2 s for its lock at most: TableInUse. Raises AccessDenied if this user lacks the right;
    ClaimjobsError if the database refuses a statement. The steps before it are done, and stay.
    """
    for one in outdated:
        for statements in one.changes:
            try:
                alter(engine, one.table, statements)
            except sa.exc.DBAPIError as error:
                if error.connection_invalidated:
                    raise
                raise ClaimjobsError(
                    f"table {one.table.fullname!r} is not upgraded, because the database refused "
                    f"`{'; '.join(statements)}` ({reason(error)}): mend that, then run `claimjobs upgrade-tables` again"
                ) from error
        yield one
