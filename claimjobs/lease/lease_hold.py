"""Hand: where an owner's claims come in and its settles go out, through one connection, counted."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import sqlalchemy as sa

from claimjobs.batch.batch import Grip
from claimjobs.batch.refusals import Refusals, Unsettled
from claimjobs.batch.settle import Outcomes, Settler, SomeLost
from claimjobs.batch.settle_and_claim import SettleAndClaim
from claimjobs.claim.search import Search
from claimjobs.claim.strategy import NOTHING, ClaimRequest, ClaimResult, ClaimStrategy, OwnerDead, Unmarked
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Key
from claimjobs.errors import (
    ClaimjobsError,
    CrossedFork,
    KeyNotUnique,
    OutcomeRefused,
    OwnerDeclaredDead,
    SettleFailed,
    WriteSwallowed,
)
from claimjobs.job import key_of
from claimjobs.lease.heartbeat import Heartbeat
from claimjobs.lease.owner import Owner
from claimjobs.lease.reaper import Reaper
from claimjobs.lease.sleeper import Sleeper
from claimjobs.options import Liveness, Retry
from claimjobs.report import Report
from claimjobs.statements import owners
from claimjobs.table.backend import Backend

LIVES: Final = 5
"""How often a claim is tried in a row whose owner was declared dead before it, and goes on under a new id."""


class LeaseHold:
    """One owner at work. Registers it; `close` hands back what is left and takes the owner out again."""

    def __init__(
        self, engine: sa.Engine, backend: Backend, settler: Settler, *, liveness: Liveness, retry: Retry, report: Report
    ) -> None:
        self._backend = backend
        self._settler = settler
        self._report = report
        self._connector = Connector(engine, backend.dialect, liveness, report, tables=backend.tables_in_use)
        self._search = Search(report)
        self._process = os.getpid()
        self._in_hand: defaultdict[int, set[Key]] = defaultdict(set)
        """By the owner in whose name they were claimed."""
        self.ahead = EarlyClaims()
        """Those that nobody has asked for yet."""
        self._stuck: set[Key] = set()
        """Those that can neither be settled nor fail: nobody shall do them again while this owner lives."""
        self._doubts = 0
        self._doubted: float | None = None
        self._closed = False
        self._lease = liveness.lease
        self.unwanted: Callable[[], bool] = lambda: False
        """Whether a claim that does not succeed at once is wanted no more."""
        self._alone = threading.Lock()
        """Held by a claim or a settle: between its commit and its book-keeping no other may look at what is held."""
        name = backend.roles.name
        self.owner = Owner(self._connector, backend.dialect, liveness, table=backend.owners, claims=name)
        janitor = Reaper(self._connector, backend, settler, retry)
        self._refusals = Refusals(self._connector, backend, settler, retry)
        self.heart = Heartbeat(self._connector, backend, liveness, owner=self.owner, janitor=janitor)
        self.heart.on_beat = self._release_forgotten
        self.heart.start()

    # --- claiming --------------------------------------------------------------------------------------

    def claim(self, size: int, algorithm: ClaimStrategy) -> tuple[ClaimResult, Grip]:
        """Up to `size` jobs, committed as this owner's, and what they are settled through."""
        with self._alone:
            claimed = self._searched(size, algorithm)
            self._hold(claimed)
        self.progress()
        return claimed, self.grip(claimed)

    def grip(self, claimed: ClaimResult) -> Grip:
        """What claimed jobs are settled through."""
        return Grip(partial(self.settle, owner=claimed.owner), self.progress)

    def _hold(self, claimed: ClaimResult) -> None:
        self._in_hand[claimed.owner].update(keys_of(claimed))
        self._dispel_doubts()

    def _searched(self, size: int, strategy: ClaimStrategy) -> ClaimResult:
        while True:
            request = self._search.next_request(size, strategy)
            result = self._claim_once(strategy, request)
            self._search.learn(request, result)
            if self._search.is_over(request, result):
                return result

    def _claim_once(self, strategy: ClaimStrategy, request: ClaimRequest) -> ClaimResult:
        for _ in range(LIVES):
            tried = [self.owner.id]

            def take(connection: sa.Connection, tried: list[int] = tried) -> ClaimResult:
                tried[0] = self.owner.id  # at each try: on a new connection it may be a new one
                return strategy.claim(connection, tried[0], request)

            try:
                return self._connector.transaction(take, unless=self.unwanted, alone=strategy.is_one_statement)
            except OwnerDead as dead:
                self.owner.beat()
                if self.owner.id == tried[0]:  # it was alive all the time
                    raise self._swallowed(dead) from dead
        raise OwnerDeclaredDead(self._backend.roles.name, LIVES)

    def _swallowed(self, dead: OwnerDead) -> WriteSwallowed:
        short = dead if isinstance(dead, Unmarked) else Unmarked(0, ())
        return WriteSwallowed(self._backend.roles.name, "the claim", (short.marked, short.locked), short.keys)

    def _dispel_doubts(self) -> None:
        """A claim whose commit was not answered may have happened: hand back what we hold and do not know of.

        Looked after for a lease: where no session lock tells that the old session has ended, it may come late.
        """
        now = time.monotonic()
        if self._doubts != self._connector.lost:
            self._doubts, self._doubted = self._connector.lost, now
        if self._doubted is None:
            return
        self._doubted = None if now - self._doubted > self._lease else self._doubted
        me = self.owner.id
        held = self._connector.transaction(partial(_held, backend=self._backend, me=me))
        strays = [key for key in held if key not in self._in_hand[me] and key not in self._stuck]
        if strays:
            self._settler.settle(self._connector, me, Outcomes(released=strays))

    # --- settling --------------------------------------------------------------------------------------

    def settle(self, outcomes: Outcomes, owner: int) -> set[Key]:
        """Write outcomes of jobs claimed under this owner id; return the keys that it did not hold any more."""
        doubts: list[BaseException] = []
        with self._settling():
            unsettled = self._refusals_of(outcomes, owner, doubts)
            if not outcomes.all_done:
                self._search.look_back()
            return self._settled(outcomes, owner, unsettled, doubts)

    def _refusals_of(self, outcomes: Outcomes, owner: int, doubts: list[BaseException]) -> Unsettled:
        keys = outcomes.keys()
        try:
            return self._refusals.settle(owner, outcomes, doubts)
        except sa.exc.DBAPIError as error:
            if self._connector.is_passing(error):
                raise
            raise SettleFailed(self._backend.roles.name, len(keys), reason(error)) from error

    def turn(self, outcomes: Outcomes, owner: int, size: int, turn: SettleAndClaim) -> tuple[set[Key], ClaimResult]:
        """The same, and claim the next `size` jobs in the same transaction: none, where that does not succeed."""
        doubts: list[BaseException] = []
        with self._settling():
            unsettled, claimed = self._turned(outcomes, owner, size, turn=turn, doubts=doubts)
            if unsettled.stuck and claimed.jobs:  # that raises, and nobody would get what was claimed
                self._settler.settle(self._connector, claimed.owner, Outcomes(released=keys_of(claimed)))
                claimed = NOTHING
            lost = self._settled(outcomes, owner, unsettled, doubts)
            with contextlib.suppress(sa.exc.SQLAlchemyError, ClaimjobsError):
                self._hold(claimed)  # doubts that are not dispelled now are so with the next claim
            return lost, claimed

    def _turned(
        self, outcomes: Outcomes, owner: int, size: int, *, turn: SettleAndClaim, doubts: list[BaseException]
    ) -> tuple[Unsettled, ClaimResult]:
        if not outcomes.all_done:
            self._search.look_back()
        request = self._search.next_request(size, turn.algorithm)
        # The id is read at each try: on a new connection it may be a new one.
        work = lambda c: turn(c, self.owner.id, request, owner=owner, outcomes=outcomes)  # noqa: E731
        try:
            alone = turn.is_one_statement(outcomes)
            refused, claimed = self._connector.transaction(work, unconfirmed=doubts, alone=alone)
        except (OwnerDead, SomeLost, KeyNotUnique, WriteSwallowed):
            return self._refusals_of(outcomes, owner, doubts), NOTHING
        except sa.exc.DBAPIError as error:
            if self._connector.is_passing(error):
                raise
            # If that was about the claim, whoever asks for the next batch is told.
            return self._refusals_of(outcomes, owner, doubts), NOTHING
        self._search.learn(request, claimed)
        keys = keys_of(claimed)
        return self._refusals.follow(owner, outcomes, refused, refused={}, doubts=doubts, claimed=keys), claimed

    @contextlib.contextmanager
    def _settling(self) -> Iterator[None]:
        if self._process != os.getpid():  # a batch that a fork took along: its parent still works on it
            raise CrossedFork
        with self._alone:
            try:
                yield
            finally:
                # A batch may be settled after `close`, to learn that its jobs are lost: nobody else closes that.
                if self._closed:
                    self._connector.close()
        self.progress()

    def _settled(self, outcomes: Outcomes, owner: int, unsettled: Unsettled, doubts: list[BaseException]) -> set[Key]:
        """Keep the books; the keys of those that are really lost. Raises OutcomeRefused."""
        lost = set() if unsettled.lost and doubts and self._is_still(owner) else unsettled.lost
        keys = outcomes.keys()
        self._in_hand[owner].difference_update(keys, unsettled.stuck)
        (outcomes.only(set(keys) - lost) if lost else outcomes).count(self._report)
        self._report.lost += len(lost)
        if unsettled.stuck:
            self._stuck.update(unsettled.stuck)
            raise OutcomeRefused(self._backend.roles.name, unsettled.stuck, len(keys) - len(lost))
        return lost

    def _is_still(self, owner: int) -> bool:
        """Whether this is still the owner of that id, by the database's word.

        Then nobody took its jobs: those of a settle that it does not hold any more were settled by an earlier try of
        the same settle, whose commit happened although its answer was lost.
        """
        if self._closed:
            return False
        self.owner.beat(patience=None)
        return self.owner.id == owner

    @property
    def sleeper(self) -> Sleeper:
        """What waits to be called while there is nothing to do."""
        return self.heart.sleeper

    @property
    def owner_id(self) -> int:
        """The id in whose name jobs are claimed by now."""
        return self.owner.id

    # --- living ----------------------------------------------------------------------------------------

    def progress(self) -> None:
        """The work goes on: a job passed, a batch came or went."""
        self.heart.working(any(self._in_hand.values()))

    def look_back(self) -> None:
        """There may be jobs before those that were claimed last."""
        self._search.look_back()

    def _release_forgotten(self) -> None:
        if self._alone.locked():  # whoever is at work may be so for long, and the heart must beat
            return
        for claimed in self.ahead.forgotten(self._lease / 2):
            self.settle(Outcomes(released=keys_of(claimed)), claimed.owner)

    def give_up(self) -> None:
        """Do not try on when the database cannot be reached: this hand is about to be closed."""
        self._connector.give_up()

    def close(self) -> None:
        """Hand back, leave, close. In a forked child this does nothing: the connection is its parent's."""
        if self._process != os.getpid():
            return
        if self.heart.is_here:
            # A forgotten Queue is closed by the garbage collector, which runs in any thread. The heart cannot wait
            # for itself to end, nor for a turn on the connection that it may have at this moment.
            threading.Thread(target=self._close, name="claimjobs farewell").start()
        else:
            self._close()

    def _close(self) -> None:
        self.heart.stop()
        try:
            # Also run when the interpreter ends, perhaps without a server: then nothing can be handed back.
            with contextlib.suppress(sa.exc.SQLAlchemyError, ClaimjobsError):
                self._hand_back()
        finally:
            self._closed = True
            self._connector.on_open = lambda _: None  # who has left is registered no more
            self._connector.close()

    def _hand_back(self) -> None:
        self.ahead.clear()
        me = self.owner.id
        keys = self._connector.transaction(partial(_held, backend=self._backend, me=me), patience=1)
        if keys:
            self._settler.settle(self._connector, me, Outcomes(released=keys))
        self.owner.leave()


