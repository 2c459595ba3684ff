"""What happened, in numbers. Counted by one process, added up by whoever watches several."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass
class Report:
    """Counts since the start; all are jobs unless the name says otherwise."""

    claims: int = 0
    """Claims made (not jobs), empty ones included."""
    empty_claims: int = 0
    """Claims that took nothing, because nothing was there or others were faster."""
    candidates: int = 0
    """Keys found in phase 1."""
    collisions: int = 0
    """Candidates met in phase 2 that another consumer had in hand or had taken."""
    claimed: int = 0
    done: int = 0
    retried: int = 0
    dead: int = 0
    suspects: int = 0
    """Handed back after an error that named none of them, to be claimed again in smaller company."""
    released: int = 0
    lost: int = 0
    """Jobs whose outcome was refused, because this owner did not hold them any more."""
    enqueued: int = 0
    still_due: int = 0
    """Done, with `on_done="leave"`, and due all the same: the handler has not made the queue's predicate false."""
    transients: Counter[str] = field(default_factory=Counter)
    """Transactions run again, by reason: deadlock, lock timeout, serialization, connection lost, ..."""

    def count_claim(self, jobs: int, *, candidates: int, collisions: int) -> None:
        """A claim was made."""
        self.claims += 1
        self.empty_claims += not jobs
        self.candidates += candidates
        self.collisions += collisions
        self.claimed += jobs

    def __add__(self, other: Report) -> Report:
        return Report(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def copy(self) -> Report:
        """As it stands now."""
        return self + Report()
