"""The tables: which are missing, making them, dropping them, and their DDL as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from claimjobs.connect import connected, dialect_for
from claimjobs.schema import article_table, owner_table


@dataclass(frozen=True)
class Made:
    """What `make` found, and what it did."""

    created: tuple[str, ...]
    existing: tuple[str, ...]
    dropped: tuple[str, ...] = ()


def tables_for(table: str | sa.Table | type[Any]) -> list[sa.Table]:
    """The tables a queue needs: its jobs (a mere name means the article's columns) and the owners."""
    if isinstance(table, str):
        schema, _, bare = table.rpartition(".")
        jobs = article_table(bare, sa.MetaData(schema=schema or None))
    elif isinstance(table, sa.Table):
        jobs = table
    else:
        jobs = sa.inspect(table).local_table
    return [jobs, owner_table()]


def make(engine: sa.Engine, tables: list[sa.Table], *, recreate: bool = False) -> Made:
    """Make the tables that are missing; with `recreate` drop those that are there first, with all their rows.

    Raises ConnectionFailed, or ServerTooOld before anything is made on a server that could not claim.
    """
    dialect_for(engine)
    with connected(engine) as connection, connection.begin():
        there = [table for table in tables if exists(connection, table)]
        dropped = there if recreate else []
        for table in dropped:
            table.drop(connection)
        created = [table for table in tables if recreate or table not in there]
        for table in created:
            table.create(connection)
    kept = [] if recreate else there
    return Made(created=_names(created), existing=_names(kept), dropped=_names(dropped))


def exists(connection: sa.Connection, table: sa.Table) -> bool:
    """Whether the database has a table of this name."""
    return sa.inspect(connection).has_table(table.name, schema=table.schema)


def ddl(engine: sa.Engine, tables: list[sa.Table]) -> str:
    """The statements that `make` would run on an empty database, for a DBA to read or a migration to hold."""
    statements: list[str] = []
    printer = sa.create_mock_engine(engine.url, lambda sql, *_, **__: statements.append(_text(sql, engine)))
    for table in tables:
        table.create(printer, checkfirst=False)
    return "\n\n".join(statements) + "\n"


def _text(sql: Any, engine: sa.Engine) -> str:
    lines = str(sql.compile(dialect=engine.dialect)).strip().replace("\t", "    ").splitlines()
    return "\n".join(line.rstrip() for line in lines) + ";"


def _names(tables: list[sa.Table]) -> tuple[str, ...]:
    return tuple(table.fullname for table in tables)
