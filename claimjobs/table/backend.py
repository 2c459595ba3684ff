"""Backend: what a queue knows of its database after it has inspected the tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import sqlalchemy as sa

from claimjobs.database.connect import connected, dialect_for
from claimjobs.database.error_translation import TablesInUse, reason
from claimjobs.database.inspector import inspected_once
from claimjobs.dialects import Dialect
from claimjobs.dialects.table_rules import Place
from claimjobs.errors import (
    AccessDenied,
    ColumnMissing,
    OwnersOutdated,
    ServerUnfit,
    TableMissing,
    claims_missing,
    not_consumer,
)
from claimjobs.per_key import PerKey
from claimjobs.table import acceptance
from claimjobs.table.claim_rows import ClaimRows
from claimjobs.table.columns import Columns
from claimjobs.table.ddl import side_car_name
from claimjobs.table.definitions import (
    BATCHES_TABLE,
    OWNER_TABLE,
    QUEUES_TABLE,
    batches_table,
    claims_table,
    owner_table,
    queues_table,
)
from claimjobs.table.job_state import StateByClaimRows
from claimjobs.table.key_rows import KeyRows, columns_for, key_table
from claimjobs.table.reflection import TableLike, collated, columns_in_database, map_of, resolve
from claimjobs.table.roles import REQUIRED, ColumnRoles, key_index, quote_of, roles_of


@dataclass(frozen=True)
class Backend:
    """A server's capabilities, the roles of the table's columns, and the table of owners."""

    dialect: Dialect
    roles: ColumnRoles
    owners: sa.Table
    """The table of owners, in the schema of the table with the claims."""
    schema: str
    """That schema."""
    by_lease: bool = True
    """Whether claims are held by lease: committed with the id of an owner."""
    user_table: ColumnRoles | None = None
    """The user's table, if `roles` are those of its side-car."""
    records_claims: bool = True
    """Whether an owner with this backend claims. One that is only registered to be woken does not."""
    locks_rows: bool = True
    """Whether claims lock the rows. If they do not, they and claims by lease do not exclude each other."""
    key_rows: KeyRows | None = None
    """The key rows, if there are limits, an order or rates per key."""
    refusal: AccessDenied | None = None
    """Why this user cannot claim by lease. Jobs can be enqueued nevertheless."""

    @property
    def source(self) -> ColumnRoles:
        """The user's table: `where` and the order are about it, and jobs are enqueued into it."""
        return self.user_table or self.roles

    @cached_property
    def queues(self) -> sa.Table:
        """The table of queues, beside the owners."""
        return queues_table(sa.MetaData(schema=self.owners.schema))

    @cached_property
    def batches(self) -> sa.Table:
        """The table of claim rows, beside the owners."""
        return batches_table(sa.MetaData(schema=self.owners.schema))

    @property
    def tables_in_use(self) -> TablesInUse:
        """The tables of this queue."""
        side_car = None if self.user_table is None else (self.roles.table, self.user_table.name)
        return TablesInUse(self.dialect, (self.source.table, self.owners), side_car, self.source.depend_on_zone)

    def check_primaries(self, connection: sa.Connection) -> None:
        """Raises ServerUnfit if two primaries would let two claims of one job pass.

        A claim that writes the row of its job, or a row with its key, is safe: one of two such commits is refused. A
        batch and an open transaction protect their jobs by locks, which other primaries do not see.
        """
        if not self.by_lease:
            way, instead = "hold='transaction'", "hold lease (hold='lease')"
        elif self.roles.claim_rows is not None:
            way, instead = "claims='batches'", "claims rows (claims='rows')"
        else:
            return
        if self.dialect.sessions.is_one_of_several_primaries(connection):
            raise ServerUnfit(
                f"{way} cannot work for table {self.source.name!r} here: this server is one of several primaries, "
                "which do not see each other's locks, so two consumers would work on the same jobs: "
                f"add --{instead}, or let the cluster have a single primary"
            )


def inspect_table(
    engine: sa.Engine,
    table: TableLike,
    dialect: Dialect | None = None,
    *,
    columns: Columns | None = None,
    by_lease: bool = True,
    per_batch: bool = False,
    side_car: str | bool = False,
    per_key: PerKey | None = None,
) -> Backend:
    """Inspect the server and the tables; `dialect` overrides the detected one.

    `by_lease`: claims are committed with the id of an owner, which needs a column for it, and the table of owners.
    `per_batch`: claims are rows of the table of batches; no column of the table is needed for them.
    `side_car`: outcomes are kept in a second table (of this name), and claims are rows of the table of batches.
    `per_key`: limits, an order or rates per key, which need the table of key rows.
    Raises ConnectionFailed, ServerUnfit or UnfitTable.
    """
    found = dialect_for(engine)
    rules, given, source = found.table_rules, columns or map_of(table), None
    with connected(engine) as connection, inspected_once(connection):
        described = resolve(connection, table, given)
        acceptance.check_no_own(described)
        acceptance.check_table(connection, found, described)
        zoned = any(map(rules.depends_on_zone, columns_in_database(connection, described).values()))
        described = collated(described, rules.collations(connection, described))
        place = rules.place(connection, described)
        home = place
        if side_car:
            source = replace(source_roles(connection, found, described, columns=given), depend_on_zone=zoned)
            named = side_car_name(place.full_name(described), side_car)
            roles = _claims(connection, found, source, named=named, chosen=isinstance(side_car, str))
            beside = rules.place(connection, roles.table)
            # Not the side-car names the queue: who has another one, or none, is to be seen.
            name = place.name if place.schema == beside.schema else f"{place.schema}.{place.name}"
            roles, place = replace(roles, recorded_as=name), beside
        else:
            roles = roles_of(described, given)
            index, quote = key_index(connection, roles), quote_of(connection)
            roles = replace(roles, key_index=index, quote=quote, depend_on_zone=zoned, recorded_as=place.name)
            acceptance.check_key(connection, found, roles)
            acceptance.check_columns(connection, found, roles)
        if per_batch or side_car:
            claim_rows = ClaimRows(batches_table(place.metadata), roles.claims, roles.key, dialect or found)
            source = source and replace(source, claim_rows=replace(claim_rows, key=source.key))
            roles = _per_batch(roles, claim_rows)
        backend = Backend(dialect or found, roles, owner_table(place.metadata), place.schema, False, source)
        if per_key:
            backend = replace(backend, key_rows=_key_rows(connection, backend, home, per_key))
        return _leased(connection, backend, mapped=given is not None) if by_lease else backend


