"""StopDeadline: releases what a queue still holds when the time of `stop(timeout=)` is over."""

from __future__ import annotations

import logging
import math
import threading
import time

import sqlalchemy as sa

from claimjobs.control import Control
from claimjobs.database.error_translation import reason
from claimjobs.errors import ClaimjobsError
from claimjobs.log_events import JOBS_RELEASED, RELEASE_FAILED
from claimjobs.queue.parts import QueueParts
from claimjobs.signals import check_timeout

log = logging.getLogger("claimjobs.stop")


class StopDeadline:
    """The deadline of a queue that was told to stop. Of several deadlines the earliest counts."""

    def __init__(self, parts: QueueParts, control: Control) -> None:
        self._parts = parts
        self._control = control
        self._at = math.inf

    def begin(self, timeout: float) -> None:
        """Release in so many seconds, in a thread. Raises ValueError. A signal handler may call it."""
        check_timeout(timeout)
        at = time.monotonic() + timeout
        if at < self._at:
            self._at = at
            timer = threading.Timer(timeout, self._release)
            timer.daemon = True
            timer.start()

    def _release(self) -> None:
        self._control.expire()  # before the release: a claim that is being made must not outlast it
        try:
            jobs = self._parts.release_held()
        except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
            fields = {"event": RELEASE_FAILED, "error": str(error)}
            log.warning("the jobs could not be released at the deadline of `stop`: %s", reason(error), extra=fields)
        else:
            if jobs:
                were = "job was" if jobs == 1 else "jobs were"
                words = "%d %s released at the deadline of `stop`"
                log.warning(words, jobs, were, extra={"event": JOBS_RELEASED, "jobs": jobs})
