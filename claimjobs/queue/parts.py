"""QueueParts: what is built for a Queue. Each part is built once, when it is needed first."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from claimjobs.admin.stats import Retries, read_retries
from claimjobs.batch.claim_plan import ClaimPlan
from claimjobs.batch.failures import Failures
from claimjobs.batch.settle import OnDone, Settler
from claimjobs.batch.still_due import StillDueRows
from claimjobs.batch.transaction_hold import TransactionHold
from claimjobs.claim.choose_strategy import strategy_for
from claimjobs.claim.selector import Selector
from claimjobs.claim.strategy import ClaimStrategy
from claimjobs.control import Control
from claimjobs.database.connect import commits_by_itself, connected
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import reason
from claimjobs.database.session_sharing import require_session_lock
from claimjobs.database.time_zone import in_utc
from claimjobs.dialects import Key
from claimjobs.dialects.types import database_now, statement_now
from claimjobs.enqueue.enqueuer import Enqueuer
from claimjobs.enqueue.notifier import Notifier
from claimjobs.errors import ClaimjobsError, CrossedFork, DoneUndecided, PoolUnfit, not_consumer
from claimjobs.lease.claims_check import ClaimsCheck
from claimjobs.lease.lease_hold import LeaseHold
from claimjobs.lease.reaper import Reaper
from claimjobs.lease.sleeper import IdleSleeper
from claimjobs.log_events import COMMENTS_LOST
from claimjobs.queue.idle_owner import IdleOwner
from claimjobs.report import Report
from claimjobs.settings import Settings
from claimjobs.statements.find import Selection, all_but
from claimjobs.statements.pause import resumed
from claimjobs.statements.side_car import SideCarJoin, of_jobs
from claimjobs.table.backend import Backend, inspect_table
from claimjobs.table.claim_index import sweep_order
from claimjobs.table.on_done import LEAVE, MARK_LOST, Finish, default_finish, lost_mark, sentence
from claimjobs.table.predicates import Where

log = logging.getLogger("claimjobs.queue")


class QueueParts:
    """The parts of a Queue. In another process than the one that made it they raise CrossedFork."""

    def __init__(self, engine: sa.Engine, settings: Settings, report: Report, control: Control) -> None:
        self.engine = engine
        self._settings = settings
        self._report = report
        self._control = control
        self._process = os.getpid()
        self._preparing = threading.RLock()
        self._backend: Backend | None = None
        self._finish: tuple[Finish | None] | None = None
        self._still_due_rows: StillDueRows | None = None
        self._plan: ClaimPlan | None = None
        self._unclaimable: dict[Key, None] = {}
        self._hold: LeaseHold | TransactionHold | None = None
        self._idle_owner: IdleOwner | None = None
        self._enqueuer: Enqueuer | None = None
        self._finalizers: list[Callable[[], Any]] = []

    # --- the database ----------------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        """The server and the tables. Raises ConnectionFailed, ServerUnfit or UnfitTable."""
        if self._process != os.getpid():
            raise CrossedFork
        with self._preparing:
            if self._backend is None:
                chosen = self._settings
                found = inspect_table(
                    self.engine,
                    chosen.table,
                    chosen.dialect,
                    columns=chosen.columns,
                    side_car=chosen.side_car,
                    by_lease=chosen.by_lease,
                    per_batch=chosen.per_batch,
                )
                self._backend = replace(found, locks_rows=chosen.locks_rows)
            return self._backend

    def must_claim(self) -> Backend:
        """The server and the tables, for claims. Raises AccessDenied if this user may not read the owners."""
        backend = self.backend
        if backend.refusal is not None:
            raise backend.refusal
        return backend

    def connector(self) -> closing[Connector]:
        """A connection of its own, beside the one that claims, for a `with` block."""
        backend, liveness = self.backend, self._settings.liveness
        return closing(Connector(self.engine, backend.dialect, liveness, self._report, tables=backend.tables_in_use))

    # --- what is built ---------------------------------------------------------------------------------

    @property
    def hold(self) -> LeaseHold | TransactionHold:
        """Holds claims. A lease hold registers as an owner."""
        backend = self.must_claim()  # each time: it raises CrossedFork in a forked process
        with self._preparing:
            if self._hold is None:
                self._hold = self._new_hold(backend)
                self._finalizers.append(weakref.finalize(self, self._hold.close))
                if self._settings.locking is not None:
                    self._finalizers.append(weakref.finalize(self, self._settings.locking.close))
                self._hold.read_pause()
            return self._hold

    def check_session_lock(self) -> None:
        """Raise SessionsShared if `session_lock=True` is set, and no session can keep a lock for this Queue."""
        if self._settings.liveness.session_lock:
            require_session_lock(self.engine, self.backend.dialect, self.backend.source.table)

    def check_pool(self) -> None:
        """Raise PoolUnfit if the engine gives a connection to a second user while the first one uses it."""
        if isinstance(self.engine.pool, (sa.pool.StaticPool, sa.pool.SingletonThreadPool)):
            raise PoolUnfit(
                f"a {type(self.engine.pool).__name__} gives one connection to two users at a time, so two transactions "
                "would be one: make the engine without `poolclass`, or with `poolclass=NullPool`"
            )

    def _new_hold(self, backend: Backend) -> LeaseHold | TransactionHold:
        self.check_pool()
        self.check_session_lock()
        chosen, report, control = self._settings, self._report, self._control
        settler, liveness, retry = self.settler(), chosen.liveness, chosen.retry
        common: Any = {"liveness": liveness, "retry": retry, "report": report, "control": control}
        if chosen.by_lease:
            return LeaseHold(self.engine, backend, settler, failures=self.failures, **common)
        with connected(self.engine) as connection:
            ClaimsCheck(backend).run(connection)
        idle = replace(backend, records_claims=False)
        self._idle_owner = IdleOwner(self.engine, idle, self._reclaims(idle), failures=self.failures, **common)
        self._finalizers.append(weakref.finalize(self, self._idle_owner.close))
        return TransactionHold(self.engine, backend, settler, **common)

    @property
    def sleeper(self) -> IdleSleeper | None:
        """Lets an idle loop sleep until it is woken; None: it polls."""
        hold = self.hold
        if isinstance(hold, LeaseHold):
            return hold.heartbeat.sleeper
        return None if self._idle_owner is None else self._idle_owner.sleeper

    @property
    def enqueuer(self) -> Enqueuer:
        """Inserts rows and wakes idle owners."""
        backend = self.backend
        with self._preparing:
            if self._enqueuer is None:
                liveness = self._settings.liveness
                notifier = Notifier(self.engine, backend, session_locks=liveness.session_lock is not False)
                self._enqueuer = Enqueuer(self.engine, backend, notifier, liveness.patience, report=self._report)
            return self._enqueuer

    def _reclaims(self, backend: Backend) -> Settler:
        """Writes the outcomes of jobs of dead owners."""
        return Settler(backend.roles, backend.dialect, self._settings.now, None, user_table=backend.user_table)

    @contextmanager
    def reaper(self) -> Iterator[Reaper]:
        """Reclaims jobs, through a connection of its own."""
        backend, retry = self.must_claim(), self._settings.retry
        with self.connector() as connector:
            connector.transaction(ClaimsCheck(backend).run, patience=1)
            reaper = Reaper(connector, backend, self._reclaims(backend), retry, failures=self.failures)
            try:
                yield reaper
            finally:
                reaper.report()

    @property
    def on_done(self) -> OnDone:
        """What happens to done jobs: the setting, or the default of the table. Raises DoneUndecided."""
        chosen = self._settings.on_done
        found = self._default_finish if chosen is None else chosen
        if found is None:
            raise DoneUndecided(self.backend.source.name)
        return found

    @property
    def _default_finish(self) -> Finish | None:
        """What happens to done jobs without a setting. The database is asked once."""
        backend = self.backend
        if backend.user_table is not None:
            return "keep"
        if self._finish is None:
            with connected(self.engine) as connection:
                self._finish = (default_finish(connection, backend.roles),)
                if self._finish[0] != "delete" and (fix := lost_mark(connection, backend.roles.table)):
                    fields = {"event": COMMENTS_LOST, "queue": backend.source.name, "fix": fix}
                    log.warning("table %s: %s: %s", fields["queue"], MARK_LOST, fix, extra=fields)
        return self._finish[0]

    @property
    def done_jobs(self) -> str:
        """What happens to done jobs, as a sentence. Raises DoneUndecided."""
        return sentence(self.backend.source, self.on_done, beside=self.backend.user_table is not None)

    def settler(self) -> Settler:
        """Writes outcomes. Raises UnfitTable if the table cannot store done jobs that are kept."""
        return self._settler(self.on_done)

    def _settler(self, on_done: OnDone | None) -> Settler:
        backend, chosen = self.backend, self._settings
        leaves = on_done == LEAVE
        # A transaction that holds jobs has begun long ago, so the time of its beginning is too old.
        lasts = not chosen.by_lease and isinstance(chosen.now, database_now)
        now = statement_now() if lasts else chosen.now
        return Settler(
            backend.roles,
            backend.dialect,
            now,
            on_done,
            otherwise=self._default_finish if callable(on_done) else None,
            still_due=self._still_due if leaves else None,
            ready=self.selector.selection(None).ready if leaves else None,
            locked=not chosen.by_lease,
            user_table=backend.user_table,
        )

    # --- claiming --------------------------------------------------------------------------------------

    def check_selection(self) -> None:
        """Have the database read the predicate and the order. Raises BadPredicate or AccessDenied."""
        selector, backend = self.selector, self.backend
        try:
            with selector.understood(None):
                selector.trial(None, ordered=True)
        except sa.exc.DBAPIError as error:
            if not backend.dialect.errors.refuses_account(error):
                raise
            name = backend.source.name
            raise not_consumer(name, reason(error), f"SELECT, UPDATE and perhaps DELETE on {name}") from error

    @cached_property
    def failures(self) -> Failures:
        """Reports the failed jobs of settles."""
        return Failures(self.backend.source.name, self.backend.roles, self._settings.hooks)

    def plan(self, where: Where) -> ClaimPlan:
        """The plan for a predicate. It is built once, but for each claim if a callable gives the predicate."""
        plan = self._plan
        if plan is None or plan.changes or plan.where is not where:
            self._plan = plan = self._new_plan(where)
        return plan

    def _new_plan(self, where: Where) -> ClaimPlan:
        selection, now = self.selector.selection(where), self._settings.now
        changes = self.selector.changes(where)
        return ClaimPlan(where, selection, self.strategy(selection), self.backend, now, changes=changes)

    def strategy(self, selection: Selection, *, lock_before_mark: bool = False) -> ClaimStrategy:
        """How jobs are claimed. `lock_before_mark`: see `strategy_for`."""
        chosen = self._settings
        return strategy_for(
            self.backend,
            selection,
            chosen.now,
            hold=chosen.hold,
            locking=chosen.locking,
            lock_before_mark=lock_before_mark,
        )

    @property
    def selector(self) -> Selector:
        """The rows that the queue's predicate and order select."""
        backend, chosen = self.backend, self._settings
        claimable = self._still_due.claimable if chosen.on_done == LEAVE else sa.true()
        if self._unclaimable:
            claimable = sa.and_(claimable, all_but(backend.source, "claimjobs_unclaimable", self._unclaimable))
        roles, order = backend.source, chosen.order_by
        return Selector(
            self.engine, backend.dialect, roles, chosen.where, order, chosen.now, claimable, self._sweep_order
        )

    @cached_property
    def _sweep_order(self) -> Sequence[sa.Column[Any]]:
        """The order of sweeps, if any order will do and the table has an index for it."""
        if not self._settings.any_order:
            return ()
        with connected(self.engine) as connection:
            return sweep_order(connection, self.backend.source)

    @property
    def order(self) -> Sequence[sa.ColumnElement[Any]]:
        """The order of the queue. Raises BadPredicate."""
        return self.selector.selection(None).order

    def leave(self, key: Key) -> None:
        """Claim this row no more, because no claim can take it: see `row_isolation`."""
        self._unclaimable[key] = None
        self._plan = None  # the first one changes the predicate

    def note_left(self) -> None:
        """Let `status` know how many rows are left. The claim goes on if that cannot be written."""
        if self._unclaimable:
            with suppress(sa.exc.SQLAlchemyError, ClaimjobsError):
                self.hold.note_unclaimable(len(self._unclaimable))

    def check_still_due(self) -> None:
        """Raise StillDue if too many jobs were still due after their handler."""
        if self._still_due_rows is not None:
            self._still_due_rows.check()

    @property
    def _still_due(self) -> StillDueRows:
        """The rows that are still due after their handler. They are remembered as long as this Queue exists."""
        with self._preparing:
            if self._still_due_rows is None:
                self._still_due_rows = StillDueRows(self.backend.roles, self.backend.dialect, self._report)
            return self._still_due_rows

    def work(self, where: Where) -> sa.ColumnElement[Any] | None:
        """A scalar that is NULL when no job is due, or the queue is paused. None if a callable gives the predicate."""
        if self._control.paused:
            return resumed(self.backend.queues, self.backend.roles.claims)
        return None if self.selector.changes(where) else self.plan(where).work

    @contextmanager
    def connected_in_utc(self) -> Iterator[sa.Connection]:
        """A connection with a transaction in which the instants of this queue's table are in UTC."""
        dialect, depends = self.backend.dialect, self.backend.source.depend_on_zone
        with connected(self.engine) as connection:
            if commits_by_itself(connection, unknown=False):  # the engine's sessions are in autocommit
                connection.execution_options(isolation_level=dialect.isolation)
            with in_utc(connection, dialect, depends=depends):
                yield connection

    def retries(self, where: Where) -> Retries:
        """The matching jobs that wait for their next attempt. Raises BadPredicate."""
        backend, now = self.backend, self._settings.now
        with self.selector.understood(where), self.connected_in_utc() as connection:
            mine: Sequence[sa.ColumnElement[bool]] = self.selector.predicates(where)
            if backend.user_table is not None:
                mine = [of_jobs(SideCarJoin(backend.user_table, backend.roles, backend.dialect, now), mine)]
            return read_retries(connection, backend.roles, now, mine)

    def restart_from_head(self) -> None:
        """Begin the next claim at the head of the order: there are new jobs."""
        if self._hold is not None:
            self._hold.restart_from_head()

    def release_held(self) -> int:
        """Release all jobs that are held, also those of open batches; return how many. For any thread."""
        return 0 if self._hold is None else self._hold.release_held()

    def close(self) -> None:
        """Close the connections. Parts are built again when they are needed again."""
        while self._finalizers:
            self._finalizers.pop()()
        self._hold = self._idle_owner = self._plan = None
