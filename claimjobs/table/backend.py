"""Backend: what a queue knows of its database after it has inspected the tables."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final

import sqlalchemy as sa

from claimjobs.database.connect import connected, dialect_for, inspected_once
from claimjobs.database.error_translation import TablesInUse, reason
from claimjobs.database.transactions import unless_hidden
from claimjobs.dialects import Dialect, dialect_of
from claimjobs.dialects.inspection import Location
from claimjobs.errors import (
    AccessDenied,
    BadArgument,
    ColumnMissing,
    ColumnUnfit,
    OwnersOutdated,
    ServerUnfit,
    TableMissing,
    claims_missing,
    not_consumer,
    quoted,
)
from claimjobs.options import PerKey
from claimjobs.table import acceptance
from claimjobs.table.claim_rows import ClaimRows
from claimjobs.table.columns import Columns
from claimjobs.table.ddl import side_car_name
from claimjobs.table.definitions import (
    KEY_ROW_COLUMNS,
    batches_table,
    key_table,
    owner_table,
    queues_table,
    reserved_name,
    side_car_table,
)
from claimjobs.table.job_state import Column
from claimjobs.table.reflection import TableLike, as_spelled, as_stored, columns_in_database, map_of, resolve
from claimjobs.table.roles import ColumnRoles, key_index, quote_of, roles_of

MOST_CHARACTERS: Final = 255
"""Characters that a text may have as a key: every database has an index for so many."""
FIT: Final = (sa.Integer, sa.String, sa.Uuid)
"""Types of columns that every database compares, and stores, in one way."""

ALTER_KEY: Final = "stop all consumers, and alter its key as that of the jobs was, or choose another side_car='NAME'"
"""What to do if a side-car does not fit the jobs."""


@dataclass(frozen=True)
class KeyRows:
    """The table of key rows of one queue: for each key of `per_key` that has work a row, which says when its jobs may
    be claimed next. Whoever claims some has locked it.
    """

    table: sa.Table
    of_jobs: tuple[Column, ...]
    """The columns of the jobs."""
    limit: int | None
    """How many jobs of a key may be claimed at once; None: any number."""

    @property
    def key(self) -> tuple[Column, ...]:
        """The same columns in the table of key rows."""
        return tuple(self.table.c[column.name] for column in self.of_jobs)

    @property
    def same(self) -> sa.ColumnElement[bool]:
        """The predicate of a job and its key row."""
        return sa.and_(*(job == row for job, row in zip(self.of_jobs, self.key, strict=True)))


@dataclass(frozen=True)
class Backend:
    """A server's capabilities, the roles of the table's columns, and the table of owners."""

    dialect: Dialect
    roles: ColumnRoles
    """The roles of the table with the outcomes: the side-car, or the user's table."""
    source: ColumnRoles
    """The roles of the user's table: `where` and the order are about it, and jobs are enqueued into it."""
    owners: sa.Table
    """The table of owners, in the schema of the table with the outcomes."""
    schema: str
    """The schema of the table of owners."""
    by_lease: bool = True
    """Whether claims are held by lease: committed with the id of an owner."""
    records_claims: bool = True
    """Whether an owner with this backend claims. One that is only registered to be woken does not."""
    locks_rows: bool = True
    """Whether claims lock the rows. If they do not, they and claims by lease do not exclude each other."""
    key_rows: KeyRows | None = None
    """The key rows, if there are limits, an order or rates per key."""
    refusal: AccessDenied | None = None
    """Why this user cannot claim: a table that claims need is hidden from it. Jobs can be enqueued nevertheless."""

    @property
    def has_side_car(self) -> bool:
        """Whether `roles` are those of a side-car."""
        return self.source.table is not self.roles.table

    @cached_property
    def queues(self) -> sa.Table:
        """The table of queues, beside the owners."""
        return _shared(queues_table, self.owners.schema)

    @property
    def tables_in_use(self) -> TablesInUse:
        """The tables of this queue."""
        source = self.source
        return TablesInUse(self.dialect, (source.table, self.owners), self.roles.table, source.depend_on_zone)

    def require_one_primary(self, connection: sa.Connection) -> None:
        """Raises ServerUnfit on one of several primaries, for claims that are protected by locks."""
        if self.dialect.sessions.is_one_of_several_primaries(connection):
            raise ServerUnfit(
                f"hold='transaction' and claims='batches' cannot work for table {self.source.name!r} here: this server "
                "is one of several primaries, which do not see each other's locks, so two consumers would work on the "
                "same jobs: add --hold lease --claims rows (hold='lease', claims='rows'), or let the cluster have a "
                "single primary"
            )


