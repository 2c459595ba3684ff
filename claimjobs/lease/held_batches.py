"""HeldBatches: the claims of an owner that are not settled yet, and what their handlers do with them."""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from claimjobs.claim.strategy import NOTHING, ClaimResult
from claimjobs.dialects import Key
from claimjobs.log_events import BATCH_FORGOTTEN

NO_HANDLER_RUNS: Final = math.inf
"""In place of the time of the last progress: no handler works on the batch."""

log = logging.getLogger("claimjobs.lease")


@dataclass(slots=True)
class HeldBatch:
    """A claim that is not settled yet."""

    claimed: ClaimResult
    """Its jobs are those that are still held: see `HeldBatches.add`."""
    since: float = field(default_factory=time.monotonic)
    """When it was claimed, when a loop asked for it, or when its Batch was missed first."""
    batch: weakref.ref[object] | None = None
    """The Batch that a loop got. None: there is none yet, or none any more."""
    was_dropped: bool = False
    """Whether the loop has dropped the Batch without a settle."""
    progressed_at: float = NO_HANDLER_RUNS
    """When the handler made progress last."""
    hang_reported: bool = False
    """Whether it was reported that its handler hangs."""


class HeldBatches:
    """The claims of an owner that are not settled yet, for any thread."""

    def __init__(self) -> None:
        self._held: dict[int, HeldBatch] = {}
        """The entries by the `id()` of their claim, which an entry keeps alive."""
        self._mutex = threading.Lock()
        """Locked while a claim for which no loop has asked goes to one, or is forgotten."""

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, claimed: ClaimResult) -> None:
        """Add a claim, if it has jobs. Other claims of this owner lose the jobs that they have, too: such a job was
        cancelled and retried, or another program has released it.
        """
        if not claimed.jobs:
            return
        others = self.of_owner(claimed.owner)
        keys = {job.key for job in claimed.jobs} if others else set()  # mostly there are none
        for other in others:
            jobs = other.claimed.jobs
            for job in [job for job in jobs if job.key in keys]:
                job.is_lost = True
                jobs.remove(job)
            if not jobs:
                self.remove(other.claimed)
        self._held[id(claimed)] = HeldBatch(claimed)

    def of(self, claimed: ClaimResult) -> HeldBatch | None:
        """The entry of this claim; None if this owner has released it, or given it to others."""
        return self._held.get(id(claimed))

    def remove(self, claimed: ClaimResult) -> bool:
        """Remove a claim; return whether it was there."""
        return self._held.pop(id(claimed), None) is not None

    def clear(self) -> None:
        """Remove all claims."""
        self._held.clear()

    def of_owner(self, owner: int, *, but: ClaimResult | None = None) -> list[HeldBatch]:
        """All that are held under this owner's id; `but` this claim."""
        return [held for held in tuple(self._held.values()) if held.claimed.owner == owner and held.claimed is not but]

    def unbatched_among(self, keys: Iterable[Key], owner: int, *, but: Container[Key]) -> list[Key]:
        """Those of the keys that no claim under this owner's id has, and that are not among `but`."""
        known = {job.key for held in self.of_owner(owner) for job in held.claimed.jobs}
        return [key for key in keys if key not in known and key not in but]

    def split(self, claimed: ClaimResult, keeper: object) -> list[ClaimResult]:
        """Replace a claim by one for each of its jobs, and return these. `keeper`: in place of their Batches."""
        if not self.remove(claimed):
            return []
        kept = weakref.ref(keeper)
        parts = [ClaimResult([job], 1, 1, claimed.owner, claimed.suspects, claimed.claim_row) for job in claimed.jobs]
        self._held.update((id(part), HeldBatch(part, batch=kept)) for part in parts)
        return parts

    def join(self, parts: Iterable[ClaimResult]) -> ClaimResult:
        """Replace claims of one owner by one, of all their jobs that are still held; return it.

        It has the number of a claim row if these are all its jobs: then that row is deleted, and not shortened.
        """
        held = [part for part in parts if self.remove(part)]
        if not held:
            return NOTHING
        numbers = {part.claim_row for part in held}
        has_all = len(numbers) == 1 and not any(other.claimed.claim_row in numbers for other in self._held.values())
        joined = held[0]._replace(jobs=[part.jobs[0] for part in held], claim_row=numbers.pop() if has_all else 0)
        self.add(joined)
        return joined

    def confirm_next(self, claimed: ClaimResult) -> bool:
        """Whether this claim of a settle is still held. Its time until it is forgotten begins anew."""
        with self._mutex:
            held = self.of(claimed)
            if held is not None:
                held.since = time.monotonic()
            return held is not None

    def forget(self, seconds: float) -> bool:
        """Remove the claims on which nobody has worked for so long: no loop asked for them, or the Batch was dropped
        without a settle. Returns whether there was one.
        """
        found = []
        with self._mutex:
            for held in tuple(self._held.values()):
                if held.batch is not None and held.batch() is None:
                    held.batch, held.was_dropped, held.since = None, True, time.monotonic()
                is_over = held.batch is None and time.monotonic() - held.since >= seconds
                if is_over and self.remove(held.claimed):
                    found.append(held)
        for held in found:
            if held.was_dropped:
                jobs = len(held.claimed.jobs)
                words = "a batch of %d jobs was dropped without a settle: they are released"
                log.warning(words, jobs, extra={"event": BATCH_FORGOTTEN, "jobs": jobs})
        return bool(found)

    def hanging(self, seconds: float) -> Iterator[HeldBatch]:
        """The batches whose handler has made no progress for so long."""
        now = time.monotonic()
        return (held for held in tuple(self._held.values()) if now - held.progressed_at >= seconds)

    def excuse(self, seconds: float) -> None:
        """Let so many seconds not count: the database could not be reached."""
        for held in tuple(self._held.values()):
            held.progressed_at += seconds
