"""Whatever several owners do, die of and come back from: the database holds what a model in plain Python says.

The same steps every time. CLAIMJOBS_EXAMPLES=500 searches on from there, at random.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from claimjobs import Batch, Job, Queue, Retry
from claimjobs.lease.registry import OwnerState
from claimjobs.options import CLAIMS, ClaimsKind, Liveness
from claimjobs.table.definitions import article_table, batches_table
from tests.backends import Backend, Clock
from tests.conformance.owners import (
    LONG_AGO,
    OWNERS,
    end_session,
    hold_of,
    owner_row,
    session_of,
    still,
    stranger_holds,
    write_owner,
)
from tests.property.model import ATTEMPTS, BASE, CAP, RELEASED, Model, Word
from tests.property.model import Job as Row

JOBS = article_table()
BATCHES = batches_table()
RETRY = Retry(attempts=ATTEMPTS, base=BASE, cap=CAP)
LEASE = 60.0
"""Seconds: nobody is silent for so long unless a rule says so, for no heart beats here but by a rule."""

SHORT = 4
"""So many ways in `make test`, each of fifty steps."""
MORE = int(os.environ.get("CLAIMJOBS_EXAMPLES", "0"))
PROFILE = settings(
    max_examples=MORE or 30,
    stateful_step_count=50,
    derandomize=not MORE,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)

WORDS = (Word("done"), Word("released"), Word("failed"), Word("failed", retry_in=3.0), Word("hopeless"))
PRIORITIES = st.lists(st.integers(0, 1), min_size=1, max_size=6)
WHO = st.integers(0, 2)
MOSTLY_ONE = st.sampled_from([0, 0, 1, 2])
"""So that what somebody lost often comes into the same hand again."""


@dataclass
class Consumer:
    """A Queue, its owner's id as the model knows it, and whether that owner gives signs of life."""

    queue: Queue
    keeps: bool
    locks: bool
    """Whether it has a session lock; without one nobody can end its session, and its lease alone tells."""
    id: int = 0
    cut: bool = False
    """Its session was ended: its lock is free, and it will find out when it next asks for something."""
    silent: bool = False
    """Its beat was long ago."""


@dataclass
class Held:
    """A batch in the hand of a consumer, and the id that it was claimed under."""

    consumer: Consumer
    owner: int
    batch: Batch

    def __repr__(self) -> str:
        return f"<{[job.d for job in self.batch.jobs]} of {self.owner}>"