def inspect_table(
    engine: sa.Engine,
    table: TableLike,
    dialect: Dialect | None = None,
    *,
    columns: Columns | None = None,
    by_lease: bool = True,
    needed: Sequence[str] = (),
    per_batch: bool = False,
    side_car: str | bool = False,
    per_key: PerKey | None = None,
) -> Backend:
    """Inspect the server and the tables; `dialect` overrides the detected one.

    `by_lease`: claims need the table of owners. `needed`: roles for which the table must have columns. `per_batch`:
    claims are rows of the table of batches. `side_car`: outcomes are in a second table (of this name).
    Raises ConnectionFailed, ServerUnfit or UnfitTable.
    """
    found, given = dialect_for(engine), columns or map_of(table)
    with connected(engine) as connection, inspected_once(connection):
        source, home = roles, location = jobs_of(connection, found, table, given, beside_side_car=bool(side_car))
        refusal = None
        if side_car:
            roles, location, refusal = _side_car_of(connection, found, source, home=home, side_car=side_car)
        schema = location.metadata.schema
        if per_batch:
            claim_rows = ClaimRows(_shared(batches_table, schema), roles.recorded_as, roles.key, dialect or found)
            roles, source = roles.claimed_in(claim_rows), source.claimed_in(claim_rows)
        for role in needed:
            roles.need(role, "claiming")
        if "owner_id" in needed:
            acceptance.check_owner(connection, roles)
        owners = _shared(owner_table, schema)
        backend = Backend(dialect or found, roles, source, owners, location.schema, by_lease=False, refusal=refusal)
        if per_key:
            of_jobs = columns_for(connection, source, per_key.names)
            key = [sa.Column(column.name, column.type, primary_key=True) for column in of_jobs]
            key_rows = KeyRows(key_table(home.name, key, home.metadata), of_jobs, limit=per_key.limit)
            refusal = refusal or refusal_of_key_rows(connection, backend.dialect, key_rows.table, source)
            backend = replace(backend, key_rows=key_rows, refusal=refusal)
        if not by_lease:  # a transaction as a hold reads these if they are there, and this user sees them
            for beside in (backend.owners, backend.queues):
                with suppress(TableMissing), unless_hidden(connection, backend.dialect, needed=False):
                    check_shared(connection, backend, beside)
        elif refusal is None:
            try:
                return with_owners(connection, backend)
            except AccessDenied as error:
                return replace(backend, refusal=error)
        return backend


def jobs_of(
    connection: sa.Connection, dialect: Dialect, table: TableLike, columns: Columns | None, *, beside_side_car: bool
) -> tuple[ColumnRoles, Location]:
    """The roles of the user's table, after all checks, and where the server has it. `beside_side_car`: only its key,
    priority and run_at play a role, and its key must be unique. Raises UnfitTable.
    """
    described, rules = resolve(connection, table, columns), dialect.table_rules
    acceptance.check_no_own(described)
    acceptance.check_table(connection, dialect, described)
    zoned = any(map(rules.depends_on_zone, columns_in_database(connection, described).values()))
    home, given = rules.locate(connection, described), columns or Columns()
    columns = as_spelled(connection, given.beside_side_car if beside_side_car else given, described.columns.keys())
    described = as_stored(connection, described, rules.collations(connection, described), columns.key_names)
    roles = roles_of(described, columns)
    index = key_index(connection, roles, unique=beside_side_car)
    roles = replace(roles, key_index=index, quote=quote_of(connection), depend_on_zone=zoned, recorded_as=home.name)
    acceptance.check_key(connection, dialect, roles)
    if not beside_side_car:
        acceptance.check_columns(connection, dialect, roles)
    return roles, home


def _side_car_of(
    connection: sa.Connection, dialect: Dialect, jobs: ColumnRoles, *, home: Location, side_car: str | bool
) -> tuple[ColumnRoles, Location, AccessDenied | None]:
    """The roles of the side-car of these jobs, where the server has it, and why it is hidden. Raises UnfitTable."""
    name = side_car_name(home.full_name(jobs.table), side_car)
    key = [sa.Column(column.name, column.type, primary_key=True) for column in jobs.key]
    table, here = side_car_table(name, key), home
    try:
        refusal = refusal_beside(connection, dialect, table, jobs, step=ALTER_KEY)
    except TableMissing:
        raise claims_missing(name, jobs.name, chosen=isinstance(side_car, str)) from None
    if refusal is None:
        acceptance.check_table(connection, dialect, table)
        here = dialect.table_rules.locate(connection, table)
    # Not the side-car names the queue: who has another one, or none, is to be seen.
    recorded_as = home.name if home.schema == here.schema else f"{home.schema}.{home.name}"
    return replace(roles_of(table, Columns.of_side_car(jobs.key_names)), recorded_as=recorded_as), here, refusal


