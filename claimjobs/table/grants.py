"""Grants: the statements that let an account enqueue, claim, or operate a queue, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import connected, dialect_for
from claimjobs.dialects import Dialect
from claimjobs.table.backend import Backend
from claimjobs.table.definitions import ledger_table
from claimjobs.table.roles import ColumnRoles

PRODUCER: Final = "producer"
CONSUMER: Final = "consumer"
OPERATOR: Final = "operator"
PURPOSES: Final = {
    PRODUCER: "enqueues jobs; may not read, claim or delete any",
    CONSUMER: "claims and settles jobs, reclaims those of dead owners; may not enqueue",
    OPERATOR: "status, reclaim, dead, purge, pause; may not claim or enqueue",
}
"""The accounts of a queue, and what each of them may do."""

WRITTEN: Final = ("status", "owner_id", "owner_date", "run_at", "attempts", "last_error", "suspect")
"""The roles whose columns are written after a job was enqueued."""

Columns = tuple[str, ...]
WHOLE: Final[Columns] = ()
"""A right on the whole table, not on some columns."""
TableRights = dict[sa.Table, dict[str, Columns]]
"""Rights on tables, each with the columns to which it is limited."""


@dataclass(frozen=True)
class Granter:
    """Writes GRANT statements for one account, whose name is `to`."""

    connection: sa.Connection
    dialect: Dialect
    to: str

    @property
    def account(self) -> str:
        """The name of the account, quoted."""
        return self.dialect.access_rights.account(self.to)

    def grant(self, what: str) -> str:
        """The statement that grants `what`."""
        return f"GRANT {what} TO {self.account};"

    def on_tables(self, tables: TableRights) -> Iterator[str]:
        """The statements that grant rights on tables, and what an account needs to reach them."""
        access_rights = self.dialect.access_rights
        yield from map(self.grant, access_rights.around(self.connection, list(tables)))
        for table, rights in tables.items():
            on = access_rights.table(self.connection, table)
            yield self.grant(f"{', '.join(self._rights(rights))} ON {on}")

    def _rights(self, rights: Mapping[str, Columns]) -> Iterator[str]:
        quote = self.dialect.access_rights.quote
        for right, columns in rights.items():
            yield f"{right} ({', '.join(map(quote, columns))})" if columns else right


def grants(engine: sa.Engine, backend: Backend, names: Mapping[str, str], *, deletes: bool) -> Iterator[str]:
    """The statements for the accounts of a queue, with comments, line by line.

    `names`: the name of each account of `PURPOSES`. `deletes`: whether the rows of done jobs are deleted.
    """
    with connected(engine) as connection:
        producer, consumer, operator = (Granter(connection, backend.dialect, names[account]) for account in PURPOSES)
        yield from _headed(producer, PRODUCER, _of_producer(backend))
        sequences = backend.dialect.access_rights.defaults(connection, backend.source.table)
        yield from map(producer.grant, sequences)
        if backend.by_lease and backend.dialect.interrupts:
            yield "-- Optional, not needed if consumers use this account. Without it idle consumers find jobs when they"
            yield "-- check, after up to 6 seconds. It lets the account end every session of the server:"
            yield from (f"-- {line}" for line in producer.on_tables(_to_wake(backend)))
            yield f"-- {producer.grant(backend.dialect.access_rights.other_sessions)}"
        yield from _headed(consumer, CONSUMER, of_consumer(backend, deletes=deletes))
        yield from _headed(operator, OPERATOR, _of_operator(backend))


def ledger_grants(engine: sa.Engine, names: Mapping[str, str]) -> Iterator[str]:
    """The statements for the ledger of a destination: consumers write entries, an operator deletes old ones."""
    dialect, ledger = dialect_for(engine), ledger_table()
    read: dict[str, Columns] = {"SELECT": ("digest",)} if dialect.skips_duplicates else {}
    entry: dict[str, Columns] = {"INSERT": ("digest", "queue", "job"), **read}
    old: dict[str, Columns] = {"SELECT": WHOLE, "DELETE": WHOLE}
    with connected(engine) as connection:
        for account, rights in ((CONSUMER, entry), (OPERATOR, old)):
            yield from _headed(Granter(connection, dialect, names[account]), account, {ledger: rights})


def _headed(granter: Granter, account: str, tables: TableRights) -> Iterator[str]:
    yield f"-- {account}: {PURPOSES[account]}. If there is no such role or user, make one first."
    yield from granter.on_tables(tables)


def _of_producer(backend: Backend) -> TableRights:
    source = backend.source
    given = tuple(column.name for column in source.table.columns if _may_be_given(source, column))
    wakes = backend.by_lease and not backend.dialect.interrupts
    return {source.table: _seen(backend.dialect, {"INSERT": given}), **(_to_wake(backend) if wakes else {})}


def _to_wake(backend: Backend) -> TableRights:
    """The rights that find the idle owners. The table of queues is looked at with that of the owners."""
    owners, queues = _seen(backend.dialect, {"SELECT": ("id", "claims", "asleep")}), _seen(backend.dialect, {})
    return {backend.owners: owners, **({backend.queues: queues} if queues else {})}


def _seen(dialect: Dialect, rights: dict[str, Columns]) -> dict[str, Columns]:
    """Rights on columns, and the right to read the table's definition, if that is another one."""
    definition = dialect.access_rights.definition
    return rights if definition is None else {definition: WHOLE, **rights}


