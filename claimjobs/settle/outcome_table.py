"""OutcomeTable: where outcomes are written, in the table of the jobs or in its side-car."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import sqlalchemy as sa

from claimjobs.claim.record import ClaimRecord
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.error_translation import UNSENDABLE
from claimjobs.database.statement_size import MOST_BYTES, bytes_of, check_size, cut, most_keys
from claimjobs.dialects import Key
from claimjobs.errors import BadArgument, ColumnMissing, WriteSwallowed
from claimjobs.job import key_of
from claimjobs.options import LEAVE, Finish
from claimjobs.settle.outcomes import MANY, Outcomes
from claimjobs.statements import enqueue, owners, settle, side_car, stored_jobs
from claimjobs.statements.find import columns_of
from claimjobs.table.backend import Backend
from claimjobs.table.columns import DEAD, DONE, ENDED, UNCLAIMED

OnDoneWord = Finish | Literal["leave"]

FEW: Final = 200
"""The most jobs of one statement that has a value for each job: a CASE of n branches for n rows costs n * n."""


class OutcomeWrite(CompiledStatement):
    """A statement that writes outcomes of the jobs `keys`."""

    def __init__(self, statement: Any, *, may_miss: bool = False, removes: bool = False) -> None:
        """`may_miss`: it may reach fewer rows than it has keys: an entry in the side-car is there already, or never
        was. `removes`: it deletes rows of the user's table, which others may have deleted before.
        """
        super().__init__(statement)
        self.may_miss, self.removes = may_miss, removes


class ResultWrite(OutcomeWrite):
    """A statement with values of the user's. If one cannot be sent, that is about a row, whoever finds it out: a
    StatementError, as SQLAlchemy raises it.
    """

    def count(self, connection: sa.Connection, given: Mapping[str, Any]) -> int:
        try:
            return super().count(connection, given)
        except UNSENDABLE as error:
            raise sa.exc.StatementError(str(error), str(self.statement), given, error) from error


class OutcomeTable(ABC):
    """The statements that write outcomes of jobs. Each has the guard of the record of claims."""

    done: Mapping[OnDoneWord, Sequence[OutcomeWrite]]
    """The statements for done jobs, by what happens to these."""
    before_failures: Sequence[OutcomeWrite] = ()
    """The statements that come before those for failed jobs and suspects."""
    result_columns: Sequence[str]
    """The columns of the user's that can be written with jobs that are done and kept."""
    to_reclaim: sa.Select[Any]
    """Lock, where needed, the jobs of a dead owner `me` that can be reclaimed now: their keys, then attempts."""
    held: sa.Select[Any]
    """The keys of all jobs that a dead owner `me` holds, also of those that another session has locked."""

    def __init__(self, backend: Backend, record: ClaimRecord) -> None:
        self.name = backend.source.name
        """The name of the queue."""
        self.roles, self.dialect = backend.roles, backend.dialect
        self.record = record
        self._now = now = record.settled_at
        self._target = target = settle.SettleGuard(self.roles, self.dialect, record.guard)
        self.many = int(min(MANY, most_keys(self.roles.key, self.dialect)))
        """The most keys of one statement."""
        # If the row does not name the owner, nothing is to be written: a row lock ends, or a claim row is deleted.
        self.released = [OutcomeWrite(settle.release(target))] if record.names_owner else []
        # A claim that locks keys, and no rows, leaves them to whoever cancels or deletes a job.
        lockable = replace(target, guard=sa.not_(self.roles.state.row_says(DEAD))) if target.is_lock else target
        self._lock_mine = settle.lock_mine(lockable)
        self.done_now = settle.those(target, self.roles.state.row_says(DONE))
        self.still_there = columns_of(backend.source, self.dialect, backend.source.key)
        self._to_run_again = None if self.roles.run_again is None else enqueue.to_run_again(self.roles, self.dialect)
        self.renew = OutcomeWrite(enqueue.renew(self.roles, self.dialect, now))
        """The statement for jobs that run once more."""

    def settle_done(self, write: OutcomeWrite) -> CompiledStatement | None:
        """The statement that settles jobs that are all done, and returns their keys; None where several do that."""
        if not self.dialect.returns_what_it_writes:
            return None
        return CompiledStatement(self.record.also_take_out(write.statement.returning(*self.roles.key)))

    @abstractmethod
    def keep_statements(self, columns: Mapping[Key, Mapping[str, Any]]) -> Sequence[OutcomeWrite]:
        """The statements that keep done jobs with these values of the same columns."""

    def writes(
        self, connection: sa.Connection, outcomes: Outcomes, done: Sequence[OutcomeWrite]
    ) -> Iterator[tuple[OutcomeWrite, dict[str, Any]]]:
        """The statements for these outcomes, each with its parameters. `done`: those for done jobs. Raises
        StatementError for values of other columns of a job that are too large to be sent.
        """
        plain: Collection[Key] = outcomes.done
        if columns := outcomes.columns:
            sizes = {key: sum(map(bytes_of, given.values())) for key, given in columns.items()}
            check_size(connection, self.dialect, max(sizes.values()))
            alike: defaultdict[tuple[str, ...], dict[Key, int]] = defaultdict(dict)
            for key, given in columns.items():
                alike[tuple(sorted(given))][key] = sizes[key]
            for some in (some for each in alike.values() for some in _cut_by_size(each)):
                for write in self.keep_statements({key: columns[key] for key in some}):
                    yield write, {"claimjobs_keys": some}
            plain = [key for key in outcomes.done if key not in columns]
        each = ((done, plain), (self.released, outcomes.released), (self.before_failures, outcomes.failures))
        for write, keys in ((write, keys) for writes, keys in each for write in writes):
            yield from ((write, {"claimjobs_keys": some}) for some in cut(keys, self.many))
        for statement, failures in (
            (settle.retry, outcomes.retried),
            (settle.mark_dead, outcomes.dead),
            (settle.suspect, outcomes.suspects),
        ):
            for keys in _cut_by_size({key: bytes_of(failure.error or "") for key, failure in failures.items()}):
                update = statement(self._target, self._now, {key: failures[key] for key in keys})
                yield OutcomeWrite(update), {"claimjobs_keys": keys}

    def to_run_again(self, connection: sa.Connection, outcomes: Outcomes) -> set[Key]:
        """Those of the jobs that have ended, which are locked, that must run once more."""
        if self._to_run_again is None:
            return set()
        ended = (key for state in ENDED for key in outcomes.kinds[state])
        return set(keys_for(connection, self._to_run_again, ended, self.many))

    @abstractmethod
    def lock(self, connection: sa.Connection, me: int, taken_out: set[Key], keys: Sequence[Key]) -> set[Key]:
        """Lock the rows of these jobs: the keys of those for which outcomes may be written."""

    def still_held(self, connection: sa.Connection, me: int, keys: Iterable[Key]) -> set[Key]:
        """Those of these jobs whose row says that they are still as `me` has claimed them."""
        return set(keys_for(connection, self._lock_mine, keys, self.many, **self.record.guard_parameters(me)))

    @abstractmethod
    def lost(self, connection: sa.Connection, me: int, keys: Sequence[Key]) -> set[Key]:
        """Those of these jobs, which `me` had claimed, whose row says that it does not hold them any more."""

    @abstractmethod
    def must_reach(self, connection: sa.Connection, write: OutcomeWrite, reached: int, keys: list[Key]) -> bool:
        """A write reached fewer rows than it has keys: whether some of its jobs may be unwritten. Raises WriteSwallowed
        if no owner in the row tells which.
        """


