"""Settler writes the outcomes of a batch in a transaction; LeaseSettler does so in transactions of its own."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final, Literal, NamedTuple

import sqlalchemy as sa

from claimjobs.callables import unfinished
from claimjobs.claim.strategy import Phase
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import reason
from claimjobs.database.statement_size import cut
from claimjobs.dialects import Key
from claimjobs.errors import BadArgument, DoneUndecided, StatementTimedOut
from claimjobs.job import Job, entry_of, key_of
from claimjobs.key_text import key_in_message
from claimjobs.log_events import RELEASE_FAILED
from claimjobs.options import FINISHES, LEAVE, Finish, Retry
from claimjobs.settle.outcome_table import OutcomeTable, OutcomeWrite, keys_for
from claimjobs.settle.outcomes import Outcomes
from claimjobs.settle.refusals import REFUSALS, SHORTER, SWALLOWED, WriteInHalves, is_of_a_row
from claimjobs.settle.still_due import StillDueRows
from claimjobs.statements import stored_jobs
from claimjobs.statements.settle import Failure
from claimjobs.table.backend import Backend
from claimjobs.table.columns import DONE
from claimjobs.table.values import is_sql

OnDone = Finish | Literal["leave"] | Callable[[sa.Connection, Sequence[Job]], Finish | None]
"""What happens to done jobs. A function is called in the settle's transaction, with the jobs, which are locked and
still held. It returns "delete" or "keep"; None: the default."""

REFUSED_RETRY_SECONDS: Final = 5.0
"""Seconds between two tries to write refused failures. What refuses one may pass: a unique index over waiting jobs does
so while another job with the same values waits."""


log = logging.getLogger("claimjobs.settle")


class SomeLost(Exception):
    """A write reached fewer jobs than it was meant for, or may do so and cannot be rolled back."""


class Settler:
    """Takes jobs out of where their claim is recorded, and writes their outcomes, in the caller's transaction."""

    def __init__(
        self,
        table: OutcomeTable,
        on_done: OnDone | None,
        *,
        otherwise: Finish | None = None,
        still_due: StillDueRows | None = None,
        due: sa.ColumnElement[bool] | None = None,
    ) -> None:
        """`on_done`: None if no done jobs are settled. `otherwise`: what happens if a function returns None.

        `still_due`, `due`: with "leave", the rows that are still due, and the predicate that finds them.
        """
        if on_done == "keep":
            table.roles.need_state(DONE, "keeping done jobs")
        self.table, self.record = table, table.record
        self._on_done, self._otherwise = on_done, otherwise
        self._still_due, self._due = still_due, due
        usual = otherwise if callable(on_done) else on_done
        self._done: Sequence[OutcomeWrite] = () if usual is None else table.done[usual]
        """The statements for done jobs. If a user's function chooses them: its default."""
        removes = any(write.removes for write in self._done)
        self._locks_first = callable(on_done) or on_done == LEAVE or removes or table.roles.run_again is not None
        """Whether jobs must be locked before the writes: if a function of the user's is called with them, if they may
        be marked to run again, or if the write cannot ask whether the owner holds them.
        """
        plain = self._done[0] if self._done and not self._locks_first else None
        self.settle_done = None if plain is None else table.settle_done(plain)
        """The statement that settles jobs that are all done: those of one claim row, or with the next claim
        (`SettleAndClaim`). None: several statements do that.
        """

    def write(self, connection: sa.Connection, me: int, outcomes: Outcomes) -> set[Key]:
        """Write the outcomes; return the keys of the rows in which nothing was written: of jobs that `me` no longer
        held, and of jobs whose write was swallowed. To write outcomes twice does no harm.

        Raises SomeLost if a count shows that some jobs were not written, but not which: roll back, `lock_and_write`.
        """
        if self._locks_first:
            return self.lock_and_write(connection, me, outcomes)
        if self.settle_done is not None and outcomes.is_one_claim_row_done:
            if self.settle_done.count(connection, batch_parameters(me, outcomes)) != len(outcomes.done):
                raise SomeLost
            return set()
        keys = outcomes.keys()
        unwritten = self.record.take_out(connection, me, keys, outcomes.claim_row)
        held = outcomes.only(set(keys) - unwritten) if unwritten else outcomes
        for write, values in self.table.writes(connection, held, self._done):
            reached = write.count(connection, {**values, **self.record.guard_parameters(me)})
            if reached < len(values["claimjobs_keys"]) and not write.may_miss:
                raise SomeLost
        return unwritten

    def lock_and_write(self, connection: sa.Connection, me: int, outcomes: Outcomes) -> set[Key]:
        """As `write`, with locks on the jobs before."""
        held = self.lock(connection, me, outcomes)
        short = self.write_locked(connection, me, outcomes.only(held))
        return (set(outcomes.keys()) - held) | self.table.still_held(connection, me, short)

    def lock(self, connection: sa.Connection, me: int, outcomes: Outcomes) -> set[Key]:
        """Take these jobs out of what `me` holds, and lock them: the keys of those that it held."""
        keys = outcomes.keys()
        held = set(keys) - self.record.take_out(connection, me, keys, outcomes.claim_row)
        return self.table.lock(connection, me, held, keys)

    def write_locked(self, connection: sa.Connection, me: int | None, outcomes: Outcomes) -> set[Key]:
        """Write the outcomes of jobs that this transaction has locked.

        If a statement wrote fewer rows than it was given keys, all its keys are returned: any of them may be unwritten.
        If no owner in the row tells which, it raises WriteSwallowed instead; roll back then.
        """
        short: set[Key] = set()
        again = self.table.to_run_again(connection, outcomes)
        renewals = [(self.table.renew, {"claimjobs_keys": keys}) for keys in cut(again, self.table.many)]
        if again:
            outcomes = outcomes.only(set(outcomes.keys()) - again)
        asks = outcomes.done and callable(self._on_done)
        done = self._chosen(connection, outcomes) if asks else self._done
        for write, values in chain(renewals, self.table.writes(connection, outcomes, done)):
            keys = values["claimjobs_keys"]
            reached = write.count(connection, {**values, **self.record.guard_parameters(me)})
            if reached < len(keys) and self.table.must_reach(connection, write, reached, keys):
                short.update(keys)
        if self._still_due is not None and self._due is not None:
            for keys in cut(outcomes.done, self.table.many):
                self._still_due.find(connection, keys, self._due)
        return short

    def _chosen(self, connection: sa.Connection, outcomes: Outcomes) -> Sequence[OutcomeWrite]:
        """The statements for done jobs that a user's function chooses. That is checked before a job is deleted."""
        on_done: Any = self._on_done
        answer = on_done(connection, [outcomes.jobs[key] for key in outcomes.done])
        if answer not in (None, *FINISHES):
            found = unfinished(answer) or repr(answer)
            raise BadArgument(f"on_done returned {found}, and nothing was written: return 'delete', 'keep' or None")
        wanted: Finish | None = answer or self._otherwise
        if wanted is None:
            raise DoneUndecided(self.table.roles.name)
        if wanted == "keep":
            self.table.roles.need_state(DONE, "keeping done jobs")
        return self.table.done[wanted]

    def check_columns(self, columns: Mapping[str, Any]) -> None:
        """Raise BadArgument unless these values of columns can be written with done jobs."""
        roles, name, may = self.table.roles, self.table.name, self.table.result_columns
        if self._on_done != "keep" or not may:
            why = "they are not kept there" if self._on_done != "keep" else "SideCar(also_writes=...) names none"
            why = "on_done is a function, which writes them itself" if callable(self._on_done) else why
            raise BadArgument(f"`done` can write no columns of jobs of {name!r}, because {why}: leave out the columns")
        for column, value in columns.items():
            if is_sql(value, sa.types.NULLTYPE):
                raise BadArgument(f"`done` was given SQL for column {column!r} of table {name!r}: give it a value")
            if column not in may:
                what = "has a role, which claimjobs writes" if column in roles.columns else "is not there"
                raise BadArgument(f"column {column!r} of table {name!r} {what}: choose one of {', '.join(may)}")

    def not_done(self, connection: sa.Connection, keys: Collection[Key]) -> set[Key]:
        """Of these jobs, which `me` does not hold any more, those whose row says that they were not settled as done.

        Empty where the row of a done job may look like that of any other.
        """
        table = self.table
        if self._on_done == LEAVE or table.roles.run_again is not None:
            return set()
        there = keys_for(connection, table.still_there, keys, table.many)
        return set(there).difference(keys_for(connection, table.done_now, there, table.many))

    def phases(self, me: int, keys: list[Key]) -> list[Phase]:
        """The statements that settle done jobs with these keys. If a user's function chooses them: its default; without
        one, all that it may choose.
        """
        given, done = {"claimjobs_keys": keys, **self.record.guard_parameters(me)}, self._done
        if callable(self._on_done) and self._otherwise is None:
            done = [write for finish in FINISHES for write in self.table.done.get(finish, ())]
        return [Phase("settle", write.statement, given) for write in done]


