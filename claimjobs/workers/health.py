"""The pages of a supervisor for an orchestrator: /livez and /readyz."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from claimjobs.metrics.backlog_reader import BacklogReader
from claimjobs.metrics.http_server import Answer, Page
from claimjobs.workers.process_slot import ProcessSlot
from claimjobs.workers.supervisor import Supervisor

TICKS_WITHIN: Final = 15.0
"""Seconds without a tick after which the supervisor counts as stuck."""
REPORTS_WITHIN: Final = 30.0
"""Seconds without a report after which a consumer counts as stuck. It reports every two seconds."""


class LivePage(Page):
    """Whether the supervisor and every consumer make progress. If not, only a restart helps.

    A database that cannot be reached is no reason: consumers wait for it. A consumer that is starting, or is about to
    be replaced, counts as alive.
    """

    path = "/livez"

    def __init__(self, supervisor: Supervisor, max_batch_time: float) -> None:
        self._supervisor = supervisor
        self._max_batch_time = max_batch_time

    def answer(self) -> Answer:
        """200, or 503 and what is stuck."""
        return _answer(self._stuck(time.monotonic()))

    def _stuck(self, now: float) -> Iterator[str]:
        ticked = self._supervisor.ticked_at
        if ticked is not None and now - ticked > TICKS_WITHIN:
            yield f"the supervisor has not looked after its processes for {now - ticked:.0f} s"
            return
        for slot in self._supervisor.consumers:
            yield from self._why_stuck(slot, now)

    def _why_stuck(self, slot: ProcessSlot, now: float) -> Iterator[str]:
        if slot.silence(now) > REPORTS_WITHIN:
            yield f"consumer {slot.number} has not reported for {slot.silence(now):.0f} s"
        elif slot.stalled > self._max_batch_time:
            yield f"consumer {slot.number} has made no progress on its batch for {slot.stalled:.0f} s"


class ReadyPage(Page):
    """Whether consumers can work: they are started, one of them reports, the database answers, and the table fits."""

    path = "/readyz"

    def __init__(self, supervisor: Supervisor, reader: BacklogReader) -> None:
        self._supervisor = supervisor
        self._reader = reader

    def answer(self) -> Answer:
        """200, or 503 and what is missing."""
        return _answer(self._missing())

    def _missing(self) -> Iterator[str]:
        if self._supervisor.ends:
            yield "the run is about to end"
        starting = sum(not slot.was_ready for slot in self._supervisor.consumers)
        if starting:
            yield f"{starting} consumers are starting"
        now = time.monotonic()
        if all(slot.silence(now) > REPORTS_WITHIN for slot in self._supervisor.consumers):
            yield f"no consumer has reported for {REPORTS_WITHIN:g} s"
        error = self._reader.latest().error
        if error is not None:
            yield error


def _answer(wrong: Iterator[str]) -> Answer:
    lines = list(wrong)
    return Answer("".join(f"{line}\n" for line in lines) or "ok\n", 503 if lines else 200)
