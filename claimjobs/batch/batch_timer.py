"""BatchTimer: measures the batches of a Queue, for metrics. A Queue has none unless somebody asked for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from claimjobs.database.clock import DatabaseClock, in_seconds
from claimjobs.errors import Unreadable
from claimjobs.job import Job
from claimjobs.report import Report
from claimjobs.table.roles import ColumnRoles

SAMPLES: Final = 4
"""Jobs of each batch whose time from due to claimed is measured. To read `run_at` of each job would cost a few percent
of a consumer's time."""


class BatchTimer:
    """Adds sizes and times of batches to a report."""

    def __init__(self, report: Report, roles: ColumnRoles, clock: DatabaseClock) -> None:
        """`roles`: those of the table with `run_at`. Without one nothing tells how long a job has been due."""
        self._times = report.times
        self._run_at = None if roles.run_at is None else roles.run_at.name
        self._clock = clock

    def claimed(self, jobs: Sequence[Job]) -> float:
        """Measure jobs that were just claimed; return when that was, for `settled`."""
        self._times.batch_jobs.observe(len(jobs))
        now = None if self._run_at is None else self._clock.now()
        if now is not None:
            for job in jobs[:: -(-len(jobs) // SAMPLES)]:
                self._measure(job, now)
        return time.monotonic()

    def settled(self, jobs: int, since: float) -> None:
        """Measure so many jobs that were claimed at `since` and are settled now."""
        self._times.claimed_to_settled.observe(time.monotonic() - since, jobs)

    def _measure(self, job: Job, now: float) -> None:
        try:
            due = job[self._run_at or ""]
        except Unreadable:
            return
        if isinstance(due, datetime):  # NULL: due since nobody knows when
            self._times.due_to_claimed.observe(max(0.0, now - in_seconds(due)))