def batch_parameters(owner: int, outcomes: Outcomes) -> dict[str, Any]:
    """The parameters of `Settler.settle_done` for the jobs of a claim row."""
    done = list(outcomes.done)
    meant = {"claimjobs_meant": len(done), "claimjobs_keys": done}
    return {"claimjobs_me": owner, "claimjobs_number": outcomes.claim_row, **meant}


class Unsettled(NamedTuple):
    """Which jobs of a settle were not written."""

    lost: set[Key]
    """This owner did not hold them any more."""
    stuck: Mapping[Key, str]
    """This owner still holds them, because neither their outcome nor their failure can be written; with the reason."""
    held: Collection[Key] = ()
    """The keys of all other jobs that this owner held then, where some were not written."""
    are_duplicates: bool = False
    """Whether a unique index refuses each stuck job, because another row has its values."""


class LeaseSettler:
    """Writes the outcomes of jobs that an owner holds, in transactions of a connector. If the database refuses or
    swallows an outcome, the others are written, and its job failed.

    A constraint, a trigger or a foreign key refuses a row with an error of any kind: whatever is no conflict and no
    outage is halved until such a row is alone. A trigger or a rule can also swallow a write without an error: then this
    owner still holds the job. If it is the text of an error that is refused, the job fails with less of it. Jobs whose
    failure is refused, too, are stuck: they stay claimed, and their failures are written later.

    Of the keys of a settle, `unwritten` are those in whose rows nothing was written. They are `lost`, if this owner
    does not hold them any more, or swallowed. The swallowed ones are `refused`, as those that ended in an error alone.
    What is refused is written as a failure, or `stuck`.
    """

    def __init__(self, connector: Connector, backend: Backend, settler: Settler, retry: Retry) -> None:
        self._connector, self._settler, self._retry = connector, settler, retry
        self._roles, self._dialect = backend.roles, backend.dialect
        self._held = settler.record.held
        self.stuck: set[Key] = set()
        """The keys of stuck jobs."""
        self.unreleased: set[Key] = set()
        """The keys of jobs that could not be released at the last try."""
        self.later: list[tuple[int, Outcomes]] = []
        """Failures to be written, each with the owner that holds the jobs."""
        self._due = math.inf

    def held_by(self, owner: int, patience: float | None = None) -> list[Key]:
        """The keys of all jobs that an owner holds."""
        return [key_of(row) for row in self._connector.rows(self._held, {"claimjobs_me": owner}, patience)]

    def release(self, owner: int, keys: Sequence[Key], patience: float | None) -> int:
        """Release jobs that an owner holds; return how many. What the database refuses stays claimed, and is told; so
        does a job whose row another session has locked for longer than the patience.
        """
        wanted = Outcomes(released=dict.fromkeys(keys))
        try:
            refused = self.write_in_parts(owner, wanted, patience).refused
        except sa.exc.DBAPIError as error:
            if not self._dialect.errors.waited_for_lock(error):
                raise
            lock_free, many = stored_jobs.lock_free(self._roles, self._dialect), self._settler.table.many
            free = set(self._connector.transaction(lambda each: keys_for(each, lock_free, keys, many), patience))
            refused = dict.fromkeys(set(keys) - free, reason(error))
            refused |= self.write_in_parts(owner, wanted.only(free), patience).refused
        for key in refused.keys() - self.unreleased:
            fields = {"event": RELEASE_FAILED, "owner": owner, "key": key, "error": refused[key]}
            log.warning("job %s cannot be released now: %s", key_in_message(key), refused[key], extra=fields)
        self.unreleased = set(refused)
        return len(keys) - len(refused)

    def write_in_parts(
        self, owner: int, outcomes: Outcomes, patience: float | None = None, *, divisible: bool | None = None
    ) -> WriteInHalves:
        """Write outcomes: at once, and what is refused in halves. Returns which were refused alone, and not written.

        A row that takes too long alone is written last: if others were written by then, it is not the server.
        """
        parts = WriteInHalves(outcomes.keys(), self._dialect, {}, table=self._roles.table.name)
        last: set[Key] = set()
        for keys in parts:
            part = outcomes if len(keys) == len(outcomes) else outcomes.only(set(keys))
            can_wait = len(keys) < len(outcomes) and not last.issuperset(keys)
            alone = can_wait or (False if parts.has_written else divisible)
            try:
                parts.unwritten |= self.commit(owner, part, patience, divisible=alone)
            except REFUSALS as error:
                if can_wait and len(keys) == 1 and isinstance(error, StatementTimedOut):
                    last.update(keys)
                    parts.write_last(keys)
                elif (less := self._with_less_text(owner, part, error, patience, divisible=alone)) is not None:
                    parts.unwritten |= less
                else:
                    parts.refuse(keys, error)
        return parts

    def commit(
        self, owner: int, outcomes: Outcomes, patience: float | None = None, *, divisible: bool | None = None
    ) -> set[Key]:
        """Write outcomes in one transaction; returns as `Settler.write`. Those of several are always `divisible`."""
        divisible = len(outcomes) > 1 or divisible
        try:
            for attempt in self._connector.attempts(patience, divisible=divisible):
                with attempt as connection:
                    unwritten = self._settler.write(connection, owner, outcomes)
        except SomeLost:
            for attempt in self._connector.attempts(patience, divisible=divisible):
                with attempt as connection:
                    unwritten = self._settler.lock_and_write(connection, owner, outcomes)
        return unwritten

    def make_failed(
        self,
        owner: int,
        outcomes: Outcomes,
        unwritten: set[Key],
        *,
        parts: WriteInHalves | None = None,
        claimed: Collection[Key] = (),
    ) -> Unsettled:
        """After a settle: make failed the jobs that were refused, and those whose write was swallowed. Changes these in
        `outcomes`.

        `unwritten`: keys of rows in which nothing was written. `claimed`: keys that the settle's transaction claimed.
        """
        held = set(self.held_by(owner)) - set(claimed) if unwritten else set()
        swallowed = unwritten & held  # compared in Python: SQL may not find a row by its key
        refused = {**({} if parts is None else parts.refused), **dict.fromkeys(swallowed, SWALLOWED)}
        lost = unwritten - swallowed
        if not refused:
            return Unsettled(lost, {}, held)
        given = replace(outcomes.only(refused.keys()), claim_row=outcomes.claim_row, disconnects=outcomes.disconnects)
        wanted = outcomes.only(refused.keys() - outcomes.done.keys())
        wanted.add(self._failures(outcomes, refused))
        written, later, are_duplicates = self._written_of(owner, wanted)
        for key in refused:
            outcomes.forget(key)
        outcomes.add(written)
        wrote = set(written.keys())
        stuck = {key: why for key, why in refused.items() if key not in wrote}
        if parts is not None and parts.refused_all is not None and len(stuck) >= len(parts.refused):
            outcomes.become(given)
            raise parts.refused_all  # nor can any failure be recorded: it is not about the rows
        self.stuck.update(stuck)
        if len(later):
            keys = set(later.keys())
            jobs = {key: job for key, job in outcomes.jobs.items() if key in keys}  # not all of the batch
            self.later.append((owner, replace(later, jobs=jobs)))
            self._due = min(self._due, time.monotonic() + REFUSED_RETRY_SECONDS)
        return Unsettled(lost, stuck, held - refused.keys(), are_duplicates=are_duplicates and len(later) == len(stuck))

    def forget(self, jobs: Iterable[Job]) -> None:
        """Write no failure later for these jobs: they were released otherwise, and are claimed again."""
        for job in jobs:
            self.stuck.discard(job.key)
            for _, wanted in self.later:
                wanted.forget(job.key)

    def write_again(self) -> Iterator[Outcomes]:
        """Try to write the refused failures, once every few seconds. Yields what is written now."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + REFUSED_RETRY_SECONDS
        for owner, wanted in self.later.copy():
            written, refused, _ = self._written_of(owner, wanted, patience=0)
            self.later.remove((owner, wanted))
            if len(refused):
                self.later.append((owner, refused))
            self.stuck -= set(wanted.keys()) - set(refused.keys())
            yield written
        self._due = self._due if self.later else math.inf

    def _written_of(
        self, owner: int, wanted: Outcomes, patience: float | None = None
    ) -> tuple[Outcomes, Outcomes, bool]:
        """Write failures: those that are written, those that are refused, and whether a unique index refuses each of
        these. Both are without the jobs that are lost."""
        parts = self.write_in_parts(owner, wanted, patience, divisible=False)
        swallowed = parts.unwritten.intersection(self.held_by(owner)) if parts.unwritten else set()
        refused = {*parts.refused, *swallowed}
        written = wanted.only(set(wanted.keys()) - parts.unwritten - refused)
        return written, wanted.only(refused), refused <= parts.duplicates

    def _failures(self, outcomes: Outcomes, refused: Mapping[Key, str]) -> Outcomes:
        """Failures in place of the done jobs that were refused. The next try of a swallowed write would end in the same
        way: such a job is dead at once.
        """
        failed = Outcomes(jobs=outcomes.jobs)
        if self._roles.can_retry and self._roles.can_be_dead:
            for key, why in refused.items():
                if key in outcomes.done and key in outcomes.jobs:
                    attempts = self._roles.value_of("attempts", entry_of(outcomes.jobs[key]), 0)
                    text = self._roles.kept_of(f"its outcome cannot be written: {why}")
                    if why == SWALLOWED or self._retry.is_last(attempts):
                        failed.dead[key] = Failure(text)
                    else:
                        failed.retried[key] = Failure(text, self._retry.wait(attempts))
        return failed

    def _with_less_text(
        self, owner: int, part: Outcomes, error: Exception, patience: float | None, *, divisible: bool | None
    ) -> set[Key] | None:
        """Write the outcome of a failed job with less of its error; returns as `commit`. None: that is refused, too."""
        if len(part) > 1 or not part.failures or isinstance(error, StatementTimedOut):
            return None
        for longest in SHORTER:
            if is_of_a_row(error, self._dialect):
                try:
                    return self.commit(owner, part.with_short_errors(longest), patience, divisible=divisible)
                except REFUSALS as again:
                    error = again
        return None
