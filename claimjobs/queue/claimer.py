"""Claimer: claims batches, and finds out why claims are in vain."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import sqlalchemy as sa

from claimjobs import tracing
from claimjobs.batch.batch import Batch
from claimjobs.batch.batch_timer import BatchTimer
from claimjobs.batch.hold import Hold, SettlesBatch
from claimjobs.claim.probe import Probe
from claimjobs.claim.strategy import NOTHING, ClaimResult
from claimjobs.control import Control
from claimjobs.database.clock import DatabaseClock
from claimjobs.database.error_translation import reason
from claimjobs.errors import key_unreadable
from claimjobs.log_events import JOBS_UNCLAIMABLE
from claimjobs.queue.parts import QueueParts
from claimjobs.queue.row_isolation import ERRORS, RowIsolation
from claimjobs.report import Report
from claimjobs.settings import Settings
from claimjobs.table.predicates import Where

PROBES: Final = frozenset(2**n for n in range(1, 30))
"""After so many claims in a row that found candidates and claimed none, a Probe checks whether they can be claimed."""
REPORTED: Final = 2**30
"""A number larger than any of these."""
NO_KEY: Final = (
    "Python cannot hold the value of their key; correct these rows, or choose other columns as Columns(key=...)"
)

log = logging.getLogger("claimjobs.claim")


class Claimer:
    """Claims batches for a Queue, and none while the queue is paused."""

    def __init__(self, parts: QueueParts, settings: Settings, report: Report, control: Control) -> None:
        self._parts = parts
        self._settings = settings
        self._report = report
        self._control = control
        self._isolation = RowIsolation(parts, report, control, settings.liveness.patience)
        self._timer: BatchTimer | None = None
        self._pause_expected = False
        self._in_vain = 0
        """Claims in a row that found candidates and claimed none."""
        self._empty = 0
        """Claims that found no candidate."""

    def claim(self, size: int, where: Where, settled_by: SettlesBatch | None = None, *, ahead: bool = False) -> Batch:
        """Claim a batch; it may be empty. `settled_by` settles it in place of the hold. `ahead`: before a loop asks for
        it.

        Raises BadPredicate; KeyUnfit or WriteSwallowed if no claim can ever succeed.
        """
        parts, hold = self._parts, self._parts.hold
        if self.is_paused():
            return self.batch(hold, NOTHING, settled_by)
        parts.check_still_due()
        with parts.selector.understood(where), self._readable():
            with tracing.span("claim", parts.backend.source.name):
                try:
                    claimed = hold.claim(size, parts.plan(where))
                except ERRORS as error:
                    claimed = self._isolation.claim(hold, size, where, error)
            self._in_vain = self._in_vain + 1 if claimed.examined and not claimed.jobs else 0
            if self._in_vain in PROBES:
                claimed = self._claim_with_rows_locked_first(hold, size, where)
            elif not claimed.found:
                self._report_unreadable_keys()
        return self.batch(hold, claimed, settled_by, ahead=ahead)

    def batch(
        self, hold: Hold, claimed: ClaimResult, settled_by: SettlesBatch | None = None, *, ahead: bool = False
    ) -> Batch:
        """The Batch of a claim."""
        chosen, parts = self._settings, self._parts
        batch = Batch(
            claimed,
            hold,
            parts.backend.roles,
            chosen.retry,
            settled_by=settled_by,
            entity=chosen.entity,
            failures=parts.failures,
            timer=self._timer,
        )
        batch.contended = bool(claimed.found) and not claimed.jobs
        if claimed.jobs:
            batch.kept_alive = parts
            hold.give(claimed, batch, ahead=ahead)
        return batch

    def measure_batches(self) -> None:
        """Measure sizes and times of the batches from now on: see `Report.times`."""
        clock = DatabaseClock(self._parts.engine, self._settings.now)
        self._timer = self._timer or BatchTimer(self._report, self._parts.backend.source, clock)

    # --- pauses ----------------------------------------------------------------------------------------

    def is_paused(self) -> bool:
        """Whether the queue is paused. The database is asked while it is, after `expect_pause`, and where no heartbeat
        does it.
        """
        hold = self._parts.hold
        if self._control.paused or self._pause_expected or hold.pause_is_stale:
            self._pause_expected = False
            hold.read_pause()
        return self._control.paused

    def expect_pause(self) -> None:
        """Let the next claim read whether the queue is paused: while a loop slept, no heartbeat read it."""
        self._pause_expected = True

    # --- claims in vain --------------------------------------------------------------------------------

    def _claim_with_rows_locked_first(self, hold: Hold, size: int, where: Where) -> ClaimResult:
        """Claim after candidates were found again and again and never claimed: others hold them, or nobody can.

        The strategy locks rows before it marks them. Only so it finds out which rows swallow the write.
        """
        parts, plan = self._parts, self._parts.plan(where)
        with parts.connector() as connector:
            connector.transaction(Probe(parts.backend, plan.selection).run)
        return hold.claim(size, replace(plan, strategy=parts.strategy(plan.selection, lock_before_mark=True)))

    def _report_unreadable_keys(self) -> None:
        """Log once the rows that are never claimed, when no other row is left: then the claim's index finds them."""
        backend = self._parts.backend
        source, readable = backend.source, backend.dialect.encoding.readable(backend.source.key)
        self._empty += 1
        if not readable or self._empty not in {1, *PROBES}:
            return
        unreadable = sa.not_(sa.and_(*readable))
        rows = sa.select(sa.func.count()).select_from(source.table).where(source.due(self._settings.now), unreadable)
        with self._parts.connected_in_utc() as connection:
            count, predicate = connection.scalar(rows), unreadable.compile(connection)
        if count:
            self._empty = REPORTED
            fields = {"event": JOBS_UNCLAIMABLE, "queue": source.name, "jobs": count, "error": NO_KEY}
            log.warning(
                "table %s: no claim takes %d rows of %s: %s", source.name, count, predicate, NO_KEY, extra=fields
            )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Raises KeyUnfit for an error of the driver: only keys of candidates are converted in this block."""
        try:
            yield
        except sa.exc.DataError as error:
            backend = self._parts.backend
            if backend.dialect.errors.code(error) is None:
                raise key_unreadable(backend.source.name, reason(error)) from error
            raise
