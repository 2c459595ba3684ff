"""Settle: write the outcomes of a batch, one statement for each kind of outcome, each guarded by the owner's id."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal, TypeVar

import sqlalchemy as sa

from claimjobs.batch.open_jobs import OpenJobs
from claimjobs.batch.still_due import StillDueRows
from claimjobs.callables import unfinished
from claimjobs.claim.strategy import Phase
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.connection import Connector
from claimjobs.dialects import Dialect, Key
from claimjobs.errors import BadArgument, DoneUndecided, WriteSwallowed, key_unequal
from claimjobs.job import Job, key_of
from claimjobs.options import FINISHES, LEAVE, Finish
from claimjobs.report import Report
from claimjobs.statements import settle as statements
from claimjobs.statements import side_car
from claimjobs.table.columns import DONE
from claimjobs.table.roles import ColumnRoles

OnDone = Finish | Literal["leave"] | Callable[[sa.Connection, Sequence[Job]], Finish | None]
"""What happens to done jobs. A function is called in the settle's transaction, with the jobs, which are locked and
still held. It returns "delete" or "keep"; None: the default."""
SettleStatement = tuple[CompiledStatement, dict[str, Any]]

Value = TypeVar("Value")

ESCAPED: Final = "'\"\\\n\r\0\x1a"
"""Characters before which a driver may write another one."""
LONGEST_KEY: Final = 768
"""The most characters of a text in an index, at 4 bytes each."""

MANY: Final = 10_000
"""The most keys of one statement: a protocol may count parameters in 16 bits."""
FEW: Final = 200
"""The most jobs of one statement that has a value for each job: a CASE of n branches for n rows costs n * n."""
MOST_BYTES: Final = 500_000
"""About the most bytes of errors and of keys in one statement. A server that gets a packet larger than its limit, which
is 1 MB or more, ends the session."""


@dataclass
class Outcomes:
    """The outcomes of the jobs of a batch, by their keys."""

    done: list[Key] = field(default_factory=list)
    released: list[Key] = field(default_factory=list)
    retried: dict[Key, float] = field(default_factory=dict)
    """Failed jobs that run again, each with the seconds until then."""
    dead: list[Key] = field(default_factory=list)
    suspects: dict[Key, float] = field(default_factory=dict)
    """Jobs of which one may be the cause of an error, each with the seconds until it runs again."""
    group_size: int = 0
    """How many `suspects` the batch had, if these are only some of them; 0: these are all."""
    isolated: set[Key] = field(default_factory=set)
    """Jobs of `retried` and `dead` that failed only because they were alone when an error named no job."""
    errors: dict[Key, str] = field(default_factory=dict)
    """The error of each job of `retried`, `dead` and `suspects`."""
    stores_texts: bool = True
    """Whether the errors are written. Their column may refuse every text."""
    raised: dict[Key, BaseException] = field(default_factory=dict)
    """The exception behind an error of `retried` and `dead`, where there is one."""
    jobs: Mapping[Key, Job] = field(default_factory=dict)
    """The jobs as they were claimed, where they are known."""
    batch: int = 0
    """The number of the open batch that these jobs are from; 0: not known."""
    losses: int | None = None
    """How often the connection of an owner had been lost before the first try to settle them."""

    def keys(self) -> list[Key]:
        """The keys of all jobs."""
        return [*self.done, *self.released, *self.retried, *self.dead, *self.suspects]

    def __len__(self) -> int:
        return sum(map(len, (self.done, self.released, self.retried, self.dead, self.suspects)))

    @property
    def all_done(self) -> bool:
        """Whether no job has another outcome than done."""
        return not (self.released or self.retried or self.dead or self.suspects)

    @property
    def is_done_batch(self) -> bool:
        """Whether they are those of one batch, whose jobs are all done, and one statement can write them."""
        return bool(self.batch) and self.all_done and len(self.done) <= MANY

    def count(self, report: Report) -> None:
        """Add them to the report."""
        report.done += len(self.done)
        report.released += len(self.released)
        report.retried += len(self.retried)
        report.dead += len(self.dead)
        report.suspects += len(self.suspects)

    def forget(self, key: Key) -> None:
        """Remove the outcome of a job."""
        self.retried.pop(key, None)
        self.suspects.pop(key, None)
        self.isolated.discard(key)
        self.errors.pop(key, None)
        self.raised.pop(key, None)
        for decided in (self.done, self.released, self.dead):
            if key in decided:
                decided.remove(key)

    def fail(self, key: Key, error: str, wait: float | None) -> None:
        """Add a failed job. It runs again after `wait` seconds; None: it is dead."""
        self.errors[key] = error
        if wait is None:
            self.dead.append(key)
        else:
            self.retried[key] = wait

    def become(self, written: Outcomes) -> None:
        """Replace these outcomes by those that were written."""
        vars(self).update(vars(written))

    def add(self, others: Outcomes) -> None:
        """Add other outcomes, of which none is done."""
        self.released.extend(others.released)
        self.dead.extend(others.dead)
        self.retried.update(others.retried)
        self.suspects.update(others.suspects)
        self.isolated.update(others.isolated)
        self.errors.update(others.errors)
        self.raised.update(others.raised)

    def only(self, held: set[Key]) -> Outcomes:
        """The outcomes of these keys."""
        return Outcomes(
            done=[key for key in self.done if key in held],
            released=[key for key in self.released if key in held],
            retried={key: wait for key, wait in self.retried.items() if key in held},
            dead=[key for key in self.dead if key in held],
            suspects={key: wait for key, wait in self.suspects.items() if key in held},
            group_size=self.group_size or len(self.suspects),
            isolated=self.isolated & held,
            errors={key: error for key, error in self.errors.items() if key in held},
            stores_texts=self.stores_texts,
            raised={key: error for key, error in self.raised.items() if key in held},
            jobs=self.jobs,
        )


class SomeLost(Exception):
    """A write reached fewer jobs than it was meant for."""


class Settler:
    """Writes outcomes for jobs of one table."""

    def __init__(
        self,
        roles: ColumnRoles,
        dialect: Dialect,
        now: sa.ColumnElement[Any],
        on_done: OnDone | None,
        *,
        otherwise: Finish | None = None,
        still_due: StillDueRows | None = None,
        ready: sa.ColumnElement[bool] | None = None,
        locked: bool = False,
        user_table: ColumnRoles | None = None,
    ) -> None:
        """`on_done`: None if no done jobs are settled. `otherwise`: what happens if a function returns None.

        `still_due`, `ready`: with "leave", the rows that are still due, and the predicate that finds them.

        `locked`: the jobs are locked by the transaction that settles, so that the owner's id is no guard.

        `user_table`: if `roles` are those of its side-car.
        """
        if on_done == "keep":
            roles.need_state(DONE, "keeping done jobs")
        self._name = (user_table or roles).name
        self._target = target = statements.SettleGuard(roles, dialect, sa.true() if locked else roles.guard)
        self._open_jobs = None if roles.batches is None else OpenJobs(roles.batches)
        self._is_guarded_by_row = not locked and self._open_jobs is None
        """Whether each write asks in the row of its job whether the owner holds it."""
        self._many = int(min(MANY, most_keys(roles, dialect)))
        """The most keys of one statement."""
        self._now = now
        self._on_done = on_done
        self._otherwise = otherwise
        self._still_due, self._ready = still_due, ready
        self._delete = CompiledStatement(statements.delete(target))
        self._keep = CompiledStatement(statements.keep(target, now))
        self._release = CompiledStatement(statements.release(target))
        self._still_mine, self._ended = statements.still_mine(target), statements.ended(target)
        self._still_there = None if user_table is None else statements.still_there(user_table, dialect)
        pair = None if user_table is None else side_car.SideCarJoin(user_table, roles, dialect, now)
        self._remove = None if pair is None else CompiledStatement(side_car.remove(pair))
        self._note = None
        if pair is not None:  # the claim has written no row of the side-car
            self._note = CompiledStatement(side_car.note(pair))
            self._keep = CompiledStatement(side_car.finish(pair))
        in_one = dialect.returns_what_it_writes and pair is None
        self.settle_batch = self._settling_batch() if in_one else None
        """Settles a batch whose jobs are all done, and closes it. None: several statements do that."""
        self._settle_batch = None if self.settle_batch is None else CompiledStatement(self.settle_batch)

    def settle(
        self,
        connector: Connector,
        me: int,
        outcomes: Outcomes,
        patience: float | None = None,
        *,
        divisible: bool | None = None,
    ) -> set[Key]:
        """Write the outcomes in one transaction; return the keys of the rows in which nothing was written.

        These are jobs that `me` no longer held, and jobs whose write was swallowed (see `batch.refusals`). To write
        outcomes twice does no harm. `divisible`: as `Connector.attempts`; outcomes of several jobs always are.
        """
        divisible = len(outcomes) > 1 or divisible
        try:
            for attempt in connector.attempts(patience, divisible=divisible):
                with attempt as connection:
                    unwritten = self.settle_in(connection, me, outcomes)
        except SomeLost:
            for attempt in connector.attempts(patience, divisible=divisible):
                with attempt as connection:
                    unwritten = self._lock_then_write(connection, me, outcomes)
        return unwritten

    def settle_in(self, connection: sa.Connection, me: int, outcomes: Outcomes) -> set[Key]:
        """Write the outcomes in the caller's transaction; returns as `settle`. Raises SomeLost: roll back then.

        If the database does not return what it wrote, the count shows that some jobs were not written, but not which.
        """
        if self._locks_first:
            return self._lock_then_write(connection, me, outcomes)
        if self._open_jobs is not None:
            return self._take_out_then_write(connection, me, outcomes)
        unwritten: set[Key] = set()
        for statement, values in self._writes(connection, outcomes):
            keys = values["claimjobs_keys"]
            if self._target.dialect.returns_what_it_writes:
                written = {key_of(row) for row in connection.execute(statement.statement, {**values, **self._by(me)})}
                if len(written) < len(keys):
                    unwritten.update(self.missing(keys, written))
            elif statement.count(connection, {**values, **self._by(me)}) != len(keys):
                raise SomeLost
        return unwritten

    def missing(self, keys: Sequence[Key], written: set[Key]) -> set[Key]:
        """The keys of the rows that were not written, if these were. Raises KeyUnfit if writes change keys."""
        missing = set(keys) - written
        if len(missing) + len(written) > len(keys):
            raise key_unequal(self._name, sorted(missing, key=str))
        return missing

    def _take_out_then_write(self, connection: sa.Connection, me: int, outcomes: Outcomes) -> set[Key]:
        if self._settle_batch is not None and outcomes.is_done_batch:
            if self._settle_batch.count(connection, batch_parameters(me, outcomes)) != len(outcomes.done):
                raise SomeLost
            return set()
        keys, held = self._taken_out(connection, me, outcomes)
        for statement, values in self._writes(connection, outcomes if len(held) == len(keys) else outcomes.only(held)):
            reached = statement.count(connection, values)
            if reached < len(values["claimjobs_keys"]) and not self._may_have_no_row(statement):
                raise SomeLost
        return set(keys) - held

    def _taken_out(self, connection: sa.Connection, me: int, outcomes: Outcomes) -> tuple[list[Key], set[Key]]:
        """Take jobs out of their open batches: their keys, and the keys of those that the owner held."""
        keys = outcomes.keys()
        if self._open_jobs is None:
            return keys, set(keys)
        return keys, self._open_jobs.take_out(connection, me, keys, outcomes.batch)

    def _settling_batch(self) -> sa.Delete | sa.Update | None:
        batches = self._target.roles.batches
        if batches is None or self._locks_first or self._on_done is None:
            return None
        settle = self._keep if self._on_done == "keep" else self._delete
        settled: sa.Delete | sa.Update = statements.with_batch(settle.statement, batches)
        return settled

    @property
    def in_one(self) -> sa.Delete | sa.Update | None:
        """The statement that settles jobs that are all done, and returns their keys; None if there is no such one."""
        if self._locks_first or not self._is_guarded_by_row or not self._target.dialect.returns_what_it_writes:
            return None
        settle: sa.Delete | sa.Update = (self._keep if self._on_done == "keep" else self._delete).statement
        return settle

    @property
    def _locks_first(self) -> bool:
        """Whether jobs must be locked before the writes: if a function of the user's is called with them, or if the
        owner is stored in another row, so that the write cannot be guarded by it.
        """
        return (
            callable(self._on_done)
            or self._on_done == LEAVE
            or (self._remove is not None and self._on_done == "delete")
        )

    def reclaim(self, connection: sa.Connection, owner: int, outcomes: Outcomes) -> set[Key]:
        """Write outcomes for an owner that was declared dead, whose jobs this transaction has locked: as
        `write_locked`."""
        self._taken_out(connection, owner, outcomes)
        return self.write_locked(connection, owner, outcomes)

    def write_locked(self, connection: sa.Connection, me: int | None, outcomes: Outcomes) -> set[Key]:
        """Write the outcomes of jobs that this transaction has locked.

        If a statement wrote fewer rows than it was given keys, all its keys are returned: any of them may be unwritten.
        Where row locks are the claim, it raises WriteSwallowed instead; roll back then.
        """
        short: set[Key] = set()
        for statement, values in self._writes(connection, outcomes):
            reached, keys = statement.count(connection, {**values, **self._by(me)}), values["claimjobs_keys"]
            if reached < len(keys) and not self._may_be_short(connection, statement, reached, keys):
                short.update(keys)
        if self._still_due is not None and self._ready is not None:
            for keys in _cut(outcomes.done, self._many):
                self._still_due.find(connection, keys, self._ready)
        return short

    def _may_be_short(
        self, connection: sa.Connection, statement: CompiledStatement, reached: int, keys: list[Key]
    ) -> bool:
        """Whether a write may reach fewer rows than it has keys. Raises WriteSwallowed."""
        if self._may_have_no_row(statement):
            return True
        if statement is self._remove:  # the row may be deleted, but it must not be there still
            if left := sorted(keys_for(connection, self._still_there, keys), key=str):
                raise WriteSwallowed(self._name, "the settle", (len(keys) - len(left), len(keys)), left)
            return True
        if self._is_guarded_by_row:
            return False
        if self._note is None or reached < len(keys_for(connection, self._still_there, keys)):
            raise WriteSwallowed(self._name, "the settle", (reached, len(keys)))
        return True  # a row of the user's table may be deleted, and then none is written beside it

    def _may_have_no_row(self, statement: CompiledStatement) -> bool:
        """Whether a statement is for rows of the side-car that are there already, or may never have been written."""
        return statement is self._note or (self._remove is not None and statement is self._delete)

    def _lock_then_write(self, connection: sa.Connection, me: int, outcomes: Outcomes) -> set[Key]:
        keys, taken_out = self._taken_out(connection, me, outcomes)
        if self._note is None:
            held = taken_out & set(keys_for(connection, self._still_mine, keys, **self._by(me)))
        else:  # a claim wrote no row of the side-car
            held = taken_out - set(keys_for(connection, self._ended, keys))
        short = self.write_locked(connection, me, outcomes.only(held))
        return (set(keys) - held) | set(keys_for(connection, self._still_mine, short, **self._by(me)))

    def _by(self, me: int | None) -> dict[str, int]:
        """The owner's id as a parameter, if it guards the writes."""
        return {"claimjobs_me": me} if me is not None and self._is_guarded_by_row else {}

    # --- the statements --------------------------------------------------------------------------------

    def _writes(self, connection: sa.Connection, outcomes: Outcomes) -> Iterator[SettleStatement]:
        """The statements for these outcomes, each with its parameters."""
        if outcomes.done:
            for statement in self._finish(connection, outcomes):
                yield from ((statement, {"claimjobs_keys": keys}) for keys in _cut(outcomes.done, self._many))
        if self._is_guarded_by_row:  # otherwise nothing is to be written: a row lock ends, a batch is closed
            yield from ((self._release, {"claimjobs_keys": keys}) for keys in _cut(outcomes.released, self._many))
        if outcomes.errors:
            yield from self._failures(outcomes)

    def _finish(self, connection: sa.Connection, outcomes: Outcomes) -> Sequence[CompiledStatement]:
        """The statements for done jobs. A user's function may choose them."""
        wanted = self._on_done
        if callable(wanted):
            wanted = self._answered(wanted(connection, [outcomes.jobs[key] for key in outcomes.done]))
        return self._finishing(wanted)

    def _finishing(self, wanted: Finish | Literal["leave"] | None) -> Sequence[CompiledStatement]:
        if wanted == LEAVE:
            return [self._release] if self._is_guarded_by_row else []
        ways = (self._keep,) if wanted == "keep" else (self._delete, self._remove)
        return [statement for statement in ways if statement is not None]

    def phases(self, me: int, keys: list[Key]) -> list[Phase]:
        """The statements that settle done jobs with these keys. If a user's function chooses them: its default."""
        wanted = self._otherwise if callable(self._on_done) else self._on_done
        given = {"claimjobs_keys": keys, **self._by(me)}
        return [Phase("settle", statement.statement, given) for statement in self._finishing(wanted)]

    def _answered(self, answer: Any) -> Finish:
        """What a user's function chose, after a check: no job may be deleted by mistake."""
        if answer not in (None, *FINISHES):
            found = unfinished(answer) or repr(answer)
            raise BadArgument(f"on_done returned {found}, and nothing was written: return 'delete', 'keep' or None")
        wanted: Finish | None = answer or self._otherwise
        if wanted is None:
            raise DoneUndecided(self._target.roles.name)
        if wanted == "keep":
            self._target.roles.need_state(DONE, "keeping done jobs")
        return wanted

    def _failures(self, outcomes: Outcomes) -> Iterator[SettleStatement]:
        if self._note is not None:
            yield from ((self._note, {"claimjobs_keys": keys}) for keys in _cut(outcomes.errors, self._many))
        texts = outcomes.errors if outcomes.stores_texts else {}
        for keys in _cut_by_size(outcomes.retried, texts):
            waits, errors = _of(keys, outcomes.retried), _of(keys, texts)
            retry = statements.retry(self._target, self._now, errors=errors, delays=waits, isolated=outcomes.isolated)
            yield CompiledStatement(retry), {"claimjobs_keys": keys}
        for keys in _cut_by_size(outcomes.dead, texts):
            dead = statements.mark_dead(self._target, self._now, _of(keys, texts))
            yield CompiledStatement(dead), {"claimjobs_keys": keys}
        for keys in _cut_by_size(outcomes.suspects, texts):
            waits, errors = _of(keys, outcomes.suspects), _of(keys, texts)
            suspect = statements.suspect(self._target, self._now, errors=errors, delays=waits)
            group_size = outcomes.group_size or len(outcomes.suspects)
            yield CompiledStatement(suspect), {"claimjobs_keys": keys, "claimjobs_group_size": group_size}


