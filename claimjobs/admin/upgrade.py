"""Upgrade the tables that claimjobs made: numbered steps of SQL, in their order.

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
from claimjobs.dialects.table_rules import SchemaStep
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
    changes: tuple[tuple[str, ...], ...]
    """Those of each step, and of the comment after it."""


def plan(engine: sa.Engine, names: Sequence[str] = ()) -> list[OutdatedTable]:
    """The tables of earlier versions in the connection's schema; of those of jobs and side-cars only these names, which
    may include a schema.

    Raises ConnectionFailed, TableMissing if claimjobs made no table here, and UnfitTable for a later schema, or for
    the name of a table that claimjobs did not make.
    """
    rules = dialect_for(engine).table_rules
    with connected(engine) as connection:
        made = rules.named_with(connection, MADE_BY)
        shared = [name for name in made if name in SHARED_TABLES]
        chosen = [*shared, *(names or (name for name in made if name not in SHARED_TABLES))]
        if not chosen:
            raise TableMissing(OWNER_TABLE)
        found = [_outdated(engine, resolve(connection, name), rules.steps) for name in chosen]
    return [table for table in found if table.changes]


def upgrade(engine: sa.Engine, names: Sequence[str] = ()) -> Iterator[OutdatedTable]:
    """Upgrade the tables of earlier versions, and yield each one when it is done.

    A statement waits 2 s for its lock at most: TableInUse. Raises what `plan` raises; AccessDenied if this user lacks
    the right; ClaimjobsError if the database refuses a statement. The steps before it are done, and stay.
    """
    for outdated in plan(engine, names):
        for statements in outdated.changes:
            try:
                alter(engine, outdated.table, statements)
            except sa.exc.DBAPIError as error:
                if error.connection_invalidated:
                    raise
                raise ClaimjobsError(
                    f"table {outdated.table.fullname!r} is not upgraded, because the database refused "
                    f"`{'; '.join(statements)}` ({reason(error)}): mend that, then run `claimjobs upgrade-tables` again"
                ) from error
        yield outdated


def _outdated(engine: sa.Engine, table: sa.Table, steps: Sequence[SchemaStep]) -> OutdatedTable:
    version = version_of(table.comment)
    if version is None:
        raise UnfitTable(
            f"table {table.fullname!r} was not made by claimjobs, which therefore does not alter it: "
            f"see `claimjobs setup-tables --table {table.fullname}` for what it lacks"
        )
    if version > SCHEMA:
        raise UnfitTable(
            f"table {table.fullname!r} has schema {version}, and this version of claimjobs knows schemas up to {SCHEMA}"
            ": upgrade with the later version of claimjobs"
        )
    name, kind = table_name(engine, table), _kind(table)
    needed = [step for step in steps if step.version > version and step.kind == kind]
    changes: list[tuple[str, ...]] = [
        (step.statement.format(table=name), _comment(engine, table, step.version)) for step in needed
    ]
    if max([version, *(step.version for step in needed)]) < SCHEMA:
        changes.append((_comment(engine, table, SCHEMA),))
    return OutdatedTable(table, version, tuple(changes))


def _kind(table: sa.Table) -> str:
    """Which steps are for this table: those of its name, of tables of jobs, or of side-cars, which have no priority."""
    if table.name in SHARED_TABLES:
        return table.name
    return "jobs" if "priority" in table.c else "side-car"


def _comment(engine: sa.Engine, table: sa.Table, version: int) -> str:
    ours = re.sub(rf"{MADE_BY}, schema \d+", f"{MADE_BY}, schema {version}", table.comment or "")
    described = sa.Table(table.name, sa.MetaData(schema=table.schema), comment=ours)
    return text(sa.schema.SetTableComment(described), engine).removesuffix(";")
