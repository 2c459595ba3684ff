"""Run: how many processes a supervisor starts, and until when. Plain data."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from claimjobs.dialects.inspection import Finding
from claimjobs.errors import FOLDER_GONE, ClaimjobsError
from claimjobs.log_events import FINDING
from claimjobs.queue.queue import Queue


@dataclass(frozen=True)
class Run:
    """How many processes, and until when."""

    consumers: int = 10
    generators: int = 0
    jobs: int | None = None
    """Jobs to generate, all generators together; None: no end."""
    rate: float | None = None
    """Jobs per second to generate, all generators together."""
    duration: float | None = None
    """Seconds from when all consumers are ready until generators and consumers stop (with `drain`: only generators)."""
    grace: float = 60.0
    """Seconds that a batch may go on after `duration` until it is released."""
    stop_timeout: float | None = None
    """Seconds that a batch may go on after `stop` until it is released; None: no limit."""
    drain: bool = False
    """End when the generators have ended and no job is due."""
    drain_retries: bool = False
    """With `drain`: also wait for failed jobs until they are done or dead."""
    idle: float | None = None
    """End when no consumer held a job for so many seconds."""


SECONDS: Final = 1.0
"""How long the checks may take. Usually it is less than a tenth."""
UNTOLD: Final = ("comments",)
"""A run begins by finding out what happens to done jobs, which has its own message."""

log = logging.getLogger("claimjobs.start_checks")


def require_folder() -> None:
    """Raise ClaimjobsError if the working folder was deleted: a process that is spawned begins there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ClaimjobsError(FOLDER_GONE) from None


def log_findings(queue: Queue) -> None:
    """Log each warning of `explain`. It needs no more connections than the run has later."""
    try:
        findings = queue.explain(seconds=SECONDS).findings
    except (ClaimjobsError, sa.exc.SQLAlchemyError):  # the consumers meet it, too, and say so
        return
    for finding in findings:
        if finding.verdict in ("warning", "will not work") and finding.check not in UNTOLD:
            _log(finding)


def _log(finding: Finding) -> None:
    fields = {"event": FINDING, "check": finding.check, "verdict": finding.verdict}
    says = f"{finding.says}: {' '.join(finding.fix)}" if finding.fix else finding.says
    log.warning("%s: %s", finding.check, says, extra=fields)
