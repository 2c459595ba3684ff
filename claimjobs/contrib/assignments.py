"""Rows that are given to workers: a worker has one row at most, and a row one worker at most.

    tasks = Assignments("postgresql://...", "task_pool", worker="tid")
    assignment = tasks.assign(7)

`assign` writes the worker's value into a unique column of a free row, where it stays until `unassign`. The unique index
is the guarantee: two transactions cannot both commit one value. SKIP LOCKED only finds a row that no other transaction
writes at this moment.

An assignment is no claim. It has no owner and no lease, and it stays when a worker dies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import sqlalchemy as sa

from claimjobs.database.connect import Bind, connected, dialect_for, engine_of
from claimjobs.database.connection import Connector
from claimjobs.dialects import Dialect, dialect_of
from claimjobs.errors import ColumnMissing, CrossedFork, KeyUnfit, UnfitTable, unique_index
from claimjobs.options import Liveness
from claimjobs.report import Report
from claimjobs.table.predicates import predicates_of
from claimjobs.table.reflection import resolve
from claimjobs.table.roles import is_partial, quote_of

Outcome = Literal["assigned", "already assigned", "nothing free", "busy"]

VALUE: Final = "claimjobs_worker"
TRIES: Final = 5
"""How often the index may refuse a value whose row is gone when it is read, before the outcome is `busy`."""


@dataclass(frozen=True)
class Assignment:
    """The result of `assign` or `pair`."""

    outcome: Outcome
    """`assigned`; `already assigned`: `row` is the one that has the value; `nothing free`; `busy`: another transaction
    has locked this value or all free rows, nothing was changed, and the call can be made again."""
    row: Mapping[str, Any] | None = None


class Assignments:
    """A table whose rows are given to workers, through one connection, a short transaction each.

    `worker` names the column of the worker: it has a unique index of its own, and is NULL in a free row. `where` says
    which free rows may be given. Any of them is. Several threads may use it; another process needs one of its own
    (CrossedFork).
    """

    def __init__(
        self,
        bind: Bind,
        table: str | sa.Table,
        *,
        worker: str,
        where: sa.ColumnElement[bool] | sa.TextClause | None = None,
    ) -> None:
        """Reads the table. Raises ConnectionFailed, TableMissing, ColumnMissing, KeyUnfit without a primary key,
        UnfitTable without the index, and BadPredicate, as a Queue does."""
        self.engine = engine_of(bind)
        self._dialect = dialect_for(self.engine)
        with connected(self.engine) as connection:
            self._table = resolve(connection, table)
            if worker not in self._table.columns:
                raise ColumnMissing(self._table.fullname, worker, "assigning its rows to workers", quote_of(connection))
            self._column = self._table.columns[worker]
            index = unique_index_of(connection, self._table, self._column)
            key = sa.inspect(connection).get_pk_constraint(self._table.name, schema=self._table.schema)
        if not key["constrained_columns"]:
            raise KeyUnfit(f"table {self._table.fullname!r} has no primary key, so no row of it can be named: add one")
        self._ours = {index, key["name"] or self._dialect.primary}
        self._process = os.getpid()
        self._connector = Connector(self.engine, self._dialect, Liveness(), Report())

        is_free = sa.and_(self._column.is_(None), *predicates_of(where, self._table, self._dialect.lexis))
        value = sa.bindparam(VALUE, type_=self._column.type)
        mine = self._column == value
        self._mine = sa.select(self._table).where(mine)
        self._any_free = sa.select(sa.exists().where(is_free).select_from(self._table))
        self._lock = lock_free(self._dialect, self._column, value, is_free=is_free, index=index)
        self._unassign = self._dialect.by_key(sa.update(self._table).where(mine).values({self._column: None}), index)
        # Where one statement can do it: lock a free row and give it to the worker.
        locked = self._lock.with_only_columns(*self._table.primary_key).cte("free").prefix_with("MATERIALIZED")
        same = (column == locked.c[column.key] for column in self._table.primary_key)
        give = sa.update(self._table).where(*same).values({self._column: value})
        self._give = give.returning(*self._table.columns)

    def assign(self, worker: Any) -> Assignment:
        """Give a free row to a worker that has none.

        If another transaction writes the same value at this moment, this waits for it, for 2 seconds at most. Raises
        IntegrityError if another unique index refuses the value.
        """
        given = self._checked(worker)

        def assign(connection: sa.Connection) -> Assignment:  # in as few statements as the database can do
            if self._dialect.claims_in_one_statement:
                row = first_row(connection, self._give, given)
            elif (row := first_row(connection, self._lock, given)) is not None:
                key = (column == row[column.name] for column in self._table.primary_key)
                give = sa.update(self._table).where(*key).values({self._column: worker})
                connection.execute(self._dialect.by_key(give, None))
                row[self._column.name] = worker
            if row is not None:
                return Assignment("assigned", row)
            if mine := first_row(connection, self._mine, given):
                return Assignment("already assigned", mine)
            return Assignment("busy" if connection.scalar(self._any_free) else "nothing free")

        return self._settled(assign, self._mine, given)

    def unassign(self, worker: Any) -> bool:
        """Free the worker's row; return whether it had one."""
        return self._connector.write(self._unassign, self._checked(worker)) > 0

    def pair(self, values: Mapping[str, Any]) -> Assignment:
        """Insert a row whose primary key and whose worker are both new, as in `{"tid": 1, "taskid": 2}`.

        If the table has either, the outcome is `already assigned`, with that row. Raises IntegrityError if another
        unique index refuses the row.
        """
        self._checked(values.get(self._column.name))
        key = sa.and_(*(column == values.get(column.name) for column in self._table.primary_key))
        taken = sa.select(self._table).where(sa.or_(self._column == values[self._column.name], key))

        def insert(connection: sa.Connection) -> Assignment:
            connection.execute(sa.insert(self._table).values(values))
            return Assignment("assigned", dict(values))

        return self._settled(insert, taken, {})

    def close(self) -> None:
        """Close the connection. Assigned rows stay assigned. The object can be used again."""
        self._connector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside ------------------------------------------------------------------------------------------

    def _settled(
        self, work: Callable[[sa.Connection], Assignment], taken: sa.Select[Any], given: Mapping[str, Any]
    ) -> Assignment:
        """The result of `work`; or the row that has the value, if one of our indexes refuses it."""

        def run(connection: sa.Connection) -> Assignment:
            try:
                return work(connection)
            except sa.exc.DBAPIError as error:
                if self._dialect.errors.waited_for_lock(error):
                    raise StillLocked from error
                raise

        for _ in range(TRIES):
            try:
                return self._connector.transaction(run)
            except StillLocked:
                break
            except sa.exc.IntegrityError as error:
                if self._dialect.errors.refusing_index(error, self._table.name) not in self._ours:
                    raise
            if rows := self._connector.rows(taken, given):
                return Assignment("already assigned", dict(rows[0]._mapping))
        return Assignment("busy")

    def _checked(self, worker: Any) -> dict[str, Any]:
        """The parameter of the statements. Raises CrossedFork, and ValueError for None, which means a free row."""
        if self._process != os.getpid():
            raise CrossedFork
        if worker is None:
            raise ValueError(f"{self._column.name} of {self._table.name!r} is NULL in a free row: give a value")
        return {VALUE: worker}


