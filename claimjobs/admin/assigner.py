"""Assigns rows to workers.

The worker's value is written into a unique column of its row. The unique index is the guarantee: two transactions
cannot both commit one value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import sqlalchemy as sa

from claimjobs.claim.find_and_lock import RowLocks
from claimjobs.claim.row_reader import JobReader
from claimjobs.claim.strategy import ClaimRequest
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Dialect, dialect_of
from claimjobs.errors import BadArgument, ColumnMissing, ColumnUnfit, UnfitTable, unique_index
from claimjobs.job import Job
from claimjobs.statements import assign as statements
from claimjobs.statements.assign import ALREADY, ASSIGNED, BUSY, NOTHING
from claimjobs.statements.find import Selection
from claimjobs.table.backend import Backend
from claimjobs.table.job_state import Column
from claimjobs.table.roles import ColumnRoles, quote_of

Outcome = Literal["assigned", "already assigned", "nothing free", "busy"]
Result = TypeVar("Result")

TRIES: Final = 5
"""How often the unique index may refuse a value that no row shows, before the outcome is `busy`."""
CANDIDATES: Final = 64
"""How many free rows to read where an order is given: other transactions may have locked some of them."""


@dataclass(frozen=True)
class Assignment:
    """The result of `assign` or `pair`."""

    outcome: Outcome
    """`assigned`; `already assigned`: `job` is the worker's row; `nothing free`; `busy`: another transaction has locked
    this value or all free rows, nothing was changed, and the call can be tried again."""
    job: Job | None = None
    """The worker's row."""


class ValueTaken(Exception):
    """The unique index refused a value."""

    def __init__(self, index: str | None) -> None:
        super().__init__(index)
        self.index = index


class StillLocked(Exception):
    """Another transaction kept the value or the row locked for longer than the lock timeout."""


class AssignStrategy(ABC):
    """A way to assign a row to a worker, in the caller's transaction."""

    @abstractmethod
    def assign(self, connection: sa.Connection, worker: Any) -> Assignment:
        """Assign a row to the worker, if it has none."""


class AssignInOneStatement(AssignStrategy):
    """For databases with UPDATE ... RETURNING inside a CTE."""

    def __init__(self, backend: Backend, selection: Selection) -> None:
        self._reader = JobReader(backend.roles)
        self._assign = statements.assign(backend.roles, backend.dialect, selection)

    def assign(self, connection: sa.Connection, worker: Any) -> Assignment:
        outcome, *row = connection.execute(self._assign, {"claimjobs_worker": worker}).one()
        return Assignment(outcome, self._reader.job(row) if outcome in (ASSIGNED, ALREADY) else None)


class LockThenAssign(AssignStrategy):
    """For other databases. The unique index refuses a worker that has a row."""

    def __init__(self, backend: Backend, selection: Selection, index: str | None) -> None:
        roles, dialect = backend.roles, backend.dialect
        self._roles = roles
        self._reader = JobReader(roles)
        self._give = statements.give(roles, dialect)
        self._of_worker = statements.of_worker(roles)
        self._is_any_free = statements.is_any_free(roles, selection)
        self._lock_any = statements.lock_free(roles, dialect, selection, index)
        self._lock_in_order = None
        if selection.order:
            # Find, then lock, as a claim does: one statement that sorts and locks would lock all free rows.
            free = Selection(statements.free_rows(roles, selection), selection.order)
            self._lock_in_order = RowLocks().locks(backend, free)

    def assign(self, connection: sa.Connection, worker: Any) -> Assignment:
        free = self._lock(connection)
        if free is None:
            return self._why_none(connection, worker)
        connection.execute(self._give, {"claimjobs_keys": [free.key], "claimjobs_worker": worker})
        given = {_assignee(self._roles).name: worker}
        return Assignment(ASSIGNED, self._reader.job(list(free.values()), given))

    def _lock(self, connection: sa.Connection) -> Job | None:
        if self._lock_in_order is not None:
            return next(iter(self._lock_in_order.lock(connection, ClaimRequest(1, CANDIDATES)).jobs), None)
        row = connection.execute(self._lock_any).first()
        return None if row is None else self._reader.job(row)

    def _why_none(self, connection: sa.Connection, worker: Any) -> Assignment:
        row = connection.execute(self._of_worker, {"claimjobs_worker": worker}).first()
        if row is not None:
            return Assignment(ALREADY, self._reader.job(row))
        return Assignment(BUSY if connection.scalar(self._is_any_free) else NOTHING)


