"""DDL as text: statements that make tables and add columns and indexes, for one kind of database."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import dialect_named_by
from claimjobs.table.definitions import COMMENT, MADE_BY, SHARED_TABLES
from claimjobs.table.names import check_names


def ddl(engine: sa.Engine, tables: list[sa.Table], *, recreate: bool = False) -> str:
    """The statements that `make` would run on an empty database, for a DBA or a migration.

    With `recreate` the jobs are dropped first. It needs no connection. Raises UnfitTable for a name that a table or its
    parts cannot have.
    """
    check_names(dialect_named_by(engine), tables)
    statements: list[str] = []
    printer = sa.create_mock_engine(engine.url, lambda sql, *_, **__: statements.append(text(sql, engine)))
    for table in tables:
        if recreate and table.name not in SHARED_TABLES:
            table.drop(printer, checkfirst=False)
        table.create(printer, checkfirst=False)
        if MADE_BY not in (table.comment or ""):
            statements.append(text(table_comment(table), engine))
    return "\n\n".join(_indexes_sorted(statements)) + "\n"


def table_comment(table: sa.Table) -> sa.schema.SetTableComment:
    """The statement that writes into a table's comment that claimjobs made it, and its schema."""
    comment = ", ".join(filter(None, (table.comment, COMMENT)))
    ours = comment if MADE_BY not in (table.comment or "") else table.comment
    return sa.schema.SetTableComment(sa.Table(table.name, sa.MetaData(schema=table.schema), comment=ours))


def _indexes_sorted(statements: list[str]) -> list[str]:
    """Sort each table's indexes by name: SQLAlchemy keeps them in a set, whose order differs at every run."""
    ordered: list[str] = []
    for is_index, alike in groupby(statements, lambda text: text.startswith("CREATE INDEX")):
        run = list(alike)
        ordered += sorted(run) if is_index else run
    return ordered


def text(sql: Any, engine: sa.Engine | sa.Connection) -> str:
    """One statement as text that can be run."""
    lines = str(sql.compile(dialect=engine.dialect)).strip().replace("\t", "    ").splitlines()
    return "\n".join(line.rstrip() for line in lines) + ";"


def add_column(engine: sa.Engine | sa.Connection, table: sa.Table, column: sa.Column[Any]) -> str:
    """The statement that adds a column, with a default or NULL for existing rows."""
    filled: Any = column.server_default.arg if isinstance(column.server_default, sa.DefaultClause) else None
    # An enum may be a separate type, which would have to be made first.
    type_ = sa.String(column.type.length) if isinstance(column.type, sa.Enum) else column.type
    added = sa.Column(column.name, type_, nullable=column.nullable, server_default=filled, comment=column.comment)
    sa.Table(table.name, sa.MetaData(), added)
    name = engine.dialect.identifier_preparer.format_table(table)
    return f"ALTER TABLE {name} ADD COLUMN {sa.schema.CreateColumn(added).compile(dialect=engine.dialect)};"


def add_value(engine: sa.Engine, column: sa.Column[Any], value: str) -> str:
    """The statement that adds a value to an enum: a type with a name, or the column's own type."""
    kind: Any = column.type
    if kind.name:
        preparer: Any = engine.dialect.identifier_preparer
        return f"ALTER TYPE {preparer.format_type(kind)} ADD VALUE '{value}';"
    default: Any = column.server_default.arg if isinstance(column.server_default, sa.DefaultClause) else None
    wider = sa.Column(column.name, type(kind)(*kind.enums, value), nullable=column.nullable, server_default=default)
    sa.Table(column.table.name, sa.MetaData(), wider)
    name = engine.dialect.identifier_preparer.format_table(column.table)
    return f"ALTER TABLE {name} MODIFY COLUMN {sa.schema.CreateColumn(wider).compile(dialect=engine.dialect)};"