class JobsTable(OutcomeTable):
    """In the table of the jobs."""

    def __init__(self, backend: Backend, record: ClaimRecord) -> None:
        super().__init__(backend, record)
        self.result_columns = [column.name for column in self.roles.payload]
        self.done = {"delete": [OutcomeWrite(settle.delete(self._target))], LEAVE: self.released}
        if DONE in self.roles.state.can:
            self.done["keep"] = [OutcomeWrite(settle.keep(self._target, self._now))]
        self._still_mine = settle.still_mine(self._target)
        self.to_reclaim, self.held = owners.to_reclaim(self.roles), owners.held(self.roles)

    def keep_statements(self, columns: Mapping[Key, Mapping[str, Any]]) -> Sequence[OutcomeWrite]:
        return [ResultWrite(settle.keep(self._target, self._now, columns))]

    def lock(self, connection: sa.Connection, me: int, taken_out: set[Key], keys: Sequence[Key]) -> set[Key]:
        return taken_out & self.still_held(connection, me, keys)

    def lost(self, connection: sa.Connection, me: int, keys: Sequence[Key]) -> set[Key]:
        mine = keys_for(connection, self._still_mine, keys, self.many, **self.record.guard_parameters(me))
        return set(keys).difference(mine)

    def must_reach(self, connection: sa.Connection, write: OutcomeWrite, reached: int, keys: list[Key]) -> bool:
        if not self.record.names_owner:
            raise WriteSwallowed(self.name, "the settle", (reached, len(keys)))
        return True