def _key_rows(connection: sa.Connection, backend: Backend, home: Place, per_key: PerKey) -> KeyRows:
    """The table of key rows. Raises TableMissing, or ColumnUnfit for a column that cannot be a key of them."""
    columns = columns_for(connection, backend.source, per_key.names)
    key = [sa.Column(column.name, column.type, primary_key=True) for column in columns]
    table = key_table(home.name, key, home.metadata)
    try:
        return KeyRows(resolve(connection, table), columns, limits=per_key.limit is not None)
    except TableMissing:
        raise TableMissing(table.fullname, within=backend.source.name) from None


def _per_batch(roles: ColumnRoles, claim_rows: ClaimRows) -> ColumnRoles:
    """The roles for claims per batch, which are these claim rows."""
    state = roles.state
    by_claim_rows = StateByClaimRows(column=state.column, values=state.values, owner=state.owner, claim_rows=claim_rows)
    return replace(roles, state=by_claim_rows, claim_rows=claim_rows)


def source_roles(
    connection: sa.Connection, dialect: Dialect, table: sa.Table, *, columns: Columns | None
) -> ColumnRoles:
    """The roles of a table that has a side-car: claimjobs ignores its columns for a state.

    Raises KeyUnfit, also if no unique index is over the key.
    """
    roles = roles_of(table, (columns or Columns()).beside_claims)
    acceptance.check_key(connection, dialect, roles)
    return replace(roles, key_index=key_index(connection, roles, unique=True), quote=quote_of(connection))


def _claims(
    connection: sa.Connection, dialect: Dialect, source: ColumnRoles, *, named: str, chosen: bool
) -> ColumnRoles:
    key = [sa.Column(column.name, column.type, primary_key=True) for column in source.key]
    try:
        table = resolve(connection, claims_table(named, key))
    except TableMissing:
        raise claims_missing(named, source.name, chosen=chosen) from None
    acceptance.check_table(connection, dialect, table)
    return roles_of(table, Columns.of_claims([column.name for column in key]))


# --- the tables of owners, queues and batches ----------------------------------------------------------------


def _leased(connection: sa.Connection, backend: Backend, *, mapped: bool) -> Backend:
    """The backend for claims that are held by lease. Raises UnfitTable if the table cannot hold them."""
    if backend.roles.claim_rows is None:
        for role in ("owner_id",) if mapped else REQUIRED:
            backend.roles.need(role, "claiming")
        acceptance.check_owner(connection, backend.roles)
    try:
        return with_owners(connection, backend)
    except AccessDenied as error:
        return replace(backend, refusal=error)


def with_owners(connection: sa.Connection, backend: Backend) -> Backend:
    """The backend for owners, after a check that the tables of owners, queues and, if it is needed, batches are in the
    schema of the claims. In another schema, which a name without a schema may mean as well, they are those of other
    tables of jobs. Raises UnfitTable, or AccessDenied if this user may not see the tables.
    """
    in_batches, dialect = backend.roles.claim_rows is not None, backend.dialect
    try:
        owners = _shared(connection, backend, backend.owners)
        check_queues(connection, backend)
        if in_batches:
            _shared(connection, backend, backend.batches)
    except sa.exc.DBAPIError as error:
        if not dialect.errors.refuses_account(error):
            raise
        written = f"{OWNER_TABLE} and {BATCHES_TABLE}" if in_batches else OWNER_TABLE
        needed = f"SELECT, INSERT, UPDATE and DELETE on {written}, and SELECT on {QUEUES_TABLE}"
        raise not_consumer(f"{written} and {QUEUES_TABLE}", reason(error), needed) from error
    acceptance.check_table(connection, dialect, owners)
    return replace(backend, by_lease=True)


def check_queues(connection: sa.Connection, backend: Backend) -> None:
    """Raises TableMissing or OwnersOutdated for the table of queues."""
    _shared(connection, backend, backend.queues)


def _shared(connection: sa.Connection, backend: Backend, table: sa.Table) -> sa.Table:
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
