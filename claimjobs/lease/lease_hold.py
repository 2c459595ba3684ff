"""LeaseHold: claims that are committed under an owner's id, and stand while that owner lives."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Container, Iterable, Iterator
from typing import Final

import sqlalchemy as sa

from claimjobs.batch.hold import Hold, HoldContext, NextClaim
from claimjobs.batch.settle_and_claim import SettleAndClaim
from claimjobs.claim.claim_plan import ClaimPlan
from claimjobs.claim.strategy import LATER, NOTHING, ClaimRequest, ClaimResult, OwnerDead
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Key
from claimjobs.errors import (
    ClaimjobsError,
    ClaimRefused,
    CrossedFork,
    OutcomeRefused,
    SettleFailed,
    WriteSwallowed,
    key_unequal,
)
from claimjobs.lease.held_batches import NO_HANDLER_RUNS, HeldBatch, HeldBatches
from claimjobs.lease.owner import Owner
from claimjobs.log_events import HANDLER_HANGS, HOOK_FAILED, RELEASE_FAILED
from claimjobs.settle.outcomes import Outcomes
from claimjobs.settle.settler import LeaseSettler, Settler, SomeLost, Unsettled
from claimjobs.signals import raise_delayed, shielded

log = logging.getLogger("claimjobs.lease")

CANCEL_CHECK: Final = 1.0
"""Seconds after which a thread that waits for another one checks whether its process was cancelled."""
MOMENT: Final = 0.1
"""Seconds that the heartbeat waits for the end of a claim or a settle."""
OWNER_IDS: Final = 5
"""How often a claim is tried whose owner was declared dead before it and goes on under a new id."""


class LeaseHold(Hold):
    """One owner and the jobs that it holds. `close` releases these and removes the owner."""

    keeps_locks = False
    pause_is_stale = False
    """Whether `read_pause` is due because of the time: each heartbeat calls it."""

    def __init__(self, context: HoldContext, settler: Settler) -> None:
        super().__init__(context, settler)
        liveness = context.liveness
        self.held = HeldBatches()
        self._suspects_wait = False
        """Whether a claim found suspects while this owner held other jobs. It claims nothing until it holds none."""
        self._disconnects_seen = 0
        self._unconfirmed_since: float | None = None
        self._may_hold_unbatched = False
        """Whether this owner may hold jobs that no batch has: their claim ended in an error, or nobody asked for it."""
        self._lease, self._beat, self._max_batch_time = liveness.lease, liveness.beat, liveness.max_batch_time
        self._claim_patience = min(liveness.patience, liveness.lease)
        """For how long a settle is tried together with a claim, before it is tried without."""
        self._guard = threading.RLock()
        """Locked while the heartbeat is told what is held: of two threads the last one tells what both have done."""
        self.owner = Owner(context, settler, self)
        self._heartbeat = self.owner.thread
        self.sleeper = self.owner.sleeper
        """Lets an idle loop sleep until it is woken."""
        self._connector, self._reaper = self.owner.connector, self.owner.reaper
        self._settling = LeaseSettler(self._connector, context.backend, settler, context.retry)
        self._keys = self._reaper.keys
        self._together: SettleAndClaim | None = None
        """Settles a batch and claims the next one by the last plan."""
        self.owner.start()

    # --- claiming --------------------------------------------------------------------------------------

    def claim(self, size: int, plan: ClaimPlan) -> ClaimResult:
        """Claim up to `size` jobs for this owner, and commit."""
        self._reaper.report()
        with self._alone():
            if self._control.expired:
                return NOTHING
            if self._closed or not self._may_claim():
                return LATER
            claimed = self._claim_until_over(self._connector, size, plan)
            raise_delayed()  # nobody would get what is added now
            claimed = self._add_held(claimed)
        self._note_held()
        return NOTHING if self._control.expired else claimed  # `release_held` waited for it, and finds it

    def _may_claim(self, *, settled: ClaimResult | None = None) -> bool:
        """Whether this owner may claim while it holds other batches than the one that is settled with it.

        Suspects are held alone. So if this owner dies while it holds some, one of them is the cause: not a job of
        another thread, or of a batch that was claimed ahead.
        """
        others = self.held.of_owner(self.owner.id, but=settled)
        if not others:
            self._suspects_wait = False
        return not self._suspects_wait and not any(held.claimed.suspects for held in others)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """A `with` block of one thread at a time. After an error what it claimed may be committed.

        It is shielded: `Cancelled` between the lock and the block would leave the lock taken for ever.
        """
        with shielded():
            while not self._one_at_a_time.acquire(timeout=CANCEL_CHECK):
                raise_delayed()
            try:
                yield
            except BaseException:
                self._may_hold_unbatched = True
                raise
            finally:
                self._one_at_a_time.release()

    def read_pause(self) -> None:
        """Read whether the queue is paused, and note it in the control. After `stop` that is not tried again."""
        self.owner.read_pause()

    def note_pause(self, connection: sa.Connection) -> None:
        """Also tell the handlers which of their jobs this owner holds no more: they were cancelled, for example."""
        super().note_pause(connection)
        self._forget_plans(connection)  # the owner's connection is the one that claims
        before = time.monotonic() - self._beat
        long_held = [held for held in self.held.of_owner(self.owner.id) if held.since <= before]
        jobs = {job.key: job for held in long_held for job in held.claimed.jobs}
        for key in self.settler.table.lost(connection, self.owner.id, list(jobs)) if jobs else ():
            jobs[key].is_lost = True

    def _add_held(self, claimed: ClaimResult) -> ClaimResult:
        """Note that the jobs of a claim are held, and return it. Suspects beside other jobs are released."""
        if claimed.jobs and claimed.suspects and self.held.of_owner(claimed.owner):
            self._suspects_wait = self._may_hold_unbatched = True
            self.restart_from_head()
            claimed = LATER
        self.held.add(claimed)
        if self._settling.stuck:
            self._settling.forget(claimed.jobs)
        self._release_unbatched()
        return claimed

    def _claim_once(self, connector: Connector, request: ClaimRequest, plan: ClaimPlan) -> ClaimResult:
        strategy, alone = plan.strategy, plan.strategy.needs_no_transaction
        for _ in range(OWNER_IDS):
            tried = self.owner.id
            try:
                for attempt in connector.attempts(unless=self._control, autocommit=alone, divisible=plan.divisible):
                    with attempt as connection:
                        tried = self.owner.id  # a new connection may have registered under a new id
                        claimed = strategy.claim(connection, tried, request)
            except OwnerDead as dead:
                self.owner.row.beat()
                if self.owner.id == tried:  # the owner is alive
                    raise WriteSwallowed(self._backend.roles.name, "the claim", dead.counts, dead.keys) from dead
            except sa.exc.DBAPIError as error:
                # What a claim writes may be refused; a `where` can end in some of these errors, too.
                errors = self._backend.dialect.errors
                if errors.refuses_row(error) and errors.code(error) not in errors.bad_predicate:
                    raise ClaimRefused(self._backend.roles.name, reason(error)) from error
                raise
            else:
                return claimed
        says = f"this owner of jobs of table {self._backend.roles.name!r} was declared dead {OWNER_IDS} times in a row"
        raise ClaimjobsError(f"{says}: give it a longer lease, or find out who declares it dead (another clock?)")

    def _release_unbatched(self) -> None:
        """Release the jobs that this owner holds in the database, and that no batch has. After an error the next claim
        or heartbeat does it, and until then this owner does not sleep.

        The commit of a claim may have happened although the connection broke. Claims check this until a lease has
        passed: without a session lock the old session may still be alive, and may commit late.
        """
        now = time.monotonic()
        if self._disconnects_seen != self._connector.disconnects:
            self._disconnects_seen, self._unconfirmed_since = self._connector.disconnects, now
        if self._unconfirmed_since is None and not self._may_hold_unbatched:
            return
        me = self.owner.id
        try:
            unbatched = self.held.unbatched_among(self._settling.held_by(me, patience=0), me, but=self._settling.stuck)
            released = self._settling.release(me, unbatched, patience=0)
        except (sa.exc.SQLAlchemyError, ClaimjobsError) as error:
            self._may_hold_unbatched = True
            fields = {"event": RELEASE_FAILED, "owner": me, "error": reason(error)}
            log.debug("jobs that no batch has are not released yet: %s", fields["error"], extra=fields)
        else:
            self._report.released += released
            if unbatched:
                self._keys.make_all_next()
            self._may_hold_unbatched = released < len(unbatched)
            if self._unconfirmed_since is not None and now - self._unconfirmed_since > self._lease:
                self._unconfirmed_since = None

    # --- settling --------------------------------------------------------------------------------------

    def settle(self, claimed: ClaimResult, outcomes: Outcomes, next_claim: NextClaim | None = None) -> set[Key]:
        """Raises OutcomeRefused, CrossedFork, and SettleFailed for an error that another try would meet again."""
        plan = None if next_claim is None else next_claim.plan_after(outcomes)
        if self._process != os.getpid():  # the parent of a forked process still works on the batch
            raise CrossedFork
        claimed_next = NOTHING
        self.rest(claimed)  # to wait for the database, or for another thread, is no hang
        try:
            with self._alone():
                outcomes.claim_row, before = claimed.claim_row, outcomes.disconnects
                outcomes.disconnects = self._connector.disconnects if before is None else before
                lost = self._forget_lost(claimed, outcomes)
                if outcomes.gives_back:
                    self.restart_from_head()
                if outcomes:
                    together = self._settle_and_claim(claimed, outcomes, next_claim, plan)
                    if together is None:
                        parts = self._settling.write_in_parts(claimed.owner, outcomes)
                        unsettled = self._settling.make_failed(claimed.owner, outcomes, parts.unwritten, parts=parts)
                    else:
                        unsettled, claimed_next = together
                    lost |= self._record_settle(outcomes, claimed, unsettled)
                    claimed_next = self._add_held(claimed_next)
        except sa.exc.DBAPIError as error:
            if self._connector.is_passing(error):
                raise
            raise SettleFailed(self._backend.roles.name, len(outcomes.keys()), reason(error)) from error
        finally:
            self.progress(claimed)
            if self._closed:  # a batch may be settled after `close`, which opens the connection again
                self._connector.close()
        self._note_held()
        if claimed_next.jobs and self._control.expired:
            self.release_held()
        elif next_claim is not None and claimed_next.jobs:
            next_claim.claimed = claimed_next
        return lost

    def _forget_lost(self, claimed: ClaimResult, outcomes: Outcomes) -> set[Key]:
        """Remove the outcomes of jobs that this claim does not hold any more, and return their keys. This owner has
        given the batch to others, or has claimed the jobs again for another batch. Then the guard would let them pass.
        """
        held = claimed.jobs if self.held.of(claimed) is not None else ()
        if len(held) == len(outcomes.jobs):
            return set()
        gone = set(outcomes.jobs).difference(job.key for job in held)
        for key in gone:
            outcomes.forget(key)
        self._report.lost += len(gone)
        return gone

    def _settle_and_claim(
        self, claimed: ClaimResult, outcomes: Outcomes, next_claim: NextClaim | None, plan: ClaimPlan | None
    ) -> tuple[Unsettled, ClaimResult] | None:
        """The jobs that were not written, and the next claim, which is not held yet. None: the settle is to be made
        alone. It has priority: if the claim was refused, the next call of `claim` raises the error.
        """
        if next_claim is None or plan is None or not self._may_claim(settled=claimed):
            return None
        if self._together is None or self._together.plan is not plan:
            self._together = SettleAndClaim(self.settler, plan)
        way, owner = self._together, claimed.owner
        autocommit = way.may_autocommit(outcomes)
        try:
            request = self._next_request(self._connector, next_claim.size, plan)
            for attempt in self._connector.attempts(self._claim_patience, autocommit=autocommit, divisible=True):
                with attempt as connection:
                    me = self.owner.id  # a new connection may have registered under a new id
                    unwritten, new = way.settle_and_claim(connection, me, request, owner=owner, outcomes=outcomes)
        except (OwnerDead, SomeLost, ClaimjobsError, sa.exc.SQLAlchemyError) as error:
            passes = self._connector.is_passing(error) and not self._connector.may_be_of_a_row(error)
            if self._control.stopping and passes:
                raise  # after `stop` a lease is enough
            return None
        self._range.learn(request, new)
        keys = [job.key for job in new.jobs] if unwritten else []
        # If there are stuck jobs, OutcomeRefused is raised next: the next claim or heartbeat releases what was claimed.
        return self._settling.make_failed(owner, outcomes, unwritten, claimed=keys), new

    def split(self, claimed: ClaimResult, keeper: object) -> list[ClaimResult]:
        """Hold each job of a claim by itself; return a claim for each. `keeper`: in place of their Batches."""
        with self._alone():
            return self.held.split(claimed, keeper)

    def join(self, parts: Iterable[ClaimResult]) -> ClaimResult:
        """Settle these claims together: one claim, of all their jobs that are still held."""
        with self._alone():
            return self.held.join(parts)

    def confirm_next(self, claimed: ClaimResult) -> bool:
        self._reaper.report()
        return self.held.confirm_next(claimed)

    def release_next(self, claimed: ClaimResult) -> None:
        """The garbage collector ends a forgotten loop, in any thread, also in the middle of a transaction. Then the
        heartbeat releases the claim, and so it does while another thread claims or settles.
        """
        if self._process != os.getpid():
            return
        is_within = shielded().depth > 0
        with self._unless_busy() as may_write:
            if is_within or not may_write:
                if (held := self.held.of(claimed)) is not None:
                    held.since = -math.inf  # the next `forget` removes it
                return
            if self.held.remove(claimed):
                self._may_hold_unbatched = True
                self._release_unbatched()
        self._note_held()

    def _record_settle(self, outcomes: Outcomes, claimed: ClaimResult, unsettled: Unsettled) -> set[Key]:
        """Update what is held and the report; return the keys of the lost jobs. Raises OutcomeRefused.

        If the connection was lost since the first try of the settle, that try may have been committed. So the database
        is asked whether this owner was declared dead. If not, no job was reclaimed, and the lost ones are settled, but
        for those whose row says something else: others have cancelled or released them.
        """
        lost, owner = unsettled.lost, claimed.owner
        in_doubt = self._may_hold_unbatched or self._unconfirmed_since is not None
        if lost and self._connector.disconnects != outcomes.disconnects and not self._closed:
            in_doubt = True
            self.owner.row.beat(patience=None)
            if self.owner.id == owner:
                mine = lost & outcomes.done.keys()
                lost = self._connector.transaction(lambda connection: self.settler.not_done(connection, mine))
        others = len(outcomes) - len(lost)
        self.held.remove(claimed)
        # Also after a dead job the later ones of its key may be claimed.
        self._keys.make_next(claimed.jobs, given_back=len(outcomes.done) < len(outcomes))
        if lost:
            outcomes.become(outcomes.only(set(outcomes.keys()) - lost))
        outcomes.count(self._report)
        self._report.lost += len(lost)
        if unsettled.stuck:
            are_duplicates = unsettled.are_duplicates
            raise OutcomeRefused(self._backend.roles.name, unsettled.stuck, others, are_duplicates=are_duplicates)
        if lost and not in_doubt and self.held.unbatched_among(unsettled.held, owner, but=self._settling.stuck):
            raise key_unequal(self._backend.roles.name, sorted(lost, key=str))
        return lost

    @property
    def owner_id(self) -> int:
        """The id under which jobs are claimed now."""
        return self.owner.id

    # --- the whole hold --------------------------------------------------------------------------------

    def give(self, claimed: ClaimResult, batch: object, *, ahead: bool) -> None:
        """Note the Batch of a claim: if it is dropped without a settle, its jobs are released, after half a lease.
        `ahead`: no handler works on it before the first `progress`.
        """
        if (held := self.held.of(claimed)) is not None:
            held.batch = weakref.ref(batch)
            held.progressed_at = NO_HANDLER_RUNS if ahead else time.monotonic()

    def progress(self, claimed: ClaimResult) -> None:
        if (held := self.held.of(claimed)) is not None:
            held.progressed_at, held.hang_reported = time.monotonic(), False

    def rest(self, claimed: ClaimResult) -> None:
        if (held := self.held.of(claimed)) is not None:
            held.progressed_at = NO_HANDLER_RUNS

    def is_held(self, claimed: ClaimResult) -> bool:
        """Not any more if this owner was declared dead, and goes on under another id."""
        return self.held.of(claimed) is not None and claimed.owner == self.owner.id

    def _note_held(self) -> None:
        with self._guard:
            must_write = self._may_hold_unbatched or self._settling.later
            self.sleeper.note_held(may_sleep=not (self.held or must_write))

    def maintain(self, *, away: float = 0.0) -> None:
        """During a claim or a settle it does nothing: a heartbeat must not wait for them. The next one does it."""
        if away:  # mostly not: another thread may note progress at this moment
            self.held.excuse(away)
        with self._unless_busy() as may_write:
            if may_write:
                # Jobs without a claim, and after half a lease batches that were dropped without a settle, and claims of
                # a settle that no loop asked for.
                if self.held.forget(self._lease / 2):
                    self._may_hold_unbatched = True
                for written in self._settling.write_again():
                    written.count(self._report)
                    self._reaper.unreported.append(written)
                if self._may_hold_unbatched:
                    self._release_unbatched()
        until = time.monotonic() + self._beat  # then the next heartbeat is due, and what is left waits for it
        for hanging in self.held.hanging(self._max_batch_time):
            seconds = time.monotonic() - hanging.progressed_at
            if time.monotonic() >= until:
                break
            if not hanging.hang_reported:
                hanging.hang_reported = True
                self._report_hang(hanging, seconds, until)
            with self._unless_busy() as may_write:
                if may_write and hanging.hang_reported and self.held.of(hanging.claimed) is hanging:
                    # Others get its jobs, as if its owner had died. Its late settle is refused.
                    self._reaper.give_up(hanging.claimed, f"its handler made no progress for {seconds:.0f} s")
                    self.held.remove(hanging.claimed)
                    self._may_hold_unbatched = True  # a failure may have been refused
                    self.restart_from_head()
        self._note_held()

    def _report_hang(self, hanging: HeldBatch, seconds: float, until: float) -> None:
        jobs = len(hanging.claimed.jobs)
        words = "no progress on a batch of %d jobs for %.0f s: the handler hangs, others get its jobs"
        fields = {"event": HANDLER_HANGS, "owner": self.owner.id, "seconds": round(seconds, 1), "jobs": jobs}
        log.error(words, jobs, seconds, extra=fields)
        # If it took long in this thread, no heartbeat would be written, and the owner would lose all its batches.
        call = threading.Thread(target=self._call_on_hang, name="claimjobs on_hang", daemon=True)
        call.start()
        call.join(max(0.0, until - time.monotonic()))

    def _call_on_hang(self) -> None:
        try:
            self._control.batch_hangs()
        except (Exception, SystemExit) as error:
            fields = {"event": HOOK_FAILED, "queue": self._backend.roles.name, "hook": "on_hang", "error": str(error)}
            log.exception("on_hang failed", extra=fields)

    @contextlib.contextmanager
    def _unless_busy(self) -> Iterator[bool]:
        """A block without claims and settles; it gets False if one lasts longer than a moment. Shielded as `_alone`."""
        with shielded():
            may_write = self._one_at_a_time.acquire(timeout=MOMENT)
            try:
                yield may_write
            finally:
                if may_write:
                    self._one_at_a_time.release()

    def release_held(self) -> int:
        """Release all jobs, also those of open batches: the guard refuses the outcomes of these."""
        if self._process != os.getpid():
            return 0
        with self._one_at_a_time:
            if self._closed:
                return 0
            jobs = self._release_all(but=self._settling.stuck)
            self._report.released += jobs
        self._note_held()
        return jobs

    def _release_all(self, *, but: Container[Key] = (), patience: float | None = None) -> int:
        """Release what this owner holds in the database; return how many jobs that were."""
        held = self._settling.held_by(self.owner.id, patience)
        released = self._settling.release(self.owner.id, [key for key in held if key not in but], patience)
        self.held.clear()
        return released

    def _close_alone(self) -> None:
        try:
            with contextlib.suppress(sa.exc.SQLAlchemyError, ClaimjobsError):
                self._reaper.report()  # it calls hooks, which may claim or settle
        finally:
            super()._close_alone()

    def _close(self) -> None:
        self.owner.stop()
        try:
            # At the end of the interpreter there may be no server. Then others reclaim the jobs.
            with contextlib.suppress(sa.exc.SQLAlchemyError, ClaimjobsError):
                self._release_all(patience=1)
                if not self._settling.unreleased:
                    self.owner.row.leave()
        finally:
            self.owner.close()