def batch_parameters(owner: int, outcomes: Outcomes) -> dict[str, Any]:
    """The parameters of `Settler.settle_batch`."""
    done = outcomes.done
    return {
        "claimjobs_me": owner,
        "claimjobs_number": outcomes.batch,
        "claimjobs_meant": len(done),
        "claimjobs_keys": done,
    }


def _of(keys: list[Key], values: Mapping[Key, Value]) -> dict[Key, Value]:
    """The values of these keys, if there are any."""
    return {key: values[key] for key in keys} if values else {}


def _cut(keys: Iterable[Key], size: int) -> Iterator[list[Key]]:
    """The keys in their order, in lists of `size`."""
    rest = iter(keys)
    while some := list(islice(rest, size)):
        yield some


def _cut_by_size(keys: Iterable[Key], texts: Mapping[Key, str]) -> Iterator[list[Key]]:
    """The keys in their order, in lists of at most FEW, and of at most MOST_BYTES with their texts."""
    some: list[Key] = []
    size = 0
    for key in keys:
        # A statement has a key several times, in the conditions of its values.
        more = 5 * _bytes(str(key)) + _bytes(texts.get(key, ""))
        if some and (len(some) == FEW or size + more > MOST_BYTES):
            yield some
            some, size = [], 0
        some.append(key)
        size += more
    if some:
        yield some


def _bytes(text: str) -> int:
    """How many bytes a text has in a statement, if the driver writes it there, and escapes what must be escaped."""
    return len(text.encode()) + sum(map(text.count, ESCAPED))


def most_keys(roles: ColumnRoles, dialect: Dialect) -> float:
    """The most keys of one statement. Infinite for keys without text, and where statements may have any size."""
    texts = [column.type for column in roles.key if isinstance(column.type, (sa.String, sa.types._Binary))]
    if not texts or dialect.sessions.statement_limit is None:
        return math.inf
    # A character is escaped in JSON, and then in the statement: four bytes, at worst seven.
    size = 20 * len(roles.key) + sum(4 * min(type_.length or LONGEST_KEY, LONGEST_KEY) for type_ in texts)
    return max(1, MOST_BYTES // size)


def keys_for(connection: sa.Connection, statement: Any, keys: Iterable[Key], **by: Any) -> list[Key]:
    """The keys that a statement returns for these keys. `by`: its other parameters."""
    found = (connection.execute(statement, {"claimjobs_keys": some, **by}) for some in _cut(keys, MANY))
    return [key_of(row) for rows in found for row in rows]
