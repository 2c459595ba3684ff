"""LeaseHold: claims that are committed in the name of an owner, and stand while that owner lives."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from claimjobs.batch.claim_plan import ClaimPlan
from claimjobs.batch.hold import Hold
from claimjobs.batch.refusals import Refusals, Unsettled
from claimjobs.batch.settle import Outcomes, Settler, SomeLost
from claimjobs.claim.search import Search
from claimjobs.claim.strategy import NOTHING, ClaimRequest, ClaimResult, OwnerDead, Unmarked
from claimjobs.control import Control
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
from claimjobs.lease.owner import Owner, OwnerConnection
from claimjobs.lease.reaper import Reaper
from claimjobs.lease.sleeper import Sleeper
from claimjobs.options import Liveness, Retry
from claimjobs.report import Report
from claimjobs.statements import owners
from claimjobs.table.backend import Backend

OWNER_IDS: Final = 5
"""How often a claim is tried in a row whose owner was declared dead before it, and goes on under a new id."""


class LeaseHold(Hold):
    """One owner and what it holds. Registers the owner; `close` releases what is left, and removes the owner."""

    settle_is_final = False
    settles_and_claims = True

    def __init__(
        self,
        engine: sa.Engine,
        backend: Backend,
        settler: Settler,
        *,
        liveness: Liveness,
        retry: Retry,
        report: Report,
        control: Control,
    ) -> None:
        self._backend = backend
        self._settler = settler
        self._report = report
        self._connector = OwnerConnection(engine, backend.dialect, liveness, report, tables=backend.tables_in_use)
        self._control = control
        self._search = Search(report)
        self._process = os.getpid()
        self._held_keys: defaultdict[int, set[Key]] = defaultdict(set)
        """By the owner in whose name they were claimed."""
        self._early = EarlyClaims()
        self._stuck: set[Key] = set()
        """Those that can neither be settled nor fail: nobody shall do them again while this owner lives."""
        self._losses_seen = 0
        self._unconfirmed_since: float | None = None
        self._closed = False
        self._lease = liveness.lease
        self._one_at_a_time = threading.Lock()
        """Held by a claim or a settle: between its commit and its book-keeping no other may look at what is held."""
        self.owner = Owner(self._connector, backend, liveness)
        self._refusals = Refusals(self._connector, backend, settler, retry)
        reaper = Reaper(self._connector, backend, settler, retry)
        self.heartbeat = Heartbeat(
            self._connector, backend, liveness, owner=self.owner, reaper=reaper, hold=self, control=control
        )
        self.heartbeat.start()

    # --- claiming --------------------------------------------------------------------------------------

    def claim(self, size: int, plan: ClaimPlan) -> ClaimResult:
        """Up to `size` jobs, committed as this owner's."""
        with self._one_at_a_time:
            claimed = self._claim_until_over(size, plan)
            self._keep(claimed)
        self.progress()
        return claimed

    def _keep(self, claimed: ClaimResult) -> None:
        self._held_keys[claimed.owner].update(keys_of(claimed))
        self._release_unconfirmed()

    def _claim_until_over(self, size: int, plan: ClaimPlan) -> ClaimResult:
        while True:
            request = self._search.next_request(size, plan.strategy)
            claimed = self._claim_once(plan, request)
            self._search.learn(request, claimed)
            if self._search.is_over(request, claimed):
                return claimed

    def _claim_once(self, plan: ClaimPlan, request: ClaimRequest) -> ClaimResult:
        strategy = plan.strategy
        for _ in range(OWNER_IDS):
            tried = self.owner.id
            try:
                for attempt in self._connector.attempts(unless=self._control, alone=strategy.is_one_statement):
                    with attempt as connection:
                        tried = self.owner.id  # a new connection may have registered under a new id
                        claimed = strategy.claim(connection, tried, request)
            except OwnerDead as dead:
                self.owner.beat()
                if self.owner.id == tried:  # it was alive all the time
                    raise self._swallowed(dead) from dead
            else:
                return claimed
        raise OwnerDeclaredDead(self._backend.roles.name, OWNER_IDS)

    def _held_by(self, owner: int, patience: float | None = None) -> list[Key]:
        for attempt in self._connector.attempts(patience):
            with attempt as connection:
                rows = connection.execute(owners.held(self._backend.roles), {"claimjobs_me": owner}).all()
        return [key_of(row) for row in rows]

    def _swallowed(self, dead: OwnerDead) -> WriteSwallowed:
        short = dead if isinstance(dead, Unmarked) else Unmarked(0, ())
        return WriteSwallowed(self._backend.roles.name, "the claim", (short.marked, short.locked), short.keys)

    def _release_unconfirmed(self) -> None:
        """A claim whose commit was not answered may have happened: hand back what we hold and do not know of.

        Looked after for a lease: where no session lock tells that the old session has ended, it may come late.
        """
        now = time.monotonic()
        if self._losses_seen != self._connector.lost:
            self._losses_seen, self._unconfirmed_since = self._connector.lost, now
        if self._unconfirmed_since is None:
            return
        self._unconfirmed_since = None if now - self._unconfirmed_since > self._lease else self._unconfirmed_since
        me = self.owner.id
        held = self._held_by(me)
        unknown = [key for key in held if key not in self._held_keys[me] and key not in self._stuck]
        if unknown:
            self._settler.settle(self._connector, me, Outcomes(released=unknown))

    # --- settling --------------------------------------------------------------------------------------

    def settle(self, claimed: ClaimResult, outcomes: Outcomes) -> set[Key]:
        """Write the outcomes; the keys of the jobs that this owner held no longer.

        Raises OutcomeRefused, SettleFailed or CrossedFork.
        """
        owner, unconfirmed = claimed.owner, list[BaseException]()
        with self._settling(outcomes):
            unsettled = self._refusals.settle(owner, outcomes, unconfirmed)
            if not outcomes.all_done:
                self.restart_from_head()
            return self._settled(outcomes, owner, unsettled, unconfirmed)

    def settle_and_claim(
        self, claimed: ClaimResult, outcomes: Outcomes, size: int, plan: ClaimPlan
    ) -> tuple[set[Key], ClaimResult]:
        """Settle as `settle` does, and claim the next `size` jobs in the same transaction: none if that fails."""
        owner, unconfirmed = claimed.owner, list[BaseException]()
        way = plan.settle_and_claim(self._settler)
        with self._settling(outcomes):
            if not outcomes.all_done:
                self.restart_from_head()
            request = self._search.next_request(size, plan.strategy)
            try:
                for attempt in self._connector.attempts(unconfirmed=unconfirmed, alone=way.is_one_statement(outcomes)):
                    with attempt as connection:
                        me = self.owner.id  # a new connection may have registered under a new id
                        lost, following = way.settle_and_claim(connection, me, request, owner=owner, outcomes=outcomes)
            except (OwnerDead, SomeLost, KeyNotUnique, WriteSwallowed, sa.exc.DBAPIError) as error:
                if self._connector.is_passing(error):
                    raise
                # If that was about the claim, whoever asks for the next batch gets the error.
                unsettled, following = self._refusals.settle(owner, outcomes, unconfirmed), NOTHING
            else:
                self._search.learn(request, following)
                unsettled, following = self._followed(
                    outcomes, owner, lost, following=following, unconfirmed=unconfirmed
                )
            lost = self._settled(outcomes, owner, unsettled, unconfirmed)
            with contextlib.suppress(sa.exc.SQLAlchemyError, ClaimjobsError):
                self._keep(following)  # what cannot be looked up now is looked up with the next claim
        if following.jobs:
            self._early.add(following)
        return lost, following

    def _followed(
        self,
        outcomes: Outcomes,
        owner: int,
        unwritten: set[Key],
        *,
        following: ClaimResult,
        unconfirmed: list[BaseException],
    ) -> tuple[Unsettled, ClaimResult]:
        """Which jobs are unsettled, and the claim: released where a job is stuck, for that is about to be raised."""
        keys = keys_of(following)
        unsettled = self._refusals.follow(owner, outcomes, unwritten, refused={}, unconfirmed=unconfirmed, claimed=keys)
        if unsettled.stuck and keys:
            self._settler.settle(self._connector, following.owner, Outcomes(released=keys))
            following = NOTHING
        return unsettled, following

    def take_early(self, claimed: ClaimResult) -> bool:
        """Whether this claim of `settle_and_claim` can be worked on now: nobody released it meanwhile."""
        return self._early.take(claimed)

    @contextlib.contextmanager
    def _settling(self, outcomes: Outcomes) -> Iterator[None]:
        """Around a settle. Raises SettleFailed for an error that will not pass."""
        if self._process != os.getpid():  # a batch that a fork took along: its parent still works on it
            raise CrossedFork
        with self._one_at_a_time:
            try:
                yield
            except sa.exc.DBAPIError as error:
                if self._connector.is_passing(error):
                    raise
                raise SettleFailed(self._backend.roles.name, len(outcomes.keys()), reason(error)) from error
            finally:
                # A batch may be settled after `close`, to learn that its jobs are lost: nobody else closes that.
                if self._closed:
                    self._connector.close()
        self.progress()

    def _settled(
        self, outcomes: Outcomes, owner: int, unsettled: Unsettled, unconfirmed: list[BaseException]
    ) -> set[Key]:
        """Keep the books; the keys of those that are really lost. Raises OutcomeRefused."""
        lost = set() if unsettled.lost and unconfirmed and self._is_still(owner) else unsettled.lost
        keys = outcomes.keys()
        self._held_keys[owner].difference_update(keys, unsettled.stuck)
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
        return self.heartbeat.sleeper

    @property
    def owner_id(self) -> int:
        """The id in whose name jobs are claimed by now."""
        return self.owner.id

    # --- living ----------------------------------------------------------------------------------------

    def progress(self) -> None:
        """The work goes on: a job passed, a batch came or went."""
        self.heartbeat.note_progress(any(self._held_keys.values()))

    def restart_from_head(self) -> None:
        """Search from the head of the order next: there may be jobs before those that were claimed last."""
        self._search.look_back()

    def release_forgotten(self) -> None:
        """Release the early claims for which nobody asked for half a lease."""
        if self._one_at_a_time.locked():  # a claim or settle may take long, and the heartbeat must not wait for it
            return
        for claimed in self._early.forgotten(self._lease / 2):
            self.settle(claimed, Outcomes(released=keys_of(claimed)))

    def give_up(self) -> None:
        """Do not try on when the database cannot be reached: this hand is about to be closed."""
        self._connector.give_up()

    def close(self) -> None:
        """Hand back, leave, close. In a forked child this does nothing: the connection is its parent's."""
        if self._process != os.getpid():
            return
        if self.heartbeat.is_here:
            # A forgotten Queue is closed by the garbage collector, which runs in any thread. The heart cannot wait
            # for itself to end, nor for a turn on the connection that it may have at this moment.
            threading.Thread(target=self._close, name="claimjobs farewell").start()
        else:
            self._close()

    def _close(self) -> None:
        self.heartbeat.stop()
        try:
            # Also run when the interpreter ends, perhaps without a server: then nothing can be handed back.
            with contextlib.suppress(sa.exc.SQLAlchemyError, ClaimjobsError):
                self._release_all()
        finally:
            self._closed = True
            self.owner.retire()
            self._connector.close()

    def _release_all(self) -> None:
        self._early.clear()
        me = self.owner.id
        keys = self._held_by(me, patience=1)
        if keys:
            self._settler.settle(self._connector, me, Outcomes(released=keys))
        self.owner.leave()


def keys_of(claimed: ClaimResult) -> list[Key]:
    return [job.key for job in claimed.jobs]


class EarlyClaims:
    """Claims that were made with a settle, and that nobody has asked for yet. Each is given once."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[ClaimResult, float]] = {}
        """By identity: the claim, and since when it waits."""
        self._guard = threading.Lock()

    def add(self, claimed: ClaimResult) -> None:
        """This claim waits from now on."""
        with self._guard:
            self._waiting[id(claimed)] = claimed, time.monotonic()

    def take(self, claimed: ClaimResult) -> bool:
        """Whether the claim was still there."""
        with self._guard:
            return self._waiting.pop(id(claimed), None) is not None

    def forgotten(self, seconds: float) -> Iterator[ClaimResult]:
        """Take those for which nobody has asked for so long."""
        with self._guard:
            old = [claimed for claimed, since in self._waiting.values() if time.monotonic() - since >= seconds]
        yield from filter(self.take, old)

    def clear(self) -> None:
        """Nobody gets any of them any more: they are released with all that their owner holds."""
        with self._guard:
            self._waiting.clear()