def keys_of(claimed: ClaimResult) -> list[Key]:
    return [job.key for job in claimed.jobs]


def _held(connection: sa.Connection, backend: Backend, me: int) -> list[Key]:
    return [key_of(row) for row in connection.execute(owners.held(backend.roles), {"claimjobs_me": me})]


@dataclass(eq=False)
class EarlyClaim:
    """A claim that waits to be asked for."""

    claimed: ClaimResult
    since: float = field(default_factory=time.monotonic)


class EarlyClaims:
    """Those of one owner. Each is had once, whoever asks: the loop that it was made for, or who clears away."""

    def __init__(self) -> None:
        self._waiting: set[EarlyClaim] = set()
        self._guard = threading.Lock()

    def add(self, claimed: ClaimResult) -> EarlyClaim:
        """This one waits now."""
        ahead = EarlyClaim(claimed)
        with self._guard:
            self._waiting.add(ahead)
        return ahead

    def take(self, ahead: EarlyClaim) -> ClaimResult | None:
        """The claim, if nobody has had it."""
        with self._guard:
            if ahead not in self._waiting:
                return None
            self._waiting.remove(ahead)
        return ahead.claimed

    def forgotten(self, seconds: float) -> Iterator[ClaimResult]:
        """Take those for which nobody has asked for so long."""
        with self._guard:
            old = [ahead for ahead in self._waiting if time.monotonic() - ahead.since >= seconds]
        yield from filter(None, map(self.take, old))

    def clear(self) -> None:
        """Nobody gets any of them any more: they are handed back with all that their owner holds."""
        with self._guard:
            self._waiting.clear()
