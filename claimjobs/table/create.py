"""Making tables: finds which are missing, makes them, drops those that claimjobs made, runs DDL."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from claimjobs.database.connect import connected, dialect_for
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Dialect, dialect_of
from claimjobs.dialects.table_rules import LOCK_TIMEOUT
from claimjobs.errors import AccessDenied, TableInUse, UnfitTable
from claimjobs.table.acceptance import check_no_own, check_table
from claimjobs.table.backend import TableLike
from claimjobs.table.claim_index import covers
from claimjobs.table.ddl import table_comment
from claimjobs.table.definitions import (
    OWNER_TABLE,
    SHARED_TABLES,
    article_table,
    id_above,
    owner_table,
    shared_tables,
)
from claimjobs.table.names import bad_name, check_names
from claimjobs.table.reflection import columns_in_database, is_made_by_us


@dataclass(frozen=True)
class MakeResult:
    """What `make` found, and what it did."""

    created: tuple[str, ...]
    existing: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    """Indexes that `make` added to existing tables."""


@dataclass(frozen=True)
class DropPlan:
    """What `make` with `recreate` would drop: a table, its number of rows, and how many owners it has."""

    table: str
    rows: int
    owners: int


# --- which tables --------------------------------------------------------------------------------------------


def tables_for(table: TableLike) -> list[sa.Table]:
    """The tables that a queue needs: its jobs (for a name, with the article's columns), and those that all share.

    Raises OwnTable.
    """
    if isinstance(table, str):
        schema, _, bare = table.rpartition(".")
        jobs = article_table(bare, sa.MetaData(schema=schema or None))
    elif isinstance(table, sa.Table):
        jobs = table
    else:
        jobs = sa.inspect(table).local_table
    check_no_own(jobs)
    return [jobs, *shared_tables(jobs.schema)]


# --- making them ---------------------------------------------------------------------------------------------


def make(engine: sa.Engine, tables: list[sa.Table], *, recreate: bool = False) -> MakeResult:
    """Make the tables that are missing; with `recreate` drop the jobs first, with all rows.

    The table of owners is never dropped: all queues of the schema share it, and no id may be used twice, because a
    consumer that was declared dead may still try to settle with its id. A table that claimjobs did not make is not
    dropped or altered: UnfitTable. A table that claimjobs made gets its claim index again if it lacks it.

    A statement waits 2 s for its lock at most, because all later ones on the table wait behind it: TableInUse. Raises
    ConnectionFailed, or ServerUnfit before anything is made; NotClaimable for a table, whether it exists or is
    made as described, whose rows cannot be locked.
    """
    dialect = dialect_for(engine)
    try:
        return _make(engine, tables, recreate, dialect=dialect)
    except sa.exc.IdentifierError as error:
        raise bad_name(dialect, tables[0], error) from error
    except sa.exc.DBAPIError as error:
        _explain_refusal(dialect, error)
        _explain_lock(engine, dialect, tables[0], error)
        if dialect.errors.code(error) in dialect.errors.bad_name and not _all_exist(engine, tables):
            raise bad_name(dialect, tables[0], error) from error
        if recreate or not _all_exist(engine, tables):
            raise
        return _make(engine, tables, recreate=False, dialect=dialect)  # another process made them at the same moment


def _make(engine: sa.Engine, tables: list[sa.Table], recreate: bool, *, dialect: Dialect) -> MakeResult:
    with connected(engine) as connection, connection.begin(), dialect.table_rules.limited(connection):
        tables = _in_one_schema(connection, tables, dialect=dialect)
        there = [table for table in tables if exists(connection, table)]
        _must_have_schema(connection, tables)
        check_names(dialect, [table for table in tables if recreate or table not in there])
        dropped = [table for table in there if recreate and table.name not in SHARED_TABLES]
        for table in dropped:
            _must_be_ours(connection, table)
            table.drop(connection)
        kept = [table for table in there if table not in dropped]
        for table in kept:
            check_table(connection, dialect, table)
        indexes = [index for table in kept if is_made_by_us(connection, table) for index in _lost(connection, table)]
        for index in indexes:
            index.create(connection)
        created = [_above_earlier_ids(connection, table, kept) for table in tables if table not in kept]
        for table in created:
            table.create(connection)
            connection.execute(table_comment(table))
            check_table(connection, dialect, table)  # a server may choose another engine than the description
    return MakeResult(_names(created), _names(kept), _names(dropped), tuple(str(index.name) for index in indexes))


def _must_have_schema(connection: sa.Connection, tables: list[sa.Table]) -> None:
    if any(table.schema is None for table in tables) and sa.inspect(connection).default_schema_name is None:
        raise UnfitTable(
            f"table {tables[0].fullname!r} cannot be made, because this connection has no default schema (its "
            "search_path is empty, or names none that is there): set it, or name the table with its schema"
        )


def _in_one_schema(connection: sa.Connection, tables: list[sa.Table], *, dialect: Dialect) -> list[sa.Table]:
    """The tables, with the shared ones in the schema of the table of jobs: a name without a schema may also find tables
    of another one.
    """
    jobs = next((table for table in tables if table.name not in SHARED_TABLES), None)
    if jobs is None or jobs.schema:
        return tables
    inspector = sa.inspect(connection)
    there = exists(connection, jobs)
    schema = dialect.table_rules.place(connection, jobs).schema if there else inspector.default_schema_name
    shared = [table for table in tables if table.name in SHARED_TABLES]
    if schema == inspector.default_schema_name and not any(
        exists(connection, table) and not inspector.has_table(table.name, schema=schema) for table in shared
    ):
        return tables
    metadata = sa.MetaData(schema=schema)
    return [table.to_metadata(metadata) if table in shared else table for table in tables]


def _above_earlier_ids(connection: sa.Connection, table: sa.Table, kept: list[sa.Table]) -> sa.Table:
    """The table of owners with a first id that no earlier table of owners has used, which may have been dropped.

    It is also above every owner id in the existing tables.
    """
    if table.name != OWNER_TABLE:
        return table
    # The table in the database may lack the column: it may be another program's table with the same name.
    with_owner = [jobs for jobs in kept if "owner_id" in jobs.c and "owner_id" in columns_in_database(connection, jobs)]
    first = id_above(connection, [sa.select(sa.func.max(jobs.c.owner_id)) for jobs in with_owner])
    return owner_table(sa.MetaData(schema=table.schema), first=first)


def _lost(connection: sa.Connection, table: sa.Table) -> list[sa.Index]:
    """The claim index, if the table has its columns but not the index."""
    there = columns_in_database(connection, table).keys()
    found = sa.inspect(connection).get_indexes(table.name, schema=table.schema)
    described = [index for index in table.indexes if index.name == f"{table.name}_claim"]
    return [index for index in described if there >= set(index.columns.keys()) and not covers(found, index)]


def alter(engine: sa.Engine, table: sa.Table, statements: Iterable[str]) -> None:
    """Run DDL for a table, one statement after the other, in one transaction where the database has such.

    Raises AccessDenied if this user lacks the right, and TableInUse if a statement does not get its lock in time.
    """
    dialect = dialect_for(engine)
    try:
        with connected(engine) as connection, connection.begin(), dialect.table_rules.limited(connection):
            for statement in statements:
                # Without parameters a driver leaves a percent sign as it is.
                connection.exec_driver_sql(statement, execution_options={"no_parameters": True}).close()
    except sa.exc.DBAPIError as error:
        _explain_refusal(dialect, error)
        _explain_lock(engine, dialect, table, error)
        raise


def _all_exist(engine: sa.Engine, tables: list[sa.Table]) -> bool:
    try:
        with connected(engine) as connection:
            return all(exists(connection, table) for table in tables)
    except (sa.exc.DBAPIError, UnfitTable):  # no table can have this name
        return False


def _explain_refusal(dialect: Dialect, error: sa.exc.DBAPIError) -> None:
    if dialect.errors.refuses_account(error):
        raise AccessDenied(
            f"this user may not make or alter tables ({reason(error)}): ask for the right to, "
            "or give the output of `claimjobs setup-tables --sql` (`upgrade-tables --sql`) to somebody who has it"
        ) from error


def _explain_lock(engine: sa.Engine, dialect: Dialect, table: sa.Table, error: sa.exc.DBAPIError) -> None:
    """Raise TableInUse for a lock that was not got in time."""
    if dialect.errors.transient_kind(error) != "lock timeout":
        return
    holder = None
    with suppress(sa.exc.DBAPIError), connected(engine) as connection:
        holder = dialect.table_rules.lock_holder(connection, table)
    raise TableInUse(table.fullname, LOCK_TIMEOUT, holder or "a session that this user may not see") from error


def exists(connection: sa.Connection, table: sa.Table) -> bool:
    """Whether the database has a table of this name. Raises UnfitTable for a name that it cannot have."""
    try:
        return sa.inspect(connection).has_table(table.name, schema=table.schema)
    except sa.exc.DBAPIError as error:
        dialect = dialect_of(connection)
        if dialect.errors.code(error) in dialect.errors.bad_name:
            raise bad_name(dialect, table, error) from error
        raise


def drop_plan(engine: sa.Engine, table: TableLike) -> DropPlan | None:
    """What `recreate` would drop; None if there is nothing to drop.

    Raises UnfitTable for a table that claimjobs did not make, and for a name whose table has other columns than the one
    that would replace it.
    """
    jobs, owners, *_ = tables_for(table)
    with connected(engine) as connection:
        if not exists(connection, jobs):
            return None
        _must_be_ours(connection, jobs)
        if isinstance(table, str):
            _must_come_back(connection, jobs)
        rows = connection.execute(count_rows(jobs)).scalar_one()
        at_work = exists(connection, owners) and connection.execute(count_owners(owners), {"claims": jobs.name})
        return DropPlan(jobs.fullname, rows, at_work.scalar_one() if at_work else 0)


def _must_be_ours(connection: sa.Connection, table: sa.Table) -> None:
    if not is_made_by_us(connection, table):
        raise UnfitTable(
            f"table {table.fullname!r} was not made by claimjobs, which therefore does not drop it: "
            "drop it yourself if nobody needs its rows, then run this again"
        )


def _must_come_back(connection: sa.Connection, jobs: sa.Table) -> None:
    there = columns_in_database(connection, jobs)
    if others := [name for name in there if name not in jobs.columns]:
        raise UnfitTable(
            f"table {jobs.fullname!r} would be made without {', '.join(others)}: "
            "give its description, --table MODULE:ATTRIBUTE, or drop it yourself"
        )


def _names(tables: list[sa.Table]) -> tuple[str, ...]:
    return tuple(table.fullname for table in tables)


def count_rows(table: sa.Table) -> sa.Select[Any]:
    """How many rows a table has."""
    return sa.select(sa.func.count()).select_from(table)


def count_owners(table: sa.Table) -> sa.Select[Any]:
    """How many owners are registered for jobs of the table `claims`."""
    return count_rows(table).where(table.c.claims == sa.bindparam("claims", type_=sa.String))
