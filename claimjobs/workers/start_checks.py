"""A thread that explains the queue once, at the start of a run, and logs each warning."""

from __future__ import annotations

import logging
import threading
from typing import Final

import sqlalchemy as sa

from claimjobs.errors import ClaimjobsError
from claimjobs.findings import Finding
from claimjobs.log_events import FINDING
from claimjobs.queue.queue import Queue

SECONDS: Final = 1.0
"""The longest that the checks may take. The run does not wait for them."""
UNTOLD: Final = ("lease",)
"""A run begins by reclaiming the jobs of owners that have ended."""

log = logging.getLogger("claimjobs.start_checks")


class StartChecks:
    """Logs what `explain` warns of, each finding once. A context manager: leaving it waits for the last check."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._thread = threading.Thread(target=self._run, name="start checks", daemon=True)

    def __enter__(self) -> StartChecks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(2 * SECONDS)

    def _run(self) -> None:
        try:
            findings = self._queue.explain(seconds=SECONDS).findings
        except (ClaimjobsError, sa.exc.SQLAlchemyError):  # the consumers meet it, too, and say so
            return
        for finding in findings:
            if finding.verdict in ("warning", "will not work") and finding.check not in UNTOLD:
                self._warn(finding)

    def _warn(self, finding: Finding) -> None:
        fields = {"event": FINDING, "check": finding.check, "verdict": finding.verdict}
        log.warning("%s: %s", finding.check, " ".join((finding.says, *finding.fix)), extra=fields)