def refusal_beside(
    connection: sa.Connection, dialect: Dialect, table: sa.Table, jobs: ColumnRoles, *, step: str
) -> AccessDenied | None:
    """Why this user cannot claim with a table beside the jobs, which is hidden from it; None: it is there as described,
    and fits the jobs. `step`: what to do if it does not fit them. Raises TableMissing, ColumnMissing or UnfitTable.
    """
    try:
        acceptance.check_keys(connection, table, jobs.table, step)
        resolve(connection, table)
    except sa.exc.DBAPIError as error:
        if not dialect.errors.refuses_account(error):
            raise
        needed = f"SELECT, INSERT and UPDATE on {table.name}, and perhaps DELETE"
        return not_consumer(table.name, reason(error), needed)
    return None


def columns_for(connection: sa.Connection, roles: ColumnRoles, names: Sequence[str]) -> tuple[Column, ...]:
    """The columns of the jobs. Raises ColumnMissing, BadArgument for one that claimjobs writes, or ColumnUnfit."""
    found = columns_in_database(connection, roles.table)
    for name in names:
        if name not in roles.table.c or name not in found:
            raise ColumnMissing(roles.name, name, "limits per key", roles.quote)
        if roles.table.c[name] not in (*roles.key, *roles.payload):
            raise BadArgument(f"per_key {name!r} is a column that claimjobs writes: name one of the payload")
        type_ = found[name]["type"]
        is_long = isinstance(type_, sa.String) and not 0 < (type_.length or 0) <= MOST_CHARACTERS
        is_exact = dialect_of(connection).table_rules.finds_again(type_) and not isinstance(type_, sa.Enum)
        if name in KEY_ROW_COLUMNS:
            raise reserved_name(roles.name, name)
        if not isinstance(type_, FIT) or not is_exact or is_long:
            raise ColumnUnfit(
                f"column {name!r} of table {roles.name!r} has the type {type_!r}, which cannot be a key of per_key: "
                f"name a column of whole numbers, UUIDs, or texts of at most {MOST_CHARACTERS} characters"
            )
        if found[name]["nullable"]:
            raise ColumnUnfit(
                f"column {name!r} of table {roles.name!r} may be NULL, and for a job without a key there is no limit: "
                f"give these jobs a key, and make it NOT NULL"
            )
    return tuple(roles.table.c[name] for name in names)


def refusal_of_key_rows(
    connection: sa.Connection, dialect: Dialect, table: sa.Table, jobs: ColumnRoles
) -> AccessDenied | None:
    """As `refusal_beside`, for a table of key rows."""
    words = shlex.join(("--table", jobs.name, "--per-key", ",".join(table.primary_key.columns.keys())))
    drop = f"DROP TABLE {quoted(table.fullname, jobs.quote)}"
    step = f"stop all consumers, {drop}, and run `claimjobs setup-tables {words}`: only what a rate remembers is lost"
    try:
        return refusal_beside(connection, dialect, table, jobs, step=step)
    except TableMissing:
        raise TableMissing(table.fullname, words=words, within=jobs.name) from None


# --- the tables of owners, queues and batches ----------------------------------------------------------------


@lru_cache
def _shared(describe: Callable[[sa.MetaData], sa.Table], schema: str | None) -> sa.Table:
    """The same object for all Queues: SQLAlchemy compiles a statement again for another description of its table."""
    return describe(sa.MetaData(schema=schema))


def with_owners(connection: sa.Connection, backend: Backend) -> Backend:
    """The backend for owners, after a check that the tables of owners, queues and, if it is needed, batches are in
    `backend.schema`. In another schema, which a name without a schema may mean as well, they are those of other
    tables of jobs. Raises UnfitTable, or AccessDenied if this user may not see the tables.
    """
    written = [backend.owners, *(rows.table for rows in (backend.roles.claim_rows,) if rows is not None)]
    try:
        owners, *_ = (check_shared(connection, backend, table) for table in (*written, backend.queues))
    except sa.exc.DBAPIError as error:
        if not backend.dialect.errors.refuses_account(error):
            raise
        names, queues = " and ".join(table.name for table in written), backend.queues.name
        needed = f"SELECT, INSERT, UPDATE and DELETE on {names}, and SELECT on {queues}"
        raise not_consumer(f"{names} and {queues}", reason(error), needed) from error
    acceptance.check_table(connection, backend.dialect, owners)
    return replace(backend, by_lease=True)


def check_shared(connection: sa.Connection, backend: Backend, table: sa.Table) -> sa.Table:
    """A table that queues share, which is there as described. Raises TableMissing or OwnersOutdated."""
    try:
        return resolve(connection, table.to_metadata(sa.MetaData(), schema=backend.schema))
    except ColumnMissing as missing:
        raise OwnersOutdated(
            f"table {table.fullname!r} has no column {missing.column!r}, perhaps because an earlier version made it: "
            "run `claimjobs upgrade-tables`; if that has nothing to do, add the column as `claimjobs setup-tables "
            "--sql` prints it"
        ) from None
    except TableMissing:
        raise TableMissing(table.fullname, within=backend.source.name) from None