class Assigner:
    """Assigns rows of one table, through one connection, a short transaction each."""

    def __init__(self, connector: Connector, backend: Backend) -> None:
        """Raises ColumnUnfit, or UnfitTable without a unique index."""
        self.backend = backend
        self._connector = connector
        self._roles, self._dialect = backend.roles, backend.dialect
        column = _assignee(self._roles)
        self._index = connector.transaction(lambda connection: index_over(connection, [column]))
        self._has_unique_key = False
        self._reader = JobReader(self._roles)
        self._of_worker = statements.of_worker(self._roles)
        self._unassign = statements.unassign(self._roles, self._dialect, self._index)

    def strategy(self, selection: Selection) -> AssignStrategy:
        """The strategy with the fewest statements that the database can do. It can be used again for this selection."""
        if self._dialect.claims_in_one_statement:
            return AssignInOneStatement(self.backend, selection)
        return LockThenAssign(self.backend, selection, self._index)

    def assign(self, worker: Any, strategy: AssignStrategy) -> Assignment:
        """Assign a row to the worker, if it has none."""
        self._check(worker)
        given = {"claimjobs_worker": worker}
        return self._settled(lambda connection: strategy.assign(connection, worker), self._of_worker, given)

    def unassign(self, worker: Any) -> bool:
        """Free the worker's row; return whether it had one."""
        self._check(worker)
        given = {"claimjobs_worker": worker}
        return self._connector.write(self._unassign, given) > 0

    def pair(self, values: Mapping[str, Any]) -> Assignment:
        """Insert a row whose key and whose worker are both new."""
        for name in values:
            if name not in self._roles.columns:
                raise ColumnMissing(self._roles.name, name, "this pair", self._roles.quote)
        self._check(values.get(_assignee(self._roles).name))
        self._need_unique_key()
        return self._settled(lambda c: self._insert(c, values), statements.of_either(self._roles, values), {})

    def close(self) -> None:
        """Close the connection."""
        self._connector.close()

    def _need_unique_key(self) -> None:
        if not self._has_unique_key:
            self._connector.transaction(lambda connection: index_over(connection, self._roles.key))
            self._has_unique_key = True

    def _insert(self, connection: sa.Connection, values: Mapping[str, Any]) -> Assignment:
        insert, columns = sa.insert(self._roles.table).values(values), self._roles.table.columns
        if connection.dialect.insert_returning:
            return Assignment(ASSIGNED, self._reader.job(connection.execute(insert.returning(*columns)).one()))
        connection.execute(insert)
        worker = {"claimjobs_worker": values[_assignee(self._roles).name]}
        return Assignment(ASSIGNED, self._reader.job(connection.execute(self._of_worker, worker).one()))

    def _settled(
        self, work: Callable[[sa.Connection], Assignment], taken: sa.Select[Any], given: Mapping[str, Any]
    ) -> Assignment:
        """The result of `work`; if the unique index refuses the value, the row that has it."""
        try:
            for _ in range(TRIES):
                try:
                    return self._run(work)
                except ValueTaken as taken_already:
                    row = self._run(lambda connection: connection.execute(taken, given).first())
                    if row is not None:
                        return Assignment(ALREADY, self._reader.job(row))
                    self._check_index(taken_already)
        except StillLocked:
            pass
        return Assignment(BUSY)

    def _check_index(self, taken: ValueTaken) -> None:
        """Raises BadArgument if an index over other columns refused the value: another try would end in the "
        "same way."""
        known = self._run(lambda connection: _indexes(connection, self._roles, self._dialect.primary))
        if taken.index is None or taken.index in known:
            return
        cause = taken.__cause__ or taken
        raise BadArgument(
            f"another unique index of table {self._roles.name!r}, {taken.index!r}, refuses this row ({reason(cause)}): "
            "give a value that no other row has, or a `where` that leaves such rows out"
        ) from cause

    def _run(self, work: Callable[[sa.Connection], Result]) -> Result:
        return self._connector.transaction(lambda connection: _translated(connection, work, self._dialect))

    def _check(self, worker: Any) -> None:
        if worker is None:
            column = _assignee(self._roles)
            raise ValueError(f"{column.name} of table {self._roles.name!r} is NULL in a free row: give a value")


def _translated(connection: sa.Connection, work: Callable[[sa.Connection], Result], dialect: Dialect) -> Result:
    try:
        return work(connection)
    except sa.exc.DBAPIError as error:
        if dialect.errors.code(error) in dialect.errors.duplicate:
            raise ValueTaken(dialect.errors.refusing_index(error)) from error
        if dialect.errors.transient_kind(error) == "lock timeout":
            raise StillLocked from error
        raise


def _assignee(roles: ColumnRoles) -> Column:
    if roles.assignee is None:
        raise ColumnUnfit(
            f"table {roles.name!r} has no column with the role assignee, which holds the worker of a row: name one "
            "that is unique, and NULL in a free row, as in Columns(assignee=...)"
        )
    return roles.assignee


def index_over(connection: sa.Connection, columns: Sequence[Column]) -> str | None:
    """The unique index over exactly these columns; None: the primary key. Raises UnfitTable without one."""
    table, names = columns[0].table, {column.name for column in columns}
    assert isinstance(table, sa.Table)  # noqa: S101 - the columns of a queue's table
    inspector = sa.inspect(connection)
    if set(inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]) == names:
        return None
    unused = dialect_of(connection).table_rules.unused_indexes(connection, table)
    for index in inspector.get_indexes(table.name, schema=table.schema):
        fits = index["unique"] and set(index["column_names"]) == names and _is_whole(index)
        if fits and index["name"] not in unused:
            return index["name"]
    over = [column.name for column in columns]
    raise UnfitTable(
        f"{', '.join(over)} of table {table.fullname!r} has no unique index of its own, so that one worker could have "
        f"two rows, or one row two workers: {unique_index(table.fullname, over, quote_of(connection))}"
    )


def _indexes(connection: sa.Connection, roles: ColumnRoles, unnamed: str | None) -> set[str | None]:
    """The names of the indexes over only the worker, or only the key; `unnamed` is the name of any primary key."""
    table, inspector = roles.table, sa.inspect(connection)
    primary = inspector.get_pk_constraint(table.name, schema=table.schema)
    found: list[Any] = [(primary["name"] or unnamed, primary["constrained_columns"])]
    found += [(i["name"], i["column_names"]) for i in inspector.get_indexes(table.name, schema=table.schema)]
    ours = ({_assignee(roles).name}, {column.name for column in roles.key})
    return {name for name, columns in found if set(columns) in ours}


def _is_whole(index: Any) -> bool:
    """Whether the index has all rows except free ones."""
    conditions = [value for option, value in index.get("dialect_options", {}).items() if option.endswith("_where")]
    free = f"{index['column_names'][0]} is not null"
    return all(str(where).strip("()").replace('"', "").lower() == free for where in conditions)
