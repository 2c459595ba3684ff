"""Claims held by an open transaction: its row locks are the claim, and its commit writes the outcomes.

If the process or the connection dies, the server rolls the transaction back and releases the jobs. The claims have no
owner, and a table needs no column for one.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
import weakref
from dataclasses import replace

import sqlalchemy as sa

from claimjobs.batch.hold import HandlerWrites, Hold, HoldContext, NextClaim
from claimjobs.batch.open_transaction import BatchTransaction, OpenTransaction
from claimjobs.claim.claim_plan import ClaimPlan
from claimjobs.claim.record import record_of
from claimjobs.claim.strategy import LATER, NOTHING, ClaimRequest, ClaimResult
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import reason
from claimjobs.database.transactions import in_utc, savepoint
from claimjobs.dialects import Key
from claimjobs.dialects.error_codes import LOST
from claimjobs.errors import (
    BatchRolledBack,
    ClaimjobsError,
    ClaimsDiffer,
    CrossedFork,
    NoOpenTransaction,
    WriteSwallowed,
)
from claimjobs.job import entry_of
from claimjobs.lease.owner import Owner
from claimjobs.lease.registry import check_claims
from claimjobs.lease.sleeper import IdleSleeper
from claimjobs.log_events import SLEEP_FAILED
from claimjobs.options import Retry
from claimjobs.settle.outcome_table import outcome_table
from claimjobs.settle.outcomes import Outcomes
from claimjobs.settle.refusals import REFUSALS, SHORTER, WriteInHalves, is_of_a_row
from claimjobs.settle.settler import Settler
from claimjobs.statements.settle import Failure
from claimjobs.table.backend import Backend, with_owners

NOBODY = 0
"""The owner id of jobs that are only locked."""

log = logging.getLogger("claimjobs.sleep")


class TransactionHold(Hold):
    """Claims through open transactions: each batch has one, on a connection of its own.

    It has an owner that holds no job, to be woken while there is no work, and to reclaim the jobs of dead owners. That
    one registers when a loop is idle for the first time, or another owner of the table records claims, and leaves when
    the Queue is closed. A consumer that cannot have it polls, and reclaims nothing: without the tables of owners and
    queues, without the rights to write them, or behind a pooler.
    """

    keeps_locks = True
    owner_id = NOBODY

    def __init__(self, context: HoldContext, settler: Settler) -> None:
        super().__init__(context, settler)
        self._liveness, record = context.liveness, record_of(self._backend, settler.record.settled_at)
        self._reclaims = Settler(outcome_table(self._backend, record), None)
        """Writes the outcomes of the jobs of dead owners, if other consumers claim by lease."""
        self.owner: Owner | None = None
        self._registering = threading.Lock()
        self._may_register = self._liveness.session_lock is not False
        self._makes_savepoints = False
        """Whether a settle makes a savepoint, which costs a round trip: only after a row was refused without one."""
        self._guard = threading.Lock()
        self._idle: list[OpenTransaction] = []
        self._busy: list[OpenTransaction] = []
        self._pause_read_at = -math.inf

    # --- claiming --------------------------------------------------------------------------------------

    def claim(self, size: int, plan: ClaimPlan) -> ClaimResult:
        """Claim up to `size` jobs, locked by a transaction that stays open."""
        if self.owner is not None:
            self.owner.reaper.report()
        transaction = self._take()
        try:
            with self._one_at_a_time:
                claimed = LATER if self._closed else self._claim_until_over(transaction, size, plan)
                transaction.hold(claimed)
        except BaseException:
            self._give_back(transaction)
            raise
        if claimed.jobs and not self._control.expired:  # after this check `release_held` finds the batch
            return claimed
        self._give_back(transaction)
        return NOTHING if claimed.jobs else claimed

    def _take(self) -> OpenTransaction:
        """A transaction for the next claim. Those whose Batch was dropped without a settle are rolled back before."""
        with self._guard:
            dropped = [each for each in self._busy if each.batch is not None and each.batch.is_dropped]
            for transaction in dropped:
                transaction.batch = None  # no other thread finds it
        for transaction in dropped:
            self._give_back(transaction)
        with self._guard:
            if not self._idle:
                self._idle.append(OpenTransaction(self._context.engine, self._backend, self._liveness, self._report))
            transaction = self._idle.pop()
            self._busy.append(transaction)
        return transaction

    @property
    def pause_is_stale(self) -> bool:
        """No heartbeat reads it: it is read between two batches, once in the time of a heartbeat at most."""
        return time.monotonic() - self._pause_read_at >= self._liveness.beat

    def read_pause(self) -> None:
        """Read it through the connection of the next claim. A database without the table of queues has no pauses.

        If another owner records claims, this consumer has an owner from now on: perhaps nobody else is left to reclaim
        them, and it may never be idle. Raises ClaimsDiffer if an owner has registered whose claims are not seen here,
        or that does not see these.
        """
        if not self._backend.locks_rows:
            self._have_owner()  # an owner by lease that registers later must see that this consumer is there
        transaction, are_recorded = self._take(), False
        try:
            for attempt in transaction.attempts(unless=self._control):
                with attempt as connection:
                    are_recorded = check_claims(connection, self._backend)
                    self.note_pause(connection)
                    self._forget_plans(connection)
            self._pause_read_at = time.monotonic()
        except sa.exc.DBAPIError as error:
            if transaction.is_passing(error):
                raise
            self._pause_read_at = math.inf  # it is missing, or this user may not read it: do not try again
        finally:
            self._give_back(transaction)
        if are_recorded:
            self._have_owner()

    def _claim_once(self, connector: Connector, request: ClaimRequest, plan: ClaimPlan) -> ClaimResult:
        for attempt in connector.attempts(unless=self._control, divisible=plan.divisible):
            with attempt as connection:
                claimed = plan.strategy.claim(connection, NOBODY, request)
        return claimed

    # --- settling --------------------------------------------------------------------------------------

    def settle(self, claimed: ClaimResult, outcomes: Outcomes, next_claim: NextClaim | None = None) -> set[Key]:
        """Raises BatchRolledBack, NoOpenTransaction, CrossedFork. Nothing is claimed. Only a Locking that locks no rows
        can lose jobs."""
        if self._process != os.getpid():
            raise CrossedFork
        batch = self._open(claimed)
        if batch is None:
            raise NoOpenTransaction("has no open transaction any more")
        settling = IsolatingSettle(self._backend, self.settler, self._context.retry, outcomes)
        settled = False
        try:
            settling.commit(batch, with_savepoint=self._makes_savepoints)
            settled, batch.transaction.batch = True, None
        except BatchRolledBack as gone:
            self._report.transients[gone.kind] += 1
            cause = gone.__cause__  # of a statement, or of the commit
            if isinstance(cause, sa.exc.SQLAlchemyError) and is_of_a_row(cause, self._backend.dialect):
                self._makes_savepoints = True
            if gone.kind == LOST:  # perhaps because of a setting of the server
                seconds = time.monotonic() - batch.since
                limits = batch.transaction.limits.items()
                over = [f"{name} = {limit:g} s" for name, limit in limits if limit <= seconds]
                gone = BatchRolledBack(LOST, lost_after=seconds, limit=over[0] if over else None)
            raise gone from cause
        finally:
            self._give_back(batch.transaction)
            self.unwritable |= settling.unwritable
            if not settled or settling.written.gives_back:
                self.restart_from_head()
        outcomes.become(settling.written)
        if settling.lost:
            self._report.lost += len(settling.lost)
            outcomes.become(outcomes.only(set(outcomes.keys()) - settling.lost))
        outcomes.count(self._report)
        if settling.refused is not None:
            raise BatchRolledBack(reason(settling.refused), isolates=True) from settling.refused
        return settling.lost

    def writes_of(self, claimed: ClaimResult) -> HandlerWrites:
        return self._open(claimed) or HandlerWrites()

    def _open(self, claimed: ClaimResult) -> BatchTransaction | None:
        """The open transaction of these jobs."""
        with self._guard:
            batches = [transaction.batch for transaction in (*self._busy, *self._idle)]
        return next((batch for batch in batches if batch is not None and batch.claimed is claimed), None)

    def give(self, claimed: ClaimResult, batch: object, *, ahead: bool) -> None:
        """Note the Batch of a claim: if it is dropped without a settle, the next claim releases its jobs."""
        opened = self._open(claimed)
        if opened is not None:
            opened.given = weakref.ref(batch)

    def is_held(self, claimed: ClaimResult) -> bool:
        """Not any more at the deadline of a stop, which breaks its connection."""
        batch = self._open(claimed)
        return batch is not None and batch.transaction.is_open and not self._control.expired

    def _give_back(self, transaction: OpenTransaction) -> None:
        transaction.roll_back()
        with self._guard:
            if transaction in self._busy:
                self._busy.remove(transaction)
                self._idle.append(transaction)

    def release_held(self) -> int:
        """Break the connections of all open transactions: the server rolls them back."""
        if self._process != os.getpid():
            return 0
        return sum(transaction.break_off() for transaction in tuple(self._busy))

    # --- asleep ----------------------------------------------------------------------------------------

    @property
    def sleeper(self) -> IdleSleeper | None:
        """Lets an idle loop sleep until it is woken; None: it polls."""
        self._have_owner()
        return None if self.owner is None else self.owner.sleeper

    def _have_owner(self) -> None:
        """Register, if that may help. The owner needs a session lock, by which it can be woken. After an error the
        consumer polls, so that nothing here is worth a second attempt. Raises ClaimsDiffer.
        """
        with self._registering:
            if self.owner is not None or not self._may_register:
                return
            liveness, owner = replace(self._liveness, patience=0), None
            connector = Connector(self._context.engine, self._backend.dialect, liveness, self._report)
            try:
                backend = replace(self._backend, records_claims=False)
                backend = connector.transaction(lambda connection: with_owners(connection, backend))
                owner = Owner(replace(self._context, backend=backend, liveness=liveness), self._reclaims, self)
                owner.start()
                owner.read_pause()
                self._may_register = owner.row.locked
            except ClaimsDiffer:
                raise
            except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
                log.debug("no sleep: %s", reason(error), extra={"event": SLEEP_FAILED, "error": str(error)})
                self._may_register = connector.is_passing(error)
            else:
                if owner.row.locked:
                    self.owner, self._heartbeat = owner, owner.thread
            finally:
                connector.close()
                if owner is not None and self.owner is None:
                    owner.end()

    def _close(self) -> None:
        for transaction in (*self._busy, *self._idle):
            transaction.close()
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.end()


class IsolatingSettle:
    """A settle in the transaction that holds the jobs. If a row is refused, it undoes the batch and marks suspects.

    Only a savepoint is rolled back, so the locks are kept. Without the marks the next claim would get the same batch.
    """

    def __init__(self, backend: Backend, settler: Settler, retry: Retry, outcomes: Outcomes) -> None:
        self.written = outcomes
        """The outcomes that were written."""
        self.refused: Exception | None = None
        """The error because of which other outcomes were written than were given."""
        self.unwritable: dict[Key, Exception] = {}
        """The jobs in whose rows nothing can be written, with the error."""
        self.lost = set[Key]()
        """The jobs that were cancelled or deleted meanwhile, which only claims that lock no rows let happen."""
        self._settler, self._retry, self._locks_rows = settler, retry, backend.locks_rows
        self._roles, self._dialect = backend.roles, backend.dialect
        self._depends_on_zone = backend.source.depend_on_zone

    def commit(self, batch: BatchTransaction, *, with_savepoint: bool) -> None:
        """Write the outcomes and commit, all or nothing. Raises BatchRolledBack.

        `with_savepoint`: make one before the settle, so that it can be written again without what is refused.
        """
        outcomes = self.written
        # Errors and values of columns may be refused.
        with_savepoint = with_savepoint or bool(outcomes.failures or outcomes.columns)
        with batch.committed() as (connection, outer, refused):
            if refused is not None:
                self._isolate(connection, refused, outer)
                return
            try:
                self._write(connection, outcomes, with_savepoint=with_savepoint)
            except WriteSwallowed:
                raise  # not known of which job
            except REFUSALS as error:
                if not is_of_a_row(error, self._dialect) or not (with_savepoint or outer is not None):
                    raise
                if not (with_savepoint and self._wrote_with_less_text(connection, outcomes)):
                    self._isolate(connection, error, outer)
                    return
            if outer is not None:
                outer.commit()

    def _isolate(self, connection: sa.Connection, error: Exception, outer: sa.NestedTransaction | None) -> None:
        """Undo the batch, and write other outcomes: a single done job failed, several are suspects. A row that refuses
        that, too, stays as it was. Raises the error if the table can store none of it.
        """
        roles, done = self._roles, self.written.done
        if not (done and roles.can_isolate):
            raise error
        instead = self.written.only(set(self.written.keys()) - set(done))
        text = roles.kept_of(f"its outcome cannot be written: {reason(error)}")
        for key in done:
            attempts = roles.value_of("attempts", entry_of(self.written.jobs[key]), 0)
            if len(done) > 1:
                instead.suspects[key] = Failure(text, self._retry.wait(attempts))
            elif self._retry.is_last(attempts):
                instead.dead[key] = Failure(text)
            else:
                instead.retried[key] = Failure(text, self._retry.wait(attempts))
        group = len(instead.suspects)
        instead.suspects = {key: replace(each, group=group) for key, each in instead.suspects.items()}
        if outer is not None:
            outer.rollback()
        self.written, self.refused = self._written_of(connection, instead), error
        if not self.written:  # it may be about every row, and pass
            self.unwritable.clear()
            raise error

    def _written_of(self, connection: sa.Connection, outcomes: Outcomes) -> Outcomes:
        """Write outcomes by halves: those that are written. Notes which jobs' rows refuse theirs alone."""
        parts = WriteInHalves(outcomes.keys(), self._dialect, {})
        for keys in parts:
            part = outcomes.only(keys)
            try:
                self._write(connection, part)
            except REFUSALS as again:
                if not (is_of_a_row(again, self._dialect) and self._wrote_with_less_text(connection, part)):
                    parts.refuse(keys, again)
                    if len(keys) == 1 and self._dialect.errors.refuses_row(again):
                        self.unwritable[keys[0]] = again
        return outcomes.only(set(outcomes.keys()) - parts.refused.keys())

    def _wrote_with_less_text(self, connection: sa.Connection, outcomes: Outcomes) -> bool:
        """Write the outcomes with less of their errors; return whether that was possible."""
        for longest in SHORTER if outcomes.failures else ():
            try:
                self._write(connection, outcomes.with_short_errors(longest))
            except REFUSALS as error:
                if not is_of_a_row(error, self._dialect):
                    raise
            else:
                return True
        return False

    def _write(self, connection: sa.Connection, outcomes: Outcomes, *, with_savepoint: bool = True) -> None:
        """Write outcomes in UTC: the session has the handler's zone, and a rollback to a savepoint restores that. What
        a commit would refuse is refused here, as long as a savepoint can be rolled back.
        """
        utc = in_utc(connection, self._dialect, depends=self._depends_on_zone)
        with savepoint(connection) if with_savepoint else contextlib.nullcontext(), utc:
            if not self._locks_rows:
                held = self._settler.lock(connection, 0, outcomes)
                self.lost |= set(outcomes.keys()) - held
                outcomes = outcomes.only(held)
            self._settler.write_locked(connection, None, outcomes)
            if with_savepoint and (check := self._dialect.sessions.check_deferred) is not None:
                connection.execute(check).close()
