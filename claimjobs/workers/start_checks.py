"""At the start of a run: what `explain` warns of, each finding once in the log."""

from __future__ import annotations

import logging
import os
from typing import Final

import sqlalchemy as sa

from claimjobs.dialects.inspection import Finding
from claimjobs.errors import FOLDER_GONE, ClaimjobsError
from claimjobs.log_events import FINDING
from claimjobs.queue.queue import Queue

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