def _may_be_given(source: ColumnRoles, column: sa.Column[Any]) -> bool:
    """Whether a new job may have a value in this column. The database or claimjobs fills the others."""
    if any(column is given for given in (*source.payload, source.priority, source.run_at)):
        return True
    is_filled = column.server_default is not None or column is source.table.autoincrement_column
    return column.default is not None or not (column.nullable or is_filled)


def of_consumer(backend: Backend, *, deletes: bool) -> TableRights:
    """The rights of a consumer. `deletes`: whether the rows of done jobs are deleted."""
    everything = {"SELECT": WHOLE, "INSERT": WHOLE, "UPDATE": WHOLE, "DELETE": WHOLE}
    owners: TableRights = {backend.owners: everything} if backend.by_lease else {}
    shared: TableRights = {**owners, backend.queues: {"SELECT": WHOLE}, **_batches(backend, everything)}
    delete = {"DELETE": WHOLE} if deletes else {}
    if backend.user_table is None:
        jobs = {"SELECT": WHOLE, **_updates(_written(backend.roles)), **delete}
        return {backend.roles.table: _locking(backend, backend.roles, jobs), **shared}
    read = {"SELECT": WHOLE, **delete}
    claims = {"SELECT": WHOLE, "INSERT": WHOLE, "UPDATE": WHOLE, **delete}
    return {backend.source.table: _locking(backend, backend.source, read), backend.roles.table: claims, **shared}


def _of_operator(backend: Backend) -> TableRights:
    delete = {"DELETE": WHOLE} if backend.user_table is None else {}  # dropping a dead job deletes no row of a side-car
    jobs = {"SELECT": WHOLE, **_updates(_written(backend.roles)), **delete}
    if backend.user_table is not None:
        # A reclaim inserts the first row of a job, or keeps the one that is there: some databases want UPDATE for that.
        jobs = {**jobs, "INSERT": WHOLE, "UPDATE": WHOLE}
    source: TableRights = {} if backend.user_table is None else {backend.source.table: {"SELECT": WHOLE}}
    some: dict[str, Columns] = {"SELECT": WHOLE, "UPDATE": WHOLE, "DELETE": WHOLE}
    owners: TableRights = {backend.owners: some} if backend.by_lease else {}
    everything = {"SELECT": WHOLE, "INSERT": WHOLE, "UPDATE": WHOLE, "DELETE": WHOLE}
    queues: TableRights = {backend.queues: everything}
    return {backend.roles.table: jobs, **source, **owners, **_batches(backend, some), **queues}


def _batches(backend: Backend, written: dict[str, Columns]) -> TableRights:
    """The rights on the open batches: `written` if they are the claims. Who claims otherwise looks whether others have
    some.
    """
    if backend.roles.batches is not None:
        return {backend.batches: written}
    checks = backend.by_lease or backend.source.batches is not None
    return {backend.batches: {"SELECT": WHOLE}} if checks else {}


def _locking(backend: Backend, roles: ColumnRoles, rights: dict[str, Columns]) -> dict[str, Columns]:
    """The rights, and one to update the key, which nothing writes, where a lock needs another right than these."""
    needed = backend.dialect.access_rights.locking
    if not needed or needed & rights.keys():
        return rights
    return {**rights, **_updates(tuple(column.name for column in roles.key))}


def _written(roles: ColumnRoles) -> Columns:
    """The columns that are written after a job was enqueued."""
    columns = (getattr(roles, role) for role in WRITTEN)
    return tuple(column.name for column in columns if column is not None)


def _updates(columns: Columns) -> dict[str, Columns]:
    return {"UPDATE": columns} if columns else {}
