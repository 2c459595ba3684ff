"""Access: how a Queue reaches its database: the tables, connections to them, and what works without a claim."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cached_property

import sqlalchemy as sa

from claimjobs.claim.record import record_of
from claimjobs.control import Control
from claimjobs.database.connect import connected
from claimjobs.database.connection import Connector
from claimjobs.database.session_sharing import require_session_lock
from claimjobs.database.transactions import in_utc
from claimjobs.enqueue.enqueuer import Enqueuer
from claimjobs.enqueue.notifier import Notifier
from claimjobs.errors import BadArgument, CrossedFork, DoneUndecided
from claimjobs.lease.reaper import Reaper
from claimjobs.lease.registry import check_claims
from claimjobs.log_events import COMMENTS_LOST
from claimjobs.options import Finish
from claimjobs.report import Report
from claimjobs.settings import Settings
from claimjobs.settle.failures import Failures
from claimjobs.settle.outcome_table import outcome_table
from claimjobs.settle.settler import OnDone, Settler
from claimjobs.table.backend import Backend
from claimjobs.table.reflection import COMMENT_LOST, default_finish, lost_comment

log = logging.getLogger("claimjobs.queue")


class Access:
    """What the parts of a Queue share: its settings, and its database. What was read of that is kept. In another
    process than the one that made it, it raises CrossedFork.
    """

    def __init__(self, engine: sa.Engine, settings: Settings, report: Report, control: Control) -> None:
        self.engine, self.settings, self.report, self.control = engine, settings, report, control
        self._process = os.getpid()
        self.preparing = threading.RLock()
        """Locked while something is read or made for the first time."""
        self._backend: Backend | None = None

    @property
    def backend(self) -> Backend:
        """The server and the tables. Raises ConnectionFailed, ServerUnfit or UnfitTable."""
        if self._process != os.getpid():
            raise CrossedFork
        with self.preparing:
            if self._backend is None:
                self._backend = self.settings.inspect(self.engine)
            return self._backend

    @property
    def backend_for_claims(self) -> Backend:
        """The server and the tables, for claims. Raises AccessDenied if this user may not read the owners."""
        backend = self.backend
        if backend.refusal is not None:
            raise backend.refusal
        return backend

    # --- connections -------------------------------------------------------------------------------------

    def connector(self) -> closing[Connector]:
        """A connection of its own, beside the one that claims, for a `with` block."""
        backend, liveness = self.backend, self.settings.liveness
        return closing(Connector(self.engine, backend.dialect, liveness, self.report, tables=backend.tables_in_use))

    @contextmanager
    def connected_in_utc(self) -> Iterator[sa.Connection]:
        """A connection with a transaction in which the instants of this queue's table are in UTC."""
        dialect, depends = self.backend.dialect, self.backend.source.depend_on_zone
        with connected(self.engine) as connection, in_utc(connection, dialect, depends=depends):
            yield connection

    def check_connections(self) -> None:
        """Raise BadArgument if the engine gives a connection to a second user while the first one uses it, and
        SessionsShared if `session_lock=True` is set, and no session can keep a lock for this Queue.
        """
        if isinstance(self.engine.pool, (sa.pool.StaticPool, sa.pool.SingletonThreadPool)):
            raise BadArgument(
                f"a {type(self.engine.pool).__name__} gives one connection to two users at a time, so two transactions "
                "would be one: make the engine without `poolclass`, or with `poolclass=NullPool`"
            )
        if self.settings.liveness.session_lock:
            require_session_lock(self.engine, self.backend.dialect, self.backend.source.table)

    # --- enqueueing and reclaiming -----------------------------------------------------------------------

    @cached_property
    def enqueuer(self) -> Enqueuer:
        """Inserts rows and wakes idle owners."""
        backend, liveness = self.backend, self.settings.liveness
        notifier = Notifier(self.engine, backend, session_locks=liveness.session_lock is not False)
        return Enqueuer(self.engine, backend, notifier, liveness.patience, report=self.report)

    @cached_property
    def failures(self) -> Failures:
        """Reports the failed jobs of settles."""
        return Failures(self.backend.source.name, self.backend.roles, self.settings.hooks)

    @contextmanager
    def reaper(self, *, force: bool = False) -> Iterator[Reaper]:
        """Reclaims jobs, through a connection of its own. Raises ClaimsDiffer, unless by `force`."""
        backend, retry = self.backend_for_claims, self.settings.retry
        with self.connector() as connector:
            if not force:
                connector.transaction(lambda connection: check_claims(connection, backend), patience=1)
            settler = Settler(outcome_table(backend, record_of(backend, self.settings.now)), None)
            reaper = Reaper(connector, backend, settler, retry, failures=self.failures)
            try:
                yield reaper
            finally:
                reaper.report()

    # --- done jobs ---------------------------------------------------------------------------------------

    @property
    def on_done(self) -> OnDone:
        """What happens to done jobs: the setting, or the default of the table. Raises DoneUndecided."""
        found = self.default_finish if self.settings.on_done is None else self.settings.on_done
        if found is None:
            raise DoneUndecided(self.backend.source.name)
        return found

    @cached_property
    def default_finish(self) -> Finish | None:
        """What happens to done jobs without a setting. The database is asked once."""
        backend = self.backend
        if backend.has_side_car:
            return "keep"
        with connected(self.engine) as connection:
            found = default_finish(connection, backend.roles)
            if found != "delete" and (fix := lost_comment(connection, backend.roles.table)):
                fields = {"event": COMMENTS_LOST, "queue": backend.source.name, "fix": fix}
                log.warning("table %s: %s: %s", fields["queue"], COMMENT_LOST, fix, extra=fields)
        return found
