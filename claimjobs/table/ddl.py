"""DDL as text, for one kind of database: tables, columns, the wake trigger; and the names that a database can have."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import quoted_name

from claimjobs.database.error_translation import reason
from claimjobs.dialects import Dialect, dialect_named_by
from claimjobs.dialects.inspection import TableRules
from claimjobs.errors import BadArgument, UnfitTable
from claimjobs.options import SIDE_CAR
from claimjobs.table.definitions import COMMENT, MADE_BY, OWNER_TABLE, SHARED_TABLES

Bind = sa.Engine | sa.Connection


def ddl(engine: sa.Engine, tables: list[sa.Table], *, recreate: bool = False) -> str:
    """The statements that `make` would run on an empty database, as one text for a DBA or a migration: see
    `ddl_statements`.
    """
    return "\n\n".join(ddl_statements(engine, tables, recreate=recreate)) + "\n"


def ddl_statements(
    engine: sa.Engine, tables: list[sa.Table], *, recreate: bool = False, marked: bool = True
) -> list[str]:
    """The statements that `make` would run on an empty database.

    With `recreate` the jobs are dropped first. `marked`: the comment of each table says that claimjobs made it. It
    needs no connection. Raises UnfitTable for a name that a table or its parts cannot have.
    """
    dialect = dialect_named_by(engine)
    check_names(dialect, tables)
    statements: list[str] = []
    bind: Any = engine
    printer = sa.create_mock_engine(engine.url, lambda sql, *_, **__: statements.append(text(sql, bind)))
    if engine.dialect.server_version_info is None:  # SQLAlchemy 2.0 writes a default without parentheses then
        bind, printer.dialect.server_version_info = printer, dialect.oldest
    for table in tables:
        if recreate and table.name not in SHARED_TABLES:
            table.drop(printer, checkfirst=False)
        table.create(printer, checkfirst=False)
        if marked and MADE_BY not in (table.comment or ""):
            statements.append(text(table_comment(table), bind))
    runs = groupby(statements, lambda statement: statement.startswith("CREATE INDEX"))
    # SQLAlchemy keeps the indexes of a table in a set, whose order differs at every run.
    return [one for is_index, run in runs for one in (sorted(run) if is_index else run)]


def text(sql: Any, bind: Bind) -> str:
    """One statement as text that can be run."""
    lines = undoubled(str(sql.compile(dialect=bind.dialect)), bind.dialect).strip().replace("\t", "    ").splitlines()
    return "\n".join(line.rstrip() for line in lines) + ";"


def undoubled(sql: str, dialect: sa.Dialect) -> str:
    """What SQLAlchemy has written, as the database reads it: for many drivers each percent sign is doubled, because
    they replace parameters by it.
    """
    doubles = "%%" in dialect.identifier_preparer.quote_identifier("%")
    return sql.replace("%%", "%") if doubles else sql


def table_comment(table: sa.Table) -> sa.schema.SetTableComment:
    """The statement that writes into a table's comment that claimjobs made it, and its schema."""
    said = table.comment or ""
    comment = said if MADE_BY in said else ", ".join(filter(None, (said, COMMENT)))
    return sa.schema.SetTableComment(sa.Table(table.name, sa.MetaData(schema=table.schema), comment=comment))


def add_column(connection: sa.Connection, table: sa.Table, column: sa.Column[Any]) -> list[str]:
    """The statements that add a column, with a default or NULL for existing rows."""
    # An enum may be a separate type, which would have to be made first.
    type_ = sa.String(column.type.length) if isinstance(column.type, sa.Enum) else column.type
    name = undoubled(connection.dialect.identifier_preparer.quote(column.name), connection.dialect)
    written = _column(connection, table, column, type_)
    return dialect_named_by(connection).table_rules.add_column(connection, table_name(connection, table), name, written)


def add_value(bind: Bind, column: sa.Column[Any], value: str) -> str:
    """The statement that adds a value to an enum: a type with a name, or the column's own type."""
    kind: Any = column.type
    if kind.name:
        preparer: Any = bind.dialect.identifier_preparer
        return f"ALTER TYPE {undoubled(preparer.format_type(kind), bind.dialect)} ADD VALUE '{value}';"
    wider = _column(bind, column.table, column, type(kind)(*kind.enums, value))
    return f"ALTER TABLE {table_name(bind, column.table)} MODIFY COLUMN {wider};"