def first_row(connection: sa.Connection, statement: Any, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The first row that a statement returns, by the names of its columns."""
    row = connection.execute(statement, given).first()
    return None if row is None else dict(row._mapping)


class StillLocked(Exception):
    """Another transaction kept the value locked for longer than the lock timeout."""


def lock_free(
    dialect: Dialect, column: sa.Column[Any], value: Any, *, is_free: sa.ColumnElement[bool], index: str
) -> sa.Select[Any]:
    """Lock a free row that nobody else has locked, unless the worker has a row.

    The row is found through the index of the column: by another one a planner would first read all assigned rows. If a
    sort would lock the rows that it reads, the dialect names the index; if not, the order does. It is FOR UPDATE, not
    FOR NO KEY UPDATE, because a column of a unique index is about to change.
    """
    others = column.table.alias("mine")
    has_row = sa.exists().where(others.c[column.key] == value).select_from(others)
    rows = dialect.by_key(sa.select(column.table).where(is_free, ~has_row), index)
    if dialect.locks_in_order:
        rows = rows.order_by(column)
    return rows.limit(sa.literal(1, literal_execute=True)).with_for_update(skip_locked=True, of=column.table)


def unique_index_of(connection: sa.Connection, table: sa.Table, column: sa.Column[Any]) -> str:
    """The unique index over this column alone that has every row, and that statements can use."""
    unused = dialect_of(connection).table_rules.unused_indexes(connection, table)
    for index in sa.inspect(connection).get_indexes(table.name, schema=table.schema):
        name, is_ours = index["name"], index["unique"] and index["column_names"] == [column.name]
        if is_ours and name is not None and name not in unused and not is_partial(index):
            return name
    raise UnfitTable(
        f"column {column.name!r} of table {table.fullname!r} has no unique index of its own, so that one worker could "
        f"have two rows: {unique_index(table.fullname, [column.name], quote_of(connection))}"
    )