class Protocol(RuleBasedStateMachine):
    """Three consumers on one table. The last keeps what is done, and has no session lock: its lease alone counts."""

    hands: Bundle[Held] = Bundle("hands")
    sights: Bundle[list[OwnerState]] = Bundle("sights")

    def __init__(self, backend: Backend, clock: Clock, queues: list[Queue], claims: ClaimsKind) -> None:
        super().__init__()
        self.backend, self.clock, self.per_batch = backend, clock, claims == "batches"
        self.model = Model()
        self.ids: dict[str, int] = {}
        self.enqueued = 0
        self.open: list[Held] = []
        self.known: set[int] = set()
        *with_locks, without = queues
        self.consumers = [Consumer(queue, keeps=False, locks=True) for queue in with_locks]
        self.consumers.append(Consumer(without, keeps=True, locks=False))
        for consumer in self.consumers:
            self._registers(consumer)

    def teardown(self) -> None:
        """Everyone leaves, the dead too; what they held is nobody's then."""
        for consumer in self.consumers:
            consumer.queue.close()
        self.consumers[0].queue.reclaim()
        held = [row.d for row in self._rows() if row.status == "claimed"] + self._batches()
        left = self._owners()
        for table in ("jobs", "claimjobs_batches", "claimjobs_owners"):
            self.backend.run(f"DELETE FROM {table}")
        assert (held, left) == ([], set())

    # --- work ------------------------------------------------------------------------------------------

    @initialize(priorities=PRIORITIES)
    def begin(self, priorities: list[int]) -> None:
        self.enqueue(priorities, 0)

    @precondition(lambda self: len(self.model.named("unclaimed")) < 6)
    @rule(priorities=PRIORITIES, later=st.sampled_from([0, 5]))
    def enqueue(self, priorities: list[int], later: int) -> None:
        run_at = self.clock.now + timedelta(seconds=later)
        names = [f"{self.enqueued + number:04}" for number in range(len(priorities))]
        jobs = list(zip(names, priorities, strict=True))
        self.enqueued += self.consumers[0].queue.enqueue(
            {"d": name, "e": "", "priority": priority, "run_at": run_at} for name, priority in jobs
        )
        for name, priority in jobs:
            self.model.enqueue(name, priority, run_at)

    @precondition(lambda self: self.model.named("unclaimed"))
    @rule(target=hands, who=MOSTLY_ONE, size=st.integers(1, 4), later=st.sampled_from([0, 3, 30]))
    def claim(self, who: int, size: int, later: int) -> Any:
        self.clock.now += timedelta(seconds=later)
        consumer = self.consumers[who]
        wanted = self.model.claimable(self.clock.now, size)
        mine = [job for held in self.open if held.consumer is consumer for job in held.batch.jobs]
        if mine and (any(job.suspect for job in mine) or any(self.model.jobs[name].suspect for name in wanted)):
            return multiple()  # suspects are held alone: see `test_an_owner_holds_suspects_alone`
        # What others put before its cursor it finds in time (tests/conformance/test_cursor.py), as the model has none.
        consumer.queue._consumer.hold.restart_from_head()
        batch = consumer.queue.claim(size)
        self._asked(consumer)
        taken = [job.d for job in batch.jobs]
        assert taken == wanted[: len(taken)]
        assert bool(taken) == bool(wanted)
        assert {job.owner_id for job in batch.jobs} <= {None if self.per_batch else consumer.id}
        assert self.model.is_alive(consumer.id) or not taken
        self.model.claim(consumer.id, taken)
        if not taken:
            return multiple()
        self.open.append(Held(consumer, consumer.id, batch))
        return self.open[-1]

    @rule(held=consumes(hands), words=st.lists(st.sampled_from(WORDS), max_size=4), blames=st.booleans())
    def settle(self, held: Held, words: list[Word], blames: bool) -> None:
        """A word on each of the first jobs; the others are released, or blamed."""
        said = {job.d: _said(held.batch, job, word) for job, word in zip(held.batch.jobs, words, strict=False)}
        rest = [job.d for job in held.batch.undecided]
        if blames:
            held.batch.blame("something went wrong")
        unsaid = RELEASED if not blames else Word("failed", alone=True) if len(rest) == 1 else Word("suspect")
        held.batch.settle()
        self.open.remove(held)
        words_on_all = {**said, **dict.fromkeys(rest, unsaid)}
        lost = self.model.settle(held.owner, words_on_all, self.clock.now, keep=held.consumer.keeps)
        assert {job.d for job in held.batch.lost} == lost
        self._asked(held.consumer)

    # --- death -----------------------------------------------------------------------------------------

    @rule(held=hands, silently=st.booleans())
    def die(self, held: Held, silently: bool) -> None:
        """Its session is ended, or its last sign of life was long ago; it does not know it yet."""
        consumer = held.consumer
        if consumer.locks and not silently and not consumer.cut:
            end_session(self.backend, consumer.id)
            consumer.cut = True
        elif consumer.id in self.model.owners:
            # With no lease at all, so that it is dead however young the server is.
            write_owner(self.backend, consumer.id, beat=LONG_AGO, lease=0.0)
            consumer.silent = True

    @precondition(lambda self: self.dead())
    @rule(number=WHO)
    def come_back(self, number: int) -> None:
        """The heart of one of the dead beats again."""
        consumer = self.dead()[number % len(self.dead())]
        hold_of(consumer.queue).owner.row.beat(patience=None)
        self._asked(consumer, beats=True)
        assert self.model.is_alive(consumer.id)

    @precondition(lambda self: self.enqueued > 20)
    @rule(who=WHO)
    def leave(self, who: int) -> None:
        """Of its own will; then it comes again."""
        consumer = self.consumers[who]
        consumer.queue.close()
        self.model.leave(consumer.id)
        self._registers(consumer)

    def dead(self) -> list[Consumer]:
        """Those whose jobs others may take, or have taken, and who do not know it yet."""
        return [consumer for consumer in self.consumers if consumer.cut or consumer.silent]

    # --- reclaiming ------------------------------------------------------------------------------------

    @precondition(lambda self: self.to_reclaim())
    @rule(by=WHO, but_for_one=st.booleans())
    def reclaim(self, by: int, but_for_one: bool) -> None:
        """From all that are dead; a stranger may have one of all the jobs in hand locked meanwhile."""
        locked = self.model.named("claimed")[: int(but_for_one)]
        dead = self.to_reclaim()
        with stranger_holds(self.backend, *locked) if locked else nullcontext():
            jobs = self.consumers[by].queue.reclaim()
        assert jobs == sum(self.model.reclaim(owner, self.clock.now, locked) for owner in dead)
        for consumer in self.consumers:
            if consumer.id in dead:
                self._is_cut(consumer)

    @precondition(lambda self: self.to_reclaim())
    @rule(target=sights, by=WHO)
    def look(self, by: int) -> list[OwnerState]:
        with self.consumers[by].queue._access.reaper() as reaper:
            seen = reaper.dead()
        assert [one.id for one in seen] == self.to_reclaim()
        return seen

    @rule(by=WHO, sight=consumes(sights))
    def reclaim_from_whom_it_saw(self, by: int, sight: list[OwnerState]) -> None:
        """Some time later: they may have come back meanwhile, or be somebody else by now."""
        for seen in sight:
            row = owner_row(self.backend, seen.id)
            is_as_seen = row is None or row["beat"] == seen.beat
            with self._ended(seen), self.consumers[by].queue._access.reaper() as reaper:
                jobs = reaper.reclaim(seen)
            assert jobs == (self.model.reclaim(seen.id, self.clock.now) if is_as_seen else 0)

    @precondition(lambda self: any(consumer.cut for consumer in self.consumers))
    @rule(by=WHO)
    def give_back(self, by: int) -> None:
        """As a supervisor does for a process that it has reaped."""
        owner = next(consumer.id for consumer in self.consumers if consumer.cut)
        assert self.consumers[by].queue.reclaim_owner(owner) == self.model.reclaim(owner, self.clock.now)

    def to_reclaim(self) -> list[int]:
        """The owners that a look finds dead."""
        return sorted({consumer.id for consumer in self.dead()} & self.model.owners | self.model.declared)

    # --- the dead jobs ---------------------------------------------------------------------------------

    @precondition(lambda self: self.model.named("dead"))
    @rule(all_of_them=st.booleans(), again=st.booleans())
    def look_after_dead_jobs(self, all_of_them: bool, again: bool) -> None:
        names = self.model.named("dead")[: None if all_of_them else 1]
        stored, ids = self.consumers[0].queue.jobs, [self.ids[name] for name in names]
        assert (stored.retry(ids) if again else stored.drop(ids)) == len(names)
        if again:
            self.model.retry(names, self.clock.now)
        else:
            self.model.drop(names)

    # --- what is always true ---------------------------------------------------------------------------

    @invariant()
    def every_job_is_as_the_model_has_it(self) -> None:
        """So none is lost, none comes back, and no attempt is charged that should not be."""
        rows = self._rows()
        self.ids = {row.d: row.id for row in rows}
        claims = self._claims_of(rows)
        found = [(row.d, *claim, row.attempts, row.suspect) for row, claim in zip(rows, claims, strict=True)]
        jobs = self.model.jobs.values()
        assert found == [(job.name, job.status, self._owner_of(job), job.attempts, job.suspect) for job in jobs]
        for row, job in zip(rows, jobs, strict=True):
            job.narrow(row.run_at)

    @invariant()
    def no_job_is_in_two_claim_rows(self) -> None:
        keys = [key for batch in self._batches() for key in batch.keys_]
        assert len(keys) == len(set(keys))

    @invariant()
    def what_a_living_owner_has_in_hand_is_its_own_alone(self) -> None:
        living = [held for held in self.open if self.model.is_alive(held.owner)]
        names = [job.d for held in living for job in held.batch.jobs]
        assert len(names) == len(set(names))
        for held in living:
            assert all(self.model.jobs[job.d].is_held_by(held.owner) for job in held.batch.jobs)

    @invariant()
    def owners_are_as_the_model_has_them(self) -> None:
        assert self._owners() == self.model.owners

    # --- inside ----------------------------------------------------------------------------------------

    def _registers(self, consumer: Consumer) -> None:
        consumer.id = still(consumer.queue).owner_id
        self._is_new(consumer)

    def _is_new(self, consumer: Consumer) -> None:
        assert consumer.id not in self.known
        self.known.add(consumer.id)
        self.model.owners.add(consumer.id)
        consumer.cut = consumer.silent = False

    def _asked(self, consumer: Consumer, *, beats: bool = False) -> None:
        """A consumer has asked its database for something: if its session had ended it has another one now."""
        before, consumer.id = consumer.id, consumer.queue.owner_id
        if consumer.id != before:
            assert not self.model.is_alive(before)
            self._is_new(consumer)
        elif consumer.cut or beats:
            consumer.cut = consumer.silent = False
            write_owner(self.backend, consumer.id, lease=LEASE)

    def _is_cut(self, consumer: Consumer) -> None:
        """Whoever takes over from an owner ends the session that has its lock; return when that is over."""
        self.backend.wait_for(lambda: session_of(self.backend, consumer.id) is None, "its session ends")
        consumer.cut = consumer.locks

    @contextmanager
    def _ended(self, seen: OwnerState) -> Iterator[None]:
        """The session of an owner that was seen ends in this block, if it lasts still."""
        its = [consumer for consumer in self.consumers if consumer.id == seen.id]
        lasts = seen.holder is not None and session_of(self.backend, seen.id) == seen.holder
        yield
        for consumer in its if lasts else ():
            self._is_cut(consumer)

    def _claims_of(self, rows: list[Any]) -> list[tuple[str, int | None]]:
        """The state of each job, and its owner. With claims per batch its row says nothing of a claim."""
        if not self.per_batch:
            return [(row.status, row.owner_id) for row in rows]
        assert not [row.d for row in rows if row.status == "claimed" or row.owner_id is not None]
        owners = {key: batch.owner_id for batch in self._batches() for key in batch.keys_}
        return [("claimed", owners[row.id]) if row.id in owners else (row.status, None) for row in rows]

    def _owner_of(self, job: Row) -> int | None:
        """The owner that is to be seen: a done job keeps it in its row, where claims are written there."""
        return None if self.per_batch and job.status != "claimed" else job.owner

    def _batches(self) -> list[Any]:
        batches = sa.select(BATCHES.c.owner_id, BATCHES.c["keys"].label("keys_")).where(BATCHES.c.jobs > 0)
        with self.backend.engine.connect() as connection:
            return list(connection.execute(batches))

    def _rows(self) -> list[Any]:
        with self.backend.engine.connect() as connection:
            return list(connection.execute(sa.select(JOBS).order_by(JOBS.c.id)))

    def _owners(self) -> set[int]:
        with self.backend.engine.connect() as connection:
            return set(connection.scalars(sa.select(OWNERS.c.id)))


