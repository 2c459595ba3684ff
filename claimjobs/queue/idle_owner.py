"""IdleOwner: how a consumer that claims by transactions is woken while it has no work."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import sqlalchemy as sa

from claimjobs.batch.failures import Failures
from claimjobs.batch.settle import Settler
from claimjobs.control import Control
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import reason
from claimjobs.errors import ClaimjobsError
from claimjobs.lease.lease_hold import LeaseHold
from claimjobs.lease.sleeper import IdleSleeper
from claimjobs.log_events import SLEEP_FAILED
from claimjobs.options import Liveness, Retry
from claimjobs.report import Report
from claimjobs.table.backend import Backend, with_owners

log = logging.getLogger("claimjobs.sleep")


class IdleOwner:
    """An owner that holds no job: a consumer without an owner of its own sleeps as this one, on its connection.

    It registers when a loop is idle for the first time, and leaves when the Queue is closed. A consumer that cannot
    have it polls: without the tables of owners and queues, without the rights to write them, or behind a pooler.
    """

    def __init__(
        self,
        engine: sa.Engine,
        backend: Backend,
        settler: Settler,
        *,
        failures: Failures,
        liveness: Liveness,
        retry: Retry,
        report: Report,
        control: Control,
    ) -> None:
        """`settler` writes the outcomes of the jobs of dead owners, if other consumers claim by lease."""
        self._engine, self._backend, self._settler, self._failures = engine, backend, settler, failures
        # Without an owner the consumer polls, so that nothing here is worth a second attempt.
        self._liveness = replace(liveness, patience=0)
        self._retry, self._report, self._control = retry, report, control
        self._registering = threading.Lock()
        self._may_register = backend.dialect.wakes and liveness.session_lock is not False
        self._hold: LeaseHold | None = None

    @property
    def sleeper(self) -> IdleSleeper | None:
        """Waits for a wake; None: the consumer polls."""
        self._register()
        if self._hold is None:
            return None
        self._hold.report_reclaimed()
        return self._hold.heartbeat.sleeper

    def _register(self) -> None:
        with self._registering:
            if self._hold is None and self._may_register:
                self._hold = self._registered()

    def _registered(self) -> LeaseHold | None:
        connector = Connector(self._engine, self._backend.dialect, self._liveness, self._report)
        try:
            backend = connector.transaction(lambda connection: with_owners(connection, self._backend))
            hold = self._new_hold(backend)
        except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
            log.debug("no sleep: %s", reason(error), extra={"event": SLEEP_FAILED, "error": str(error)})
            self._may_register = connector.is_passing(error)
            return None
        finally:
            connector.close()
        return hold

    def _new_hold(self, backend: Backend) -> LeaseHold | None:
        """The owner. None if it has no session lock, by which it could be woken."""
        hold = LeaseHold(
            self._engine,
            backend,
            self._settler,
            liveness=self._liveness,
            retry=self._retry,
            report=self._report,
            control=self._control,
            failures=self._failures,
        )
        try:
            hold.read_pause()  # its heartbeat does so each time
        except BaseException:
            hold.close()
            raise
        self._may_register = hold.owner.locked
        if not self._may_register:
            hold.close()
            return None
        return hold

    def close(self) -> None:
        """Leave, and close the connection."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.close()