class SideCarTable(OutcomeTable):
    """In the side-car of a table that must not be altered. A claim has written no row of it."""

    def __init__(self, backend: Backend, record: ClaimRecord, also_writes: Sequence[str]) -> None:
        """`also_writes`: columns of the user's table. Raises ColumnMissing, and BadArgument for one of the key."""
        super().__init__(backend, record)
        self.result_columns, source = also_writes, backend.source
        for column in also_writes:
            if column not in source.columns:
                raise ColumnMissing(source.name, column, "SideCar(also_writes=...)", source.quote)
            if column in {part.name for part in source.key}:
                raise BadArgument(f"column {column!r} of table {source.name!r} is part of its key: leave out this one")
        self._pair = pair = side_car.SideCarJoin(source, self.roles, self.dialect, self._now)
        delete = OutcomeWrite(settle.delete(self._target), may_miss=True)
        remove = OutcomeWrite(stored_jobs.delete(source, self.dialect, ()), removes=True)
        self.done = {"keep": [OutcomeWrite(side_car.finish(pair))], "delete": [delete, remove]}
        self.before_failures = [OutcomeWrite(side_car.note(pair), may_miss=True)]
        self._ended = settle.those(self._target, ~self.roles.state.row_says(UNCLAIMED))
        self.to_reclaim = side_car.to_reclaim(pair)  # most jobs have no row in the side-car
        self.held = self.to_reclaim.with_only_columns(*source.key)

    def settle_done(self, write: OutcomeWrite) -> None:
        """None: a statement writes only one of the two tables."""

    def keep_statements(self, columns: Mapping[Key, Mapping[str, Any]]) -> Sequence[OutcomeWrite]:
        return [ResultWrite(side_car.also_write(self._pair, columns), may_miss=True), *self.done["keep"]]

    def lock(self, connection: sa.Connection, me: int, taken_out: set[Key], keys: Sequence[Key]) -> set[Key]:
        return taken_out - self.lost(connection, me, keys)

    def lost(self, connection: sa.Connection, me: int, keys: Sequence[Key]) -> set[Key]:
        return set(keys_for(connection, self._ended, keys, self.many))

    def must_reach(self, connection: sa.Connection, write: OutcomeWrite, reached: int, keys: list[Key]) -> bool:
        """Not if the row of the user's table was deleted: then it gets no entry."""
        if write.may_miss:
            return False
        there = keys_for(connection, self.still_there, keys, self.many)
        if write.removes and there:
            raise WriteSwallowed(self.name, "the settle", (len(keys) - len(there), len(keys)), sorted(there, key=str))
        if not write.removes and reached < len(there):
            raise WriteSwallowed(self.name, "the settle", (reached, len(keys)))
        return False


def outcome_table(backend: Backend, record: ClaimRecord, also_writes: Sequence[str] = ()) -> OutcomeTable:
    """Where the outcomes of a queue are written. `also_writes`: as `SideCar.also_writes`."""
    return SideCarTable(backend, record, also_writes) if backend.has_side_car else JobsTable(backend, record)


def _cut_by_size(sizes: Mapping[Key, int]) -> Iterator[list[Key]]:
    """The keys in their order, in lists of at most FEW, and of at most MOST_BYTES with their values of these sizes."""
    some: list[Key] = []
    size = 0
    for key, own in sizes.items():
        # A statement has a key several times, in the conditions of its values.
        more = 5 * bytes_of(key) + own
        if some and (len(some) == FEW or size + more > MOST_BYTES):
            yield some
            some, size = [], 0
        some.append(key)
        size += more
    if some:
        yield some


def keys_for(connection: sa.Connection, statement: Any, keys: Iterable[Key], many: int = MANY, **by: Any) -> list[Key]:
    """The keys that a statement returns for these keys, of which it has so many at once. `by`: its other parameters."""
    found = (connection.execute(statement, {"claimjobs_keys": some, **by}) for some in cut(keys, many))
    return [key_of(row) for rows in found for row in rows]
