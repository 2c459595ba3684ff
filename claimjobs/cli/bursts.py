"""Bursts: of many jobs that fail by the same error, a person is shown the first ones, and then how many more."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Final

from claimjobs.cli.console import number
from claimjobs.log_events import FAILURES_COUNTED, JOB_DEAD, JOB_RETRY

SHOWN: Final = 3
"""So many of a burst have a line each."""
SECONDS: Final = 5.0
"""After so many seconds without this error a burst is over; as often the others are counted in a line."""

log = logging.getLogger("claimjobs.settle")


@dataclass
class _Burst:
    level: int
    last: float
    shown: int = 0
    left: int = 0
    """Records that had no line, and are not counted in one yet."""


class Bursts(logging.Filter):
    """Keeps the records of a burst from a handler of text, but for the first ones. A log of JSON has each of them."""

    def __init__(self) -> None:
        super().__init__()
        self._bursts: dict[tuple[str, str], _Burst] = {}
        self._guard = threading.Lock()
        self._timer: threading.Timer | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        event, error = getattr(record, "event", None), str(getattr(record, "error", ""))
        if event not in (JOB_RETRY, JOB_DEAD):
            return True
        with self._guard:
            now = time.monotonic()
            burst = self._bursts.get((event, error))
            if burst is None or (now - burst.last > SECONDS and not burst.left):
                burst = self._bursts[event, error] = _Burst(record.levelno, now)
            burst.last = now
            if burst.shown < SHOWN:
                burst.shown += 1
                return True
            burst.left += 1
            if self._timer is None:
                self._timer = threading.Timer(SECONDS, self.tell)
                self._timer.daemon = True
                self._timer.start()
            return False

    def tell(self) -> None:
        """Log how many more there were of each burst. Call it at the end, too."""
        with self._guard:
            timer, self._timer = self._timer, None
            counted = [(key, burst.level, burst.left) for key, burst in self._bursts.items() if burst.left]
            over = time.monotonic() - SECONDS
            self._bursts = {key: burst for key, burst in self._bursts.items() if burst.left or burst.last > over}
            for burst in self._bursts.values():
                burst.left = 0
        if timer is not None:
            timer.cancel()
        for (event, error), level, left in counted:
            became = "dead" if event == JOB_DEAD else "to run again"
            fields = {"event": FAILURES_COUNTED, "jobs": left, "error": error}
            log.log(level, "%s, %s, by the same error: %s", number(left, "more failure"), became, error, extra=fields)