def _column(bind: Bind, table: Any, column: sa.Column[Any], type_: sa.types.TypeEngine[Any]) -> str:
    """A column with this type, as in a CREATE TABLE."""
    default: Any = column.server_default.arg if isinstance(column.server_default, sa.DefaultClause) else None
    same = sa.Column(column.name, type_, nullable=column.nullable, server_default=default, comment=column.comment)
    sa.Table(table.name, sa.MetaData(), same)
    return undoubled(str(sa.schema.CreateColumn(same).compile(dialect=bind.dialect)), bind.dialect)


def table_name(bind: Bind, table: Any) -> str:
    """The name of a table, with its schema, as a statement writes it."""
    return undoubled(bind.dialect.identifier_preparer.format_table(table), bind.dialect)


# --- the trigger that wakes idle consumers at each INSERT of any program -------------------------------------


def trigger_of(bind: Bind) -> TableRules:
    """What makes the trigger of this database. Raises BadArgument, with the reason, if it has none. Connects not."""
    dialect = dialect_named_by(bind)
    if dialect.no_wake_trigger is not None:
        raise BadArgument(
            f"{dialect.title} can have no trigger that wakes consumers, because {dialect.no_wake_trigger}; there is "
            "none to make or to drop: change the producers to `enqueue`, which wakes consumers; other rows are found "
            "some 5 s later"
        )
    return dialect.table_rules


def make_statement(bind: Bind, table: sa.Table, claims: sa.Table) -> str:
    """The statement that makes the trigger. `claims`: the table with the claims; that of the owners is beside it."""
    return trigger_of(bind).make_trigger(table_name(bind, table), table_name(bind, claims), OWNER_TABLE)


def drop_statement(bind: Bind, table: sa.Table) -> str:
    """The statement that drops it."""
    return trigger_of(bind).drop_trigger(table_name(bind, table))


def has_wake_trigger(connection: sa.Connection, table: sa.Table) -> bool:
    """Whether the table has it."""
    dialect = dialect_named_by(connection)
    if dialect.no_wake_trigger is not None:  # then its rules can ask for none
        return False
    return bool(connection.scalar(sa.select(dialect.table_rules.has_trigger(table_name(connection, table)))))


def check_names(dialect: Dialect, tables: list[sa.Table]) -> None:
    """Check the names of tables and their parts. Raises UnfitTable for one that some databases change or cut, or refuse
    after the table is made.
    """
    for table in tables:
        for name in _names(table):
            if flaw := dialect.table_rules.unnameable(name):
                raise bad_name(dialect, table, ValueError(f"{name!r}: {flaw}"))


def bad_name(dialect: Dialect, table: sa.Table, error: Exception) -> UnfitTable:
    """The error for a table that cannot be made because of its name."""
    rules = dialect.table_rules
    added = [name.removeprefix(table.name) for name in _names(table) if name.startswith(table.name)]
    longest = rules.longest - max(map(rules.length, added))
    hint = f", of at most {longest} {rules.counted_in}" if rules.length(table.name) > longest else ""
    return UnfitTable(f"table {table.fullname!r} cannot be made ({reason(error)}): choose another name for it{hint}")


def _names(table: sa.Table) -> Iterator[str]:
    """The names of a table and of its parts. SQLAlchemy shortens those that it generates: they have another class."""
    types = [column.type for column in table.columns if isinstance(column.type, sa.Enum)]
    parts: list[Any] = [table, *table.indexes, *table.constraints, *types]
    yield from (str(part.name) for part in parts if type(part.name) in (str, quoted_name))


def side_car_name(source: str, side_car: str | bool) -> str:
    """The chosen name of the side-car, or its default for this table. Both include the schema, if there is one.

    Raises UnfitTable for the name of the table itself in another schema: SQLAlchemy gives it an alias in subqueries.
    """
    if isinstance(side_car, str) and (bare := side_car.rpartition(".")[2]) == source.rpartition(".")[2]:
        raise UnfitTable(
            f"table {source!r} cannot have a side-car {side_car!r}: it has the name of the table; choose another one, "
            f"such as {bare + SIDE_CAR!r}"
        )
    return side_car if isinstance(side_car, str) else f"{source}{SIDE_CAR}"
