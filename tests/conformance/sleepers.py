"""Consumers that sleep, for tests: a loop in a thread, and what it is at."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from claimjobs import Queue
from claimjobs.lease.sleeper import IdleSleeper
from claimjobs.options import Liveness
from tests.backends import Backend, wait_for
from tests.conformance.owners import hold_of, owner_of, session_of

NEVER = 3600.0
"""A consumer that looks so rarely finds nothing within a test: it has to be called."""
PATIENT = Liveness(lease=60.0)
"""A sleeper stirs by itself after 18 s at the earliest."""


class Consumer:
    """A loop in a thread, which counts what it has done."""

    def __init__(self, backend: Backend, queue: Queue | None = None, **options: Any) -> None:
        self.queue = queue or backend.queue(liveness=PATIENT)
        self._backend = backend
        self.done: list[str] = []
        self.busy = threading.Event()
        self.busy.set()
        """While this is not set a batch stays in hand."""
        self.on_batch: Callable[[], None] = lambda: None
        """Called with each batch."""
        self._options = {"poll": NEVER, **options}
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Consumer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.busy.set()
        self.queue.stop()
        self._thread.join(120)
        assert not self._thread.is_alive(), self._where()

    def _run(self) -> None:
        for batch in self.queue.batches(**self._options):
            with batch:
                self.on_batch()
                self.done += [job.d for job in batch.jobs]
                batch.done()
                self.busy.wait(120)

    def _where(self) -> str:
        """Where its thread is at this moment."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else "it has just ended"

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def sleeper(self) -> IdleSleeper:
        return hold_of(self.queue).owner.sleeper

    def is_asleep(self) -> bool:
        """Others believe it, and it is waiting for the call at this moment. An interrupt that came before is lost."""
        hand = owner_of(self.queue)
        if hand is None or not hand.row.asleep or hand.connector._lock._end_wait is None:
            return False
        return not self._backend.dialect.interrupts or self.runs("sleep(")

    def runs(self, words: str) -> bool:
        """Whether its session runs such a statement."""
        hand = owner_of(self.queue)
        session = None if hand is None else session_of(self._backend, hand.id)
        return any(said.startswith(f"{session} ") and words in said for said in self._backend.sessions())

    def falls_asleep(self) -> None:
        wait_for(lambda: self.is_asleep() and self._sends_nothing_more(), "it sleeps")

    def _sends_nothing_more(self) -> bool:
        """Whether its first check for work was sent, too: it follows when the owner is marked asleep already."""
        return self._backend.dialect.interrupts or self.runs("awake")

    def does(self, *those: str) -> None:
        wait_for(lambda: self.done == list(those), f"{those} are done, not {self.done}")
