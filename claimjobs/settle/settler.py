"""Settler: writes the outcomes of a batch, one statement for each kind of outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal

import sqlalchemy as sa

from claimjobs.callables import unfinished
from claimjobs.claim.strategy import Phase
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.connection import Connector
from claimjobs.dialects import Key
from claimjobs.errors import BadArgument, DoneUndecided, key_unequal
from claimjobs.job import Job, key_of
from claimjobs.options import FINISHES, LEAVE, Finish
from claimjobs.settle.outcome_table import OutcomeTable, OutcomeWrite, cut
from claimjobs.settle.outcomes import Outcomes
from claimjobs.settle.still_due import StillDueRows
from claimjobs.table.columns import DONE

OnDone = Finish | Literal["leave"] | Callable[[sa.Connection, Sequence[Job]], Finish | None]
"""What happens to done jobs. A function is called in the settle's transaction, with the jobs, which are locked and
still held. It returns "delete" or "keep"; None: the default."""


class SomeLost(Exception):
    """A write reached fewer jobs than it was meant for."""


class Settler:
    """Takes jobs out of where their claim is recorded, and writes their outcomes."""

    def __init__(
        self,
        table: OutcomeTable,
        on_done: OnDone | None,
        *,
        otherwise: Finish | None = None,
        still_due: StillDueRows | None = None,
        ready: sa.ColumnElement[bool] | None = None,
    ) -> None:
        """`on_done`: None if no done jobs are settled. `otherwise`: what happens if a function returns None.

        `still_due`, `ready`: with "leave", the rows that are still due, and the predicate that finds them.
        """
        if on_done == "keep":
            table.roles.need_state(DONE, "keeping done jobs")
        self._table, self.record = table, table.record
        self._on_done, self._otherwise = on_done, otherwise
        self._still_due, self._ready = still_due, ready
        self._locks_first = (
            callable(on_done)
            or on_done == LEAVE
            or table.roles.run_again is not None
            or any(write.removes for write in self._usual)
        )
        """Whether jobs must be locked before the writes: if a function of the user's is called with them, if they may
        be marked to run again, or if the write cannot ask whether the owner holds them.
        """
        self.settle_batch = None if self._locks_first or not self._usual else table.with_claim_row(self._usual[0])
        """Settles a batch whose jobs are all done, and deletes its claim row. None: several statements do that."""
        self._settle_batch = None if self.settle_batch is None else CompiledStatement(self.settle_batch)

    @property
    def _usual(self) -> Sequence[OutcomeWrite]:
        """The statements for done jobs. If a user's function chooses them: its default."""
        wanted = self._otherwise if callable(self._on_done) else self._on_done
        return () if wanted is None and self._on_done is None else self._table.finish(wanted)

    @property
    def in_one(self) -> sa.Delete | sa.Update | None:
        """The statement that settles jobs that are all done, and returns their keys; None if there is no such one."""
        if self._locks_first or not self.record.names_owner or not self._returns:
            return None
        settle: sa.Delete | sa.Update = self._usual[0].compiled.statement
        return settle

    @property
    def _returns(self) -> bool:
        return self._table.dialect.returns_what_it_writes

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

        These are jobs that `me` no longer held, and jobs whose write was swallowed (see `settle.refusals`). To write
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
        if self._settle_batch is not None and outcomes.is_done_batch:
            if self._settle_batch.count(connection, batch_parameters(me, outcomes)) != len(outcomes.done):
                raise SomeLost
            return set()
        keys = outcomes.keys()
        held = self.record.take_out(connection, me, keys, outcomes.batch)
        unwritten = set(keys) - held
        for write, values in self._writes(connection, outcomes.only(held) if unwritten else outcomes):
            some, given = values["claimjobs_keys"], {**values, **self.record.by(me)}
            if self.record.names_owner and self._returns:
                written = {key_of(row) for row in connection.execute(write.compiled.statement, given)}
                if len(written) < len(some):
                    unwritten.update(self.missing(some, written))
            elif write.compiled.count(connection, given) < len(some) and not write.may_miss:
                raise SomeLost
        return unwritten

    def lost(self, connection: sa.Connection, me: int, keys: Sequence[Key]) -> set[Key]:
        """As `OutcomeTable.lost`."""
        return self._table.lost(connection, me, keys)

    def missing(self, keys: Sequence[Key], written: set[Key]) -> set[Key]:
        """The keys of the rows that were not written, if these were. Raises KeyUnfit if writes change keys."""
        missing = set(keys) - written
        if len(missing) + len(written) > len(keys):
            raise key_unequal(self._table.name, sorted(missing, key=str))
        return missing

    def _lock_then_write(self, connection: sa.Connection, me: int, outcomes: Outcomes) -> set[Key]:
        keys = outcomes.keys()
        held = self._table.lock(connection, me, self.record.take_out(connection, me, keys, outcomes.batch), keys)
        short = self.write_locked(connection, me, outcomes.only(held))
        return (set(keys) - held) | self._table.still_held(connection, me, short)

    def reclaim(self, connection: sa.Connection, owner: int, outcomes: Outcomes) -> set[Key]:
        """Write outcomes for an owner that was declared dead, whose jobs this transaction has locked: as
        `write_locked`.
        """
        self.record.take_out(connection, owner, outcomes.keys(), outcomes.batch)
        return self.write_locked(connection, owner, outcomes)

    def write_locked(self, connection: sa.Connection, me: int | None, outcomes: Outcomes) -> set[Key]:
        """Write the outcomes of jobs that this transaction has locked.

        If a statement wrote fewer rows than it was given keys, all its keys are returned: any of them may be unwritten.
        If no owner in the row tells which, it raises WriteSwallowed instead; roll back then.
        """
        short: set[Key] = set()
        marked = self._table.marked(connection, outcomes)
        again = [(self._table.renew(), {"claimjobs_keys": keys}) for keys in cut(marked, self._table.many)]
        if marked:
            outcomes = outcomes.only(set(outcomes.keys()) - marked)
        for write, values in chain(again, self._writes(connection, outcomes)):
            keys = values["claimjobs_keys"]
            reached = write.compiled.count(connection, {**values, **self.record.by(me)})
            if reached < len(keys) and self._table.must_reach(connection, write, reached, keys):
                short.update(keys)
        if self._still_due is not None and self._ready is not None:
            for keys in cut(outcomes.done, self._table.many):
                self._still_due.find(connection, keys, self._ready)
        return short

    def _writes(self, connection: sa.Connection, outcomes: Outcomes) -> Iterator[tuple[OutcomeWrite, dict[str, Any]]]:
        """The statements for these outcomes, each with its parameters."""
        many = self._table.many
        if outcomes.done:
            yield from self._table.kept_with(outcomes.columns)
            plain = [key for key in outcomes.done if key not in outcomes.columns]
            for write in self._finish(connection, outcomes):
                yield from ((write, {"claimjobs_keys": keys}) for keys in cut(plain, many))
        for write in self._table.release():
            yield from ((write, {"claimjobs_keys": keys}) for keys in cut(outcomes.released, many))
        if outcomes.errors:
            yield from self._table.failures(outcomes)

    def _finish(self, connection: sa.Connection, outcomes: Outcomes) -> Sequence[OutcomeWrite]:
        """The statements for done jobs. A user's function may choose them."""
        if not callable(self._on_done):
            return self._usual
        answer = self._on_done(connection, [outcomes.jobs[key] for key in outcomes.done])
        return self._table.finish(self._answered(answer))

    def _answered(self, answer: Any) -> Finish:
        """What a user's function chose, after a check: no job may be deleted by mistake."""
        if answer not in (None, *FINISHES):
            found = unfinished(answer) or repr(answer)
            raise BadArgument(f"on_done returned {found}, and nothing was written: return 'delete', 'keep' or None")
        wanted: Finish | None = answer or self._otherwise
        if wanted is None:
            raise DoneUndecided(self._table.roles.name)
        if wanted == "keep":
            self._table.roles.need_state(DONE, "keeping done jobs")
        return wanted

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise BadArgument unless values of these columns can be written with done jobs."""
        roles, name, may = self._table.roles, self._table.name, self._table.result_columns
        if self._on_done != "keep" or not may:
            why = "they are not kept there" if self._on_done != "keep" else "SideCar(also_writes=...) names none"
            raise BadArgument(f"`done` can write no columns of jobs of {name!r}, because {why}: leave out the columns")
        for column in names:
            if column not in may:
                what = "has a role, which claimjobs writes" if column in roles.columns else "is not there"
                raise BadArgument(f"column {column!r} of table {name!r} {what}: choose one of {', '.join(may)}")

    def phases(self, me: int, keys: list[Key]) -> list[Phase]:
        """The statements that settle done jobs with these keys. If a user's function chooses them: its default."""
        given = {"claimjobs_keys": keys, **self.record.by(me)}
        return [Phase("settle", write.compiled.statement, given) for write in self._usual]


def batch_parameters(owner: int, outcomes: Outcomes) -> dict[str, Any]:
    """The parameters of `Settler.settle_batch`."""
    done = outcomes.done
    return {
        "claimjobs_me": owner,
        "claimjobs_number": outcomes.batch,
        "claimjobs_meant": len(done),
        "claimjobs_keys": done,
    }
