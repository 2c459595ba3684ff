"""Outcomes: what becomes of the jobs of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from claimjobs.dialects import Key
from claimjobs.job import Job
from claimjobs.report import Report

MANY: Final = 10_000
"""The most keys of one statement: a protocol may count parameters in 16 bits."""


@dataclass
class Outcomes:
    """The outcomes of the jobs of a batch, by their keys."""

    done: list[Key] = field(default_factory=list)
    columns: dict[Key, Mapping[str, Any]] = field(default_factory=dict)
    """Values of columns of the user's that are written with the outcome of some done jobs."""
    released: list[Key] = field(default_factory=list)
    retried: dict[Key, float] = field(default_factory=dict)
    """Failed jobs that run again, each with the seconds until then."""
    dead: list[Key] = field(default_factory=list)
    suspects: dict[Key, float] = field(default_factory=dict)
    """Jobs of which one may be the cause of an error, each with the seconds until it runs again."""
    group_size: int = 0
    """How many `suspects` the batch had, if these are only some of them; 0: these are all."""
    isolated: set[Key] = field(default_factory=set)
    """Jobs of `retried` and `dead` that failed only because they were alone when an error named no job."""
    errors: dict[Key, str] = field(default_factory=dict)
    """The error of each job of `retried`, `dead` and `suspects`."""
    stores_texts: bool = True
    """Whether the errors are written. Their column may refuse every text."""
    raised: dict[Key, BaseException] = field(default_factory=dict)
    """The exception behind an error of `retried` and `dead`, where there is one."""
    jobs: Mapping[Key, Job] = field(default_factory=dict)
    """The jobs as they were claimed, where they are known."""
    batch: int = 0
    """The number of the claim row that these jobs are from; 0: not known."""
    losses: int | None = None
    """How often the connection of an owner had been lost before the first try to settle them."""

    def keys(self) -> list[Key]:
        """The keys of all jobs."""
        return [*self.done, *self.released, *self.retried, *self.dead, *self.suspects]

    def __len__(self) -> int:
        return sum(map(len, (self.done, self.released, self.retried, self.dead, self.suspects)))

    @property
    def all_done(self) -> bool:
        """Whether no job has another outcome than done, and nothing else is to be written for it."""
        return not (self.columns or self.released or self.retried or self.dead or self.suspects)

    @property
    def is_done_batch(self) -> bool:
        """Whether they are those of one batch, whose jobs are all done, and one statement can write them."""
        return bool(self.batch) and self.all_done and len(self.done) <= MANY

    def count(self, report: Report) -> None:
        """Add them to the report."""
        report.done += len(self.done)
        report.released += len(self.released)
        report.retried += len(self.retried)
        report.dead += len(self.dead)
        report.suspects += len(self.suspects)

    def forget(self, key: Key) -> None:
        """Remove the outcome of a job."""
        self.retried.pop(key, None)
        self.suspects.pop(key, None)
        self.isolated.discard(key)
        self.errors.pop(key, None)
        self.raised.pop(key, None)
        self.columns.pop(key, None)
        for decided in (self.done, self.released, self.dead):
            if key in decided:
                decided.remove(key)

    def fail(self, key: Key, error: str, wait: float | None) -> None:
        """Add a failed job. It runs again after `wait` seconds; None: it is dead."""
        self.errors[key] = error
        if wait is None:
            self.dead.append(key)
        else:
            self.retried[key] = wait

    def become(self, written: Outcomes) -> None:
        """Replace these outcomes by those that were written."""
        vars(self).update(vars(written))

    def add(self, others: Outcomes) -> None:
        """Add other outcomes, of which none is done."""
        self.released.extend(others.released)
        self.dead.extend(others.dead)
        self.retried.update(others.retried)
        self.suspects.update(others.suspects)
        self.isolated.update(others.isolated)
        self.errors.update(others.errors)
        self.raised.update(others.raised)

    def only(self, held: set[Key]) -> Outcomes:
        """The outcomes of these keys."""
        return Outcomes(
            done=[key for key in self.done if key in held],
            columns={key: values for key, values in self.columns.items() if key in held},
            released=[key for key in self.released if key in held],
            retried={key: wait for key, wait in self.retried.items() if key in held},
            dead=[key for key in self.dead if key in held],
            suspects={key: wait for key, wait in self.suspects.items() if key in held},
            group_size=self.group_size or len(self.suspects),
            isolated=self.isolated & held,
            errors={key: error for key, error in self.errors.items() if key in held},
            stores_texts=self.stores_texts,
            raised={key: error for key, error in self.raised.items() if key in held},
            jobs=self.jobs,
        )
