"""Versions of the tables that claimjobs makes: which tables are outdated, and the changes that upgrade them.

The changes are computed from what the database has, not from the version in a comment, so that an upgrade that was
interrupted can run again. The comment with the version is the last change of a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.dialects.online_ddl import Change
from claimjobs.errors import TableMissing, TablesNewer, UnfitTable
from claimjobs.table.claim_index import holds, indexes_of
from claimjobs.table.ddl import add_column, ddl, text
from claimjobs.table.definitions import (
    COMMENT,
    LEDGER_TABLE,
    MADE_BY,
    OWN_TABLES,
    OWNER_TABLE,
    SCHEMA,
    batches_table,
    job_table,
    ledger_table,
    queues_table,
    shared_tables,
)
from claimjobs.table.reflection import resolve

_VERSION: Final = re.compile(rf"{MADE_BY}(?:, schema (\d+))?")
_OF_JOBS: Final = {"status", "priority", "run_at", "attempts"}
"""Columns of each table of jobs. A side-car has no priority."""


@dataclass(frozen=True)
class OutdatedTable:
    """A table that is outdated, and the changes that upgrade it."""

    table: str
    version: int
    """The version of its schema; 0: it is missing."""
    changes: tuple[Change, ...]


def outdated(connection: sa.Connection, dialect: Dialect, names: Sequence[str] = ()) -> list[OutdatedTable]:
    """The outdated tables, those that all queues share first.

    `names`: of the tables of jobs, only these, which may include a schema. None: all of the connection's schema that
    claimjobs made. Raises TableMissing if there is nothing to upgrade, TablesNewer, and UnfitTable for a name of a
    table that claimjobs did not make.
    """
    there = sa.inspect(connection)
    found = names or _made_by_us(connection, dialect)
    shared = [table for table in (*shared_tables(), ledger_table()) if there.has_table(table.name)]
    if not found and not shared:
        raise TableMissing(OWNER_TABLE)
    described = [*shared, *(_described(connection, name) for name in found)]
    made = [_upgrade(connection, dialect, table) for table in described]
    if {table.name for table in described} - {LEDGER_TABLE}:
        missing = [table for table in (queues_table(), batches_table()) if not there.has_table(table.name)]
        made[:0] = [_creation(connection, table) for table in missing]
    return [upgrade for upgrade in made if upgrade.changes]


def version_of(comment: str | None) -> int | None:
    """The version of the schema that a table's comment names; None: claimjobs did not make the table."""
    found = _VERSION.search(comment or "")
    return None if found is None else int(found[1] or 1)


def _made_by_us(connection: sa.Connection, dialect: Dialect) -> list[str]:
    return [name for name in dialect.online_ddl.named_with(connection, MADE_BY) if name not in OWN_TABLES]


def _described(connection: sa.Connection, name: str) -> sa.Table:
    """A table of jobs as claimjobs makes it today, or a side-car as it is. Raises TableMissing or UnfitTable."""
    there = resolve(connection, name)
    if version_of(there.comment) is None:
        raise UnfitTable(
            f"table {name!r} was not made by claimjobs, which therefore does not alter it: "
            f"see `claimjobs setup-tables --table {name}` for what it lacks"
        )
    if not set(there.columns.keys()) >= _OF_JOBS:
        return there
    key = [sa.Column(column.name, column.type, primary_key=True) for column in there.primary_key]
    return job_table(there.name, sa.MetaData(schema=there.schema), *key)


# --- the changes of a table ----------------------------------------------------------------------------------


def _creation(connection: sa.Connection, table: sa.Table) -> OutdatedTable:
    statements = ddl(connection.engine, [table]).strip().removesuffix(";").split(";\n\n")
    changes = [Change(statement, "nothing: the table is new") for statement in statements]
    return OutdatedTable(table.fullname, 0, _printed(changes))