def _said(batch: Batch, job: Job, word: Word) -> Word:
    if word.kind == "done":
        batch.done(job)
    elif word.kind == "released":
        batch.release(job)
    else:
        batch.fail(job, "it went wrong", retry_in=word.retry_in, retry=word.kind != "hopeless")
    return word


EACH_CLAIM = [
    pytest.param(claims, marks=pytest.mark.pair("each way to record a claim has rules of its own")) for claims in CLAIMS
]


@pytest.mark.timeout(600)  # when it fails it looks for the fewest steps that do
@pytest.mark.parametrize("claims", EACH_CLAIM)
def test_whatever_owners_do_the_database_is_as_the_model_has_it(
    backend: Backend, clock: Clock, claims: ClaimsKind
) -> None:
    _search(backend, clock, claims, settings(PROFILE, max_examples=SHORT))


@pytest.mark.thorough("the same, for longer")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("claims", CLAIMS)
def test_whatever_owners_do_at_length(backend: Backend, clock: Clock, claims: ClaimsKind) -> None:
    _search(backend, clock, claims, PROFILE)


def _search(backend: Backend, clock: Clock, claims: ClaimsKind, profile: settings) -> None:
    options: dict[str, Any] = {"now": clock.sql, "retry": RETRY, "liveness": Liveness(lease=LEASE), "claims": claims}
    lease_only = {**options, "liveness": Liveness(lease=LEASE, session_lock=False)}
    queues = [backend.queue(JOBS, **options) for _ in range(2)]
    queues.append(backend.queue(JOBS, on_done="keep", **lease_only))
    machine = partial(Protocol, backend, clock, queues, claims)
    run_state_machine_as_test(machine, settings=profile)  # type: ignore[arg-type]  # any factory will do
