"""Making tables: finds which are missing, makes them, drops those that claimjobs made, runs DDL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import connected, dialect_for
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Dialect, dialect_of
from claimjobs.dialects.inspection import LOCK_TIMEOUT
from claimjobs.errors import AccessDenied, TableInUse, TableMissing, UnfitTable
from claimjobs.table.acceptance import check_no_own, check_table
from claimjobs.table.backend import ALTER_KEY, columns_for, jobs_of, refusal_beside, refusal_of_key_rows
from claimjobs.table.claim_index import holds, indexes_of
from claimjobs.table.columns import Columns
from claimjobs.table.ddl import bad_name, check_names, side_car_name, table_comment
from claimjobs.table.definitions import (
    BATCHES_TABLE,
    OWNER_TABLE,
    SHARED_TABLES,
    article_table,
    id_above,
    key_table,
    owner_table,
    shared_tables,
    side_car_table,
)
from claimjobs.table.reflection import (
    TableLike,
    columns_in_database,
    is_made_by_us,
    map_of,
    refuse_translated,
    table_of,
    types_with_collations,
)

TRIES: Final = 10
"""How often `make` begins, if what it makes exists when it comes to it."""


@dataclass(frozen=True)
class MakeResult:
    """What `make` found, and what it did."""

    created: tuple[str, ...]
    existing: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    """Indexes that `make` added to existing tables."""


def tables_for(table: TableLike) -> list[sa.Table]:
    """The tables that a queue needs: its jobs (for a name, with the article's columns), and those that all share.

    Raises NotClaimable for a table of our own.
    """
    if isinstance(table, str):
        schema, _, bare = table.rpartition(".")
        jobs = article_table(bare, sa.MetaData(schema=schema or None))
    else:
        jobs = table_of(table)
    check_no_own(jobs)
    return [jobs, *shared_tables(jobs.schema)]


def side_car_tables(
    engine: sa.Engine, table: TableLike, side_car: str | bool = True, *, columns: Columns | None = None
) -> list[sa.Table]:
    """The tables that a queue with a side-car needs: the side-car, and those that all queues share.

    For `make`, `ddl` and so on. The user's table is inspected, but not among them. The columns of the side-car's key
    have the types and collations that they have in the database. Raises ConnectionFailed, TableMissing, NotClaimable,
    KeyUnfit if no unique index is over the key, or UnfitTable for the side-car's name, and for one that does not fit.
    """
    dialect = dialect_for(engine)
    with connected(engine) as connection:
        roles, location = jobs_of(connection, dialect, table, columns or map_of(table), beside_side_car=True)
        full_name = location.full_name(roles.table)
        name = side_car_name(full_name, side_car)
        if flaw := dialect.table_rules.unnameable(name.rpartition(".")[2]):
            raise UnfitTable(
                f"table {full_name!r} cannot have a side-car {name!r} ({flaw}): choose its name in Python, as in "
                "Queue(..., side_car='NAME'), or in a map"
            )
        beside = side_car_table(name, _key_columns(connection, dialect, roles.table, roles.key_names))
        with suppress(TableMissing):
            refusal_beside(connection, dialect, beside, roles, step=ALTER_KEY)
    return [beside, *shared_tables(beside.schema)]


def key_tables(
    engine: sa.Engine,
    table: TableLike,
    per_key: Sequence[str],
    *,
    side_car: str | bool = False,
    columns: Columns | None = None,
) -> list[sa.Table]:
    """The table of key rows that `per_key` needs, for `make` and `ddl`. The table of jobs must be there.

    Raises as `side_car_tables` does; UnfitTable also if the table is there, and does not fit these columns.
    """
    dialect = dialect_for(engine)
    with connected(engine) as connection:
        roles, location = jobs_of(connection, dialect, table, columns or map_of(table), beside_side_car=bool(side_car))
        names = [column.name for column in columns_for(connection, roles, per_key)]
        key_rows = key_table(location.name, _key_columns(connection, dialect, roles.table, names), location.metadata)
        with suppress(TableMissing):
            refusal_of_key_rows(connection, dialect, key_rows, roles)
    return [key_rows]


def _key_columns(
    connection: sa.Connection, dialect: Dialect, table: sa.Table, names: Iterable[str]
) -> list[sa.Column[Any]]:
    """Columns of a key as the database has them, not as a description in Python says."""
    types, columns = types_with_collations(connection, table), []
    for name in names:
        same = types[name]
        if hasattr(same, "create_type"):
            same.create_type = False  # the user's type exists already
        fixed = sa.text("'2000-01-01'") if dialect.changes_timestamps and isinstance(same, sa.TIMESTAMP) else None
        columns.append(sa.Column(name, same, primary_key=True, autoincrement=False, server_default=fixed))
    return columns


# --- making them ---------------------------------------------------------------------------------------------


def make(engine: sa.Engine, tables: list[sa.Table], *, recreate: bool = False) -> MakeResult:
    """Make the tables that are missing; with `recreate` drop the jobs first, with all rows and claim rows: what running
    consumers settle afterwards is lost to them.

    The table of owners is never dropped: all queues of the schema share it, and no id may be used twice, because a
    consumer that was declared dead may still try to settle with its id. A table that claimjobs did not make is not
    dropped or altered: UnfitTable. A table that claimjobs made gets its claim index again if it lacks it.

    A statement waits 2 s for its lock at most, because all later ones on the table wait behind it: TableInUse. Raises
    ConnectionFailed, or ServerUnfit before anything is made; NotClaimable for a table, whether it exists or is
    made as described, whose rows cannot be locked.
    """
    dialect, tries = dialect_for(engine), TRIES
    while True:
        try:
            with _altering(engine, dialect, tables[0]) as connection:
                return _make(connection, dialect, tables, recreate)
        except sa.exc.DBAPIError as error:
            errors, tries = dialect.errors, tries - 1
            code, is_conflict = errors.code(error), errors.transient_kind(error) in ("deadlock", "serialization")
            # Others may make the same tables at this moment, one by one: look again.
            if tries and (is_conflict or code in errors.bad_name | errors.duplicate):
                continue
            if code in errors.bad_name:
                raise bad_name(dialect, tables[0], error) from error
            raise


def _make(connection: sa.Connection, dialect: Dialect, tables: list[sa.Table], recreate: bool) -> MakeResult:
    for table in tables:
        refuse_translated(connection, table)
    tables = _in_one_schema(connection, tables, dialect)
    there = [table for table in tables if exists(connection, table)]
    check_names(dialect, [table for table in tables if recreate or table not in there])
    dropped = _drop_jobs(connection, dialect, tables, there) if recreate else []
    kept = [table for table in there if table not in dropped]
    for table in kept:
        check_table(connection, dialect, table)
    missing = []
    for table in kept:
        if not is_made_by_us(connection, table):
            continue
        columns = columns_in_database(connection, table).keys()
        found = indexes_of(connection, table)
        names = {other["name"] for other in found}
        for index in table.indexes:
            parts = index.columns.keys()
            is_there = index.name in names or holds(found, dict.fromkeys(parts[:-1], False))
            if index.name == f"{table.name}_claim" and columns >= {*parts} and not is_there:
                index.create(connection)
                missing.append(index)
    created = [table for table in tables if table not in kept]
    for table in created:
        new = table
        if table.name == OWNER_TABLE:  # no earlier one, which may have been dropped, has used its ids
            new = owner_table(sa.MetaData(schema=table.schema), first=id_above(connection, []))
        new.create(connection, checkfirst=True)  # SQLAlchemy 2.0 looks for a type of its own only then
        connection.execute(table_comment(new))
        check_table(connection, dialect, new)  # a server may choose another engine than the description
    made, existing, gone = (tuple(table.fullname for table in some) for some in (created, kept, dropped))
    return MakeResult(made, existing, gone, indexes=tuple(str(index.name) for index in missing))


def _drop_jobs(
    connection: sa.Connection, dialect: Dialect, tables: list[sa.Table], there: list[sa.Table]
) -> list[sa.Table]:
    """Drop those of the tables that are there, but no shared one, and delete the claim rows of all."""
    jobs = [table for table in tables if table.name not in SHARED_TABLES]
    for table in jobs:
        name = table.name
        if table in there:
            _must_be_ours(connection, table)
            name = dialect.table_rules.locate(connection, table).name
            table.drop(connection)
        # New rows may have the keys of jobs that are claimed. From the drop until the table is made nobody claims. A
        # table that is not there may be one that an attempt has dropped which failed here, where no DDL is undone.
        for claim_rows in (table for table in there if table.name == BATCHES_TABLE):
            connection.execute(sa.delete(claim_rows).where(claim_rows.c.claims == name))
    return [table for table in jobs if table in there]


def _in_one_schema(connection: sa.Connection, tables: list[sa.Table], dialect: Dialect) -> list[sa.Table]:
    """The tables, with the shared ones in the schema of the table of jobs: a name without a schema may also find tables
    of another one. Raises UnfitTable if there is no schema.
    """
    inspector = sa.inspect(connection)
    default = inspector.default_schema_name
    if default is None and any(table.schema is None for table in tables):
        raise UnfitTable(
            f"table {tables[0].fullname!r} cannot be made, because this connection has no default schema (its "
            "search_path is empty, or names none that is there): set it, or name the table with its schema"
        )
    jobs = next((table for table in tables if table.name not in SHARED_TABLES), None)
    if jobs is None or jobs.schema:
        return tables
    schema = dialect.table_rules.locate(connection, jobs).schema if exists(connection, jobs) else default
    shared = [table for table in tables if table.name in SHARED_TABLES]
    hidden = [one for one in shared if exists(connection, one) and not inspector.has_table(one.name, schema=schema)]
    if schema == default and not hidden:
        return tables
    metadata = sa.MetaData(schema=schema)
    return [table.to_metadata(metadata) if table in shared else table for table in tables]


def exists(connection: sa.Connection, table: sa.Table) -> bool:
    """Whether the database has a table of this name. Raises UnfitTable for a name that it cannot have."""
    try:
        return sa.inspect(connection).has_table(table.name, schema=table.schema)
    except sa.exc.DBAPIError as error:
        dialect = dialect_of(connection)
        if dialect.errors.code(error) in dialect.errors.bad_name:
            raise bad_name(dialect, table, error) from error
        raise


def missing_tables(engine: sa.Engine, tables: Iterable[sa.Table]) -> list[sa.Table]:
    """Those of the tables that the database does not have. Raises as `exists` does."""
    with connected(engine) as connection:
        return [table for table in tables if not exists(connection, table)]


# --- dropping them -------------------------------------------------------------------------------------------


def would_drop(engine: sa.Engine, table: TableLike) -> bool:
    """Whether there is a table of jobs that `recreate` would drop.

    Raises UnfitTable for a table that claimjobs did not make, and for a name whose table has other columns than the one
    that would replace it.
    """
    jobs = tables_for(table)[0]
    with connected(engine) as connection:
        if not exists(connection, jobs):
            return False
        _must_be_ours(connection, jobs)
        there = columns_in_database(connection, jobs)
        if isinstance(table, str) and (others := [name for name in there if name not in jobs.columns]):
            raise UnfitTable(
                f"table {jobs.fullname!r} would be made without {', '.join(others)}: "
                "give its description, --table MODULE:ATTRIBUTE, or drop it yourself"
            )
    return True


def _must_be_ours(connection: sa.Connection, table: sa.Table) -> None:
    if not is_made_by_us(connection, table):
        raise UnfitTable(
            f"table {table.fullname!r} was not made by claimjobs, which therefore does not drop it: "
            "drop it yourself if nobody needs its rows, then run this again"
        )


# --- running DDL ---------------------------------------------------------------------------------------------


def alter(engine: sa.Engine, table: sa.Table, statements: Iterable[str]) -> None:
    """Run DDL for a table, one statement after the other, in one transaction where the database has such.

    Raises AccessDenied if this user lacks the right, and TableInUse if a statement does not get its lock in time.
    """
    with _altering(engine, dialect_for(engine), table) as connection:
        for statement in statements:
            # Without parameters a driver leaves a percent sign as it is.
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True}).close()


@contextmanager
def _altering(engine: sa.Engine, dialect: Dialect, table: sa.Table) -> Iterator[sa.Connection]:
    """A transaction for DDL on this table, in which a statement waits LOCK_TIMEOUT seconds for its lock at most."""
    try:
        with connected(engine) as connection:
            connection.execution_options(isolation_level=dialect.isolation)  # each statement sees all that is committed
            with connection.begin(), dialect.table_rules.limited(connection):
                yield connection
    except sa.exc.IdentifierError as error:
        raise bad_name(dialect, table, error) from error
    except sa.exc.DBAPIError as error:
        if dialect.errors.refuses_account(error):
            raise AccessDenied(
                f"this user may not make or alter tables ({reason(error)}): ask for the right to, "
                "or give the output of `claimjobs setup-tables --sql` (`upgrade-tables --sql`) to somebody who has it"
            ) from error
        if dialect.errors.waited_for_lock(error):
            holder = None
            with suppress(sa.exc.DBAPIError), connected(engine) as connection:
                holder = dialect.table_rules.lock_holder(connection, table)
            raise TableInUse(
                f"table {table.fullname!r} was not free within {LOCK_TIMEOUT:g} s: a lock on it has "
                f"{holder or 'a session that this user may not see'}; wait for the end of that transaction, or end it, "
                "then run this again"
            ) from error
        raise