def _upgrade(connection: sa.Connection, dialect: Dialect, table: sa.Table) -> OutdatedTable:
    inspector = sa.inspect(connection)
    comment = dialect.table_rules.comment(inspector, table)
    version = version_of(comment) or 1
    if version > SCHEMA:
        raise TablesNewer(table.fullname, version, SCHEMA)
    there = {column["name"]: column for column in inspector.get_columns(table.name, schema=table.schema)}
    changes = [*_column_changes(connection, dialect, table, there), *_index_changes(connection, dialect, table)]
    if changes or version < SCHEMA:
        changes.append(_version_change(connection, dialect, table, comment))
    return OutdatedTable(table.fullname, version, _printed(changes))


def _column_changes(
    connection: sa.Connection, dialect: Dialect, table: sa.Table, there: Mapping[str, Any]
) -> Iterator[Change]:
    name = connection.dialect.identifier_preparer.format_table(table)
    for column in table.columns:
        computes = column.server_default is not None and not isinstance(_default(column), str)
        if column.name not in there:
            added = add_column(connection, table, _filled(column)).removesuffix(";")
            yield dialect.online_ddl.alter(added, computes=computes)
        if _has_excess_default(column, there.get(column.name, {"default": "0"})):
            quoted = connection.dialect.identifier_preparer.quote(column.name)
            yield dialect.online_ddl.alter(f"ALTER TABLE {name} ALTER COLUMN {quoted} DROP DEFAULT")
        if not connection.dialect.inline_comments and column.comment != there.get(column.name, {}).get("comment"):
            yield dialect.online_ddl.comment(_statement(sa.schema.SetColumnComment(column), connection))


def _default(column: sa.Column[Any]) -> Any:
    return column.server_default.arg if isinstance(column.server_default, sa.DefaultClause) else None


def _filled(column: sa.Column[Any]) -> sa.Column[Any]:
    """The column, with a default of 0 for existing rows if it needs a value.

    The only such column is an owner's lease. An owner of a version without leases writes no heartbeats: with a lease
    of 0 it is dead, and its jobs are reclaimed.
    """
    if not _needs_value(column):
        return column
    return sa.Column(column.name, column.type, nullable=False, server_default="0", comment=column.comment)


def _needs_value(column: sa.Column[Any]) -> bool:
    return not column.nullable and not column.primary_key and column.server_default is None


def _has_excess_default(column: sa.Column[Any], there: Mapping[str, Any]) -> bool:
    return _needs_value(column) and there["default"] is not None


def _index_changes(connection: sa.Connection, dialect: Dialect, table: sa.Table) -> Iterator[Change]:
    """The changes for the indexes of a table, such as the claim index of a table of jobs."""
    invalid = dialect.online_ddl.invalid_indexes(connection, table)
    found = indexes_of(connection, table)
    valid = [index for index in found if index["name"] not in invalid]
    there = {index["name"] for index in found} | set(invalid)
    for wanted in table.indexes:
        fits = [index["name"] for index in valid if holds([index], wanted.columns.keys())]
        yield from dialect.online_ddl.index_changes(wanted, fits, there, dialect=connection.dialect)


def _version_change(connection: sa.Connection, dialect: Dialect, table: sa.Table, comment: str | None) -> Change:
    ours = (
        _VERSION.sub(COMMENT, comment)
        if comment and MADE_BY in comment
        else ", ".join(filter(None, (comment, COMMENT)))
    )
    described = sa.Table(table.name, sa.MetaData(schema=table.schema), comment=ours)
    return dialect.online_ddl.comment(_statement(sa.schema.SetTableComment(described), connection))


def _statement(statement: sa.schema.ExecutableDDLElement, connection: sa.Connection) -> str:
    return text(statement, connection.engine).removesuffix(";")


def _printed(changes: Iterable[Change]) -> tuple[Change, ...]:
    """The changes as they are sent without parameters: SQLAlchemy doubles a percent sign for drivers that use it."""
    return tuple(replace(change, statement=change.statement.replace("%%", "%")) for change in changes)
