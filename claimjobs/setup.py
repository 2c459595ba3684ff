"""The tables: which are missing, making them, dropping them, and their DDL as text."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.backend import look_at
from claimjobs.connect import connected, dialect_for
from claimjobs.dialects import Dialect
from claimjobs.errors import AccessDenied, ColumnMissing, OwnersOutdated, UnfitTable
from claimjobs.roles import OPTIONAL, REQUIRED, Roles
from claimjobs.schema import OWNER_TABLE, article_table, owner_table
from claimjobs.statements import count
from claimjobs.translate import reason

TableLike = str | sa.Table | type[Any]

WITHOUT: Final = {
    "owner_date": "nothing tells when a job was claimed",
    "priority": "jobs have no priorities",
    "run_at": "no job can be delayed or retried",
    "attempts": "no job can fail",
    "last_error": "errors are not kept",
    "suspect": "a batch that fails as a whole is released, not halved until the bad job is alone",
}
"""What is off in a table that lacks an optional column."""


@dataclass(frozen=True)
class Made:
    """What `make` found, and what it did."""

    created: tuple[str, ...]
    existing: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    """Indexes that existing tables lacked, and have now."""


@dataclass(frozen=True)
class Doomed:
    """What `make` with `recreate` would drop: a table, its rows, and how many owners are at work on it."""

    table: str
    rows: int
    owners: int


# --- which tables --------------------------------------------------------------------------------------------


def tables_for(table: TableLike) -> list[sa.Table]:
    """The tables a queue needs: its jobs (a mere name means the article's columns) and the owners."""
    if isinstance(table, str):
        schema, _, bare = table.rpartition(".")
        jobs = article_table(bare, sa.MetaData(schema=schema or None))
    elif isinstance(table, sa.Table):
        jobs = table
    else:
        jobs = sa.inspect(table).local_table
    return [jobs, owner_table()]


def checked_table(found: Any, name: str) -> sa.Table | type[Any]:
    """`found` if it is a Table or a mapped class; raises UnfitTable, which calls it `name`."""
    if isinstance(found, sa.Table) or isinstance(getattr(found, "__table__", None), sa.Table):
        table: sa.Table | type[Any] = found
        return table
    raise UnfitTable(f"{name!r} is {type(found).__name__}: name a sqlalchemy.Table or a class mapped to one")


# --- making them ---------------------------------------------------------------------------------------------


def make(engine: sa.Engine, tables: list[sa.Table], *, recreate: bool = False) -> Made:
    """Make the tables that are missing; with `recreate` drop the jobs first, with all rows.

    The table of owners is never dropped: all queues of the database share it, and its ids must not be given
    out a second time, for a consumer that was thought dead may still come back and settle under its own. An
    existing table of jobs that lost the index it is claimed by gets it back.

    Raises ConnectionFailed, or ServerTooOld before anything is made on a server that could not claim.
    """
    dialect = dialect_for(engine)
    try:
        return _make(engine, tables, recreate)
    except sa.exc.DBAPIError as error:
        _explain_refusal(dialect, error)
        if recreate or not _all_exist(engine, tables):
            raise
        return _make(engine, tables, recreate=False)  # somebody else made them at the same moment


def _make(engine: sa.Engine, tables: list[sa.Table], recreate: bool) -> Made:
    with connected(engine) as connection, connection.begin():
        there = [table for table in tables if exists(connection, table)]
        dropped = [table for table in there if recreate and table.name != OWNER_TABLE]
        for table in dropped:
            table.drop(connection)
        kept = [table for table in there if table not in dropped]
        indexes = [index for table in kept for index in _lost(connection, table)]
        for index in indexes:
            index.create(connection)
        created = [table for table in tables if table not in kept]
        for table in created:
            table.create(connection)
    return Made(_names(created), _names(kept), _names(dropped), tuple(str(index.name) for index in indexes))


def _lost(connection: sa.Connection, table: sa.Table) -> list[sa.Index]:
    """The index to claim by, if it is described but not there, although its columns are."""
    found = sa.inspect(connection).get_indexes(table.name, schema=table.schema)
    return [index for index in _described(connection, table) if not _covered(index, found)]


def _described(connection: sa.Connection, table: sa.Table) -> list[sa.Index]:
    """The index to claim by, if it is described and its columns are there."""
    there = _there(connection, table)
    described = [index for index in table.indexes if index.name == f"{table.name}_claim"]
    return [index for index in described if there >= set(index.columns.keys())]


def _covered(index: sa.Index, found: list[Any]) -> bool:
    """Whether an index of this name is there, or one that holds what claims are ordered and narrowed by."""
    named = any(other["name"] == index.name for other in found)
    return named or _holds(found, [column.name for column in index.columns if column.name != "suspect"])


def _holds(found: list[Any], columns: list[str]) -> bool:
    """Whether an index begins with these columns."""
    return any(other["column_names"][: len(columns)] == columns for other in found)


def _there(connection: sa.Connection, table: sa.Table) -> set[str]:
    """The columns that the database's table has."""
    return {column["name"] for column in sa.inspect(connection).get_columns(table.name, schema=table.schema)}


def _all_exist(engine: sa.Engine, tables: list[sa.Table]) -> bool:
    with connected(engine) as connection:
        return all(exists(connection, table) for table in tables)


def _explain_refusal(dialect: Dialect, error: sa.exc.DBAPIError) -> None:
    if dialect.refused(error):
        raise AccessDenied(
            f"this user may not make tables ({reason(error)}): ask for the right to, "
            "or hand what `claimjobs setup-tables --sql` prints to somebody who may"
        ) from error


def exists(connection: sa.Connection, table: sa.Table) -> bool:
    """Whether the database has a table of this name."""
    return sa.inspect(connection).has_table(table.name, schema=table.schema)


def doomed(engine: sa.Engine, table: TableLike) -> Doomed | None:
    """What `recreate` would drop; None where there is nothing to drop.

    Raises UnfitTable for a name that stands for a table with other columns than the one to be made in its place.
    """
    jobs, owners = tables_for(table)
    with connected(engine) as connection:
        if not exists(connection, jobs):
            return None
        if isinstance(table, str):
            _must_be_ours(connection, jobs)
        rows = connection.execute(count.rows(jobs)).scalar_one()
        at_work = exists(connection, owners) and connection.execute(count.owners(owners), {"claims": jobs.fullname})
        return Doomed(jobs.fullname, rows, at_work.scalar_one() if at_work else 0)


def _must_be_ours(connection: sa.Connection, jobs: sa.Table) -> None:
    there = [column["name"] for column in sa.inspect(connection).get_columns(jobs.name, schema=jobs.schema)]
    if others := [name for name in there if name not in jobs.columns]:
        raise UnfitTable(
            f"table {jobs.fullname!r} would come back without {', '.join(others)}: give its description, "
            "--table MODULE:ATTRIBUTE, or drop it yourself"
        )


# --- looking at them -----------------------------------------------------------------------------------------


def check(engine: sa.Engine, table: TableLike) -> Roles:
    """The roles of the columns, once all that a queue needs is there.

    Raises TableMissing, NoPrimaryKey, or UnfitTable with each ALTER TABLE that is to be run.
    """
    try:
        return look_at(engine, table, None).roles
    except (ColumnMissing, OwnersOutdated) as first:
        raise UnfitTable("\n".join(_missing(engine, table))) from first


def _missing(engine: sa.Engine, table: TableLike) -> list[str]:
    """What the tables lack that must be there, each with the statement that adds it."""
    jobs, owners = tables_for(table)
    wanted = [jobs.c[name] for name in REQUIRED] if isinstance(table, str) else list(jobs.columns)
    with connected(engine) as connection:
        there = {each: _there(connection, each) for each in (jobs, owners)}
    missing = [column for column in (*wanted, *owners.columns) if column.name not in there[column.table]]
    return [
        f"table {column.table.fullname!r} has no column {column.name!r}, which a queue needs: {_alter(column, engine)}"
        for column in missing
    ]


def advice(engine: sa.Engine, table: TableLike, roles: Roles) -> list[str]:
    """What the queue works without, though not as well as it could, each with the statements that change it."""
    ours = article_table(roles.table.name, sa.MetaData(schema=roles.table.schema))
    absent = [name for name in OPTIONAL if getattr(roles, name) is None]
    columns = [f"without the column {name} {WITHOUT[name]}: {_alter(ours.c[name], engine)}" for name in absent]
    return [*columns, *_index_advice(engine, tables_for(table)[0])]


def _index_advice(engine: sa.Engine, jobs: sa.Table) -> list[str]:
    """The index to claim by, where the one that is there does not hold all that phase 1 reads."""
    with connected(engine) as connection:
        found = sa.inspect(connection).get_indexes(jobs.name, schema=jobs.schema)
        narrow = [index for index in _described(connection, jobs) if not _holds(found, index.columns.keys())]
    return [f"claims read rows that they do not take: {_renewed(index, found, engine)}" for index in narrow]


def _renewed(index: sa.Index, found: list[Any], engine: sa.Engine) -> str:
    create, drop = sa.schema.CreateIndex(index), sa.schema.DropIndex(index)
    named = any(other["name"] == index.name for other in found)
    return " ".join(_text(statement, engine) for statement in ((drop, create) if named else (create,)))


def _alter(column: sa.Column[Any], engine: sa.Engine) -> str:
    """The statement that adds a column to a table that may have rows."""
    return f"ALTER TABLE {column.table.fullname} ADD COLUMN {_spec(column, engine)};"


def _spec(column: sa.Column[Any], engine: sa.Engine) -> str:
    if isinstance(column.type, sa.Enum):  # perhaps a type of its own, which would have to be made first
        return f"{column.name} {ColumnMissing.TYPES.get(column.name, '...')}"
    # An owner of an earlier version gives no signs of life: with a lease of 0 it is dead, and its jobs are handed back.
    default = "0" if column.table.name == OWNER_TABLE and not column.nullable else None
    filled: Any = column.server_default.arg if isinstance(column.server_default, sa.DefaultClause) else default
    added = sa.Column(column.name, column.type, nullable=column.nullable, server_default=filled, comment=column.comment)
    sa.Table(column.table.name, sa.MetaData(), added)
    return str(sa.schema.CreateColumn(added).compile(dialect=engine.dialect))


def ddl(engine: sa.Engine, tables: list[sa.Table], *, recreate: bool = False) -> str:
    """The statements that `make` would run on an empty database, for a DBA to read or a migration to hold.

    With `recreate` the jobs are dropped first. Needs no connection.
    """
    statements: list[str] = []
    printer = sa.create_mock_engine(engine.url, lambda sql, *_, **__: statements.append(_text(sql, engine)))
    for table in tables:
        if recreate and table.name != OWNER_TABLE:
            table.drop(printer, checkfirst=False)
        table.create(printer, checkfirst=False)
    return "\n\n".join(_indexes_sorted(statements)) + "\n"


def _indexes_sorted(statements: list[str]) -> list[str]:
    """Each table's indexes by their names: SQLAlchemy keeps them in a set, in another order at every run."""
    ordered: list[str] = []
    for is_index, alike in groupby(statements, lambda text: text.startswith("CREATE INDEX")):
        run = list(alike)
        ordered += sorted(run) if is_index else run
    return ordered


def _text(sql: Any, engine: sa.Engine) -> str:
    lines = str(sql.compile(dialect=engine.dialect)).strip().replace("\t", "    ").splitlines()
    return "\n".join(line.rstrip() for line in lines) + ";"


def _names(tables: list[sa.Table]) -> tuple[str, ...]:
    return tuple(table.fullname for table in tables)
