"""Outcomes: what becomes of the jobs of a batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from claimjobs.dialects import Key
from claimjobs.job import Job
from claimjobs.report import Report
from claimjobs.statements.settle import Failure

MANY: Final = 10_000
"""The most keys of one statement: a protocol may count parameters in 16 bits."""
OutcomeWord = Literal["done", "released", "retry", "dead", "suspect", "lost"]
"""What `claimjobs.testing` says of a job. `retry`: it failed, and runs again; `dead`: it failed for the last time;
`suspect`: it may be the cause of an error that names no job; `lost`: it was cancelled, or given to others."""
OUTCOME_KINDS: Final[Mapping[str, OutcomeWord]] = {
    "done": "done",
    "released": "released",
    "retried": "retry",
    "dead": "dead",
    "suspects": "suspect",
}
"""The kinds of outcomes: the names of their fields in Outcomes, and of their counters in Report; with what a test is
told. The kind of an outcome after which a job has ended has the name of its state (`ENDED`). What runs for each batch
names the kinds itself, which is faster than a loop: `keys`, `__len__`, `count` and `gives_back`. How to add one: see "A
new kind of outcome" in docs/design.md."""


@dataclass
class Outcomes:
    """The outcomes of the jobs of a batch, by their keys."""

    done: dict[Key, None] = field(default_factory=dict)
    released: dict[Key, None] = field(default_factory=dict)
    retried: dict[Key, Failure] = field(default_factory=dict)
    """Failed jobs that run again."""
    dead: dict[Key, Failure] = field(default_factory=dict)
    suspects: dict[Key, Failure] = field(default_factory=dict)
    """Jobs of which one may be the cause of an error."""
    columns: dict[Key, Mapping[str, Any]] = field(default_factory=dict)
    """The values of columns of the user's that are written with jobs that are done; mostly there are none."""
    jobs: Mapping[Key, Job] = field(default_factory=dict)
    """The jobs as they were claimed, where they are known."""
    claim_row: int = 0
    """The number of the claim row that these jobs are from; 0: not known."""
    disconnects: int | None = None
    """How often the connection of an owner had been lost before the first try to settle them."""

    @property
    def kinds(self) -> dict[str, dict[Key, Any]]:
        """The outcomes of each kind."""
        return {kind: getattr(self, kind) for kind in OUTCOME_KINDS}

    @property
    def failures(self) -> dict[Key, Failure]:
        """The failures of `retried`, `dead` and `suspects`."""
        return {**self.retried, **self.dead, **self.suspects}

    def keys(self) -> list[Key]:
        """The keys of all jobs."""
        return [*self.done, *self.released, *self.retried, *self.dead, *self.suspects]

    def __len__(self) -> int:
        return len(self.done) + len(self.released) + len(self.retried) + len(self.dead) + len(self.suspects)

    @property
    def only_released(self) -> bool:
        """Whether nothing became of any job: each has no other outcome than released."""
        return len(self.released) == len(self)

    @property
    def gives_back(self) -> bool:
        """Whether some job is unclaimed again."""
        return bool(self.released or self.retried or self.suspects)

    @property
    def are_done_at_once(self) -> bool:
        """Whether all jobs are done, nothing else is to be written for them, and one statement has room for them."""
        return len(self.done) == len(self) <= MANY and not self.columns

    @property
    def is_one_claim_row_done(self) -> bool:
        """Whether they are those of one claim row, and `are_done_at_once`."""
        return bool(self.claim_row) and self.are_done_at_once

    def count(self, report: Report) -> None:
        """Add them to the report."""
        report.done += len(self.done)
        report.released += len(self.released)
        report.retried += len(self.retried)
        report.dead += len(self.dead)
        report.suspects += len(self.suspects)

    def forget(self, key: Key) -> None:
        """Remove the outcome of a job."""
        for kind in self.kinds.values():
            kind.pop(key, None)
        self.columns.pop(key, None)

    def with_short_errors(self, longest: int) -> Outcomes:
        """The same outcomes with at most so many characters of each error, in ASCII; 0: without errors."""
        short = replace(self, retried=dict(self.retried), dead=dict(self.dead), suspects=dict(self.suspects))
        for failures in (short.retried, short.dead, short.suspects):
            for key, failure in failures.items():
                text = (failure.error or "").encode("ascii", "backslashreplace").decode()
                failures[key] = replace(failure, error=text[:longest] or None)
        return short

    def become(self, written: Outcomes) -> None:
        """Replace these outcomes by those that were written."""
        vars(self).update(vars(written))

    def add(self, others: Outcomes) -> None:
        """Add other outcomes."""
        for kind, outcomes in others.kinds.items():
            self.kinds[kind].update(outcomes)
        self.columns.update(others.columns)

    def only(self, keys: Collection[Key]) -> Outcomes:
        """The outcomes of these keys."""
        columns = {key: given for key, given in self.columns.items() if key in keys}
        found = Outcomes(jobs=self.jobs, columns=columns)
        for kind, outcomes in self.kinds.items():
            setattr(found, kind, {key: outcome for key, outcome in outcomes.items() if key in keys})
        return found
