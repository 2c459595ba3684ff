"""The protocol in plain Python, after docs/guarantees.md: what becomes of each job. It asks nothing of the library."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

ATTEMPTS: Final = 3
BASE: Final = 4.0
CAP: Final = 10.0
"""Seconds: the nth failure waits for between half of `BASE * 2 ** (n - 1)` and all of it, `CAP` at most."""
ROUNDING: Final = timedelta(milliseconds=1)

Span = tuple[datetime, datetime]


class Word(NamedTuple):
    """What a consumer says of a job in its hand."""

    kind: Literal["done", "released", "failed", "hopeless", "suspect"]
    retry_in: float | None = None
    alone: bool = False
    """Nobody named it: it was the only one that could have failed."""


RELEASED: Final = Word("released")


@dataclass
class Job:
    """A row of the table. Its name says when it was enqueued: the one after the other."""

    name: str
    priority: int
    run_at: Span
    status: str = "unclaimed"
    owner: int | None = None
    attempts: int = 0
    suspect: int = 0

    def is_due(self, now: datetime) -> bool:
        """Whether it may be claimed."""
        return self.status == "unclaimed" and self.run_at[1] <= now

    def is_held_by(self, owner: int) -> bool:
        """The guard of every way out of `claimed`."""
        return self.status == "claimed" and self.owner == owner

    def narrow(self, seen: datetime) -> None:
        """A back-off is drawn at random: from now on it is what it was seen to be. Fails for what it cannot be."""
        earliest, latest = self.run_at
        assert earliest - ROUNDING <= seen <= latest + ROUNDING, f"job {self.name} runs at {seen}, not {self.run_at}"
        self.run_at = (seen, seen)

    def charge(self, *, suspect: bool) -> bool:
        """One attempt more; whether it has another one."""
        self.attempts += 1
        alive = self.attempts < ATTEMPTS
        self.suspect = int(suspect and alive)
        self.leave("unclaimed" if alive else "dead")
        return alive

    def leave(self, status: str) -> None:
        """Nobody holds it any more."""
        self.status, self.owner = status, None


@dataclass
class Model:
    """All jobs by their names, and the owners that are in their table."""

    jobs: dict[str, Job] = field(default_factory=dict)
    owners: set[int] = field(default_factory=set)
    declared: set[int] = field(default_factory=set)
    """Owners that were declared dead and still have jobs in their name, which a stranger had locked."""

    def is_alive(self, owner: int) -> bool:
        """Whether nobody has declared it dead."""
        return owner in self.owners - self.declared

    def named(self, status: str) -> list[str]:
        """The jobs in a state, as they were enqueued."""
        return [name for name, job in self.jobs.items() if job.status == status]

    def held_by(self, owner: int) -> list[Job]:
        """What stands in the name of an owner."""
        return [job for job in self.jobs.values() if job.is_held_by(owner)]

    def enqueue(self, name: str, priority: int, run_at: datetime) -> None:
        """One more."""
        self.jobs[name] = Job(name, priority, (run_at, run_at))

    # --- claiming --------------------------------------------------------------------------------------

    def claimable(self, now: datetime, size: int) -> list[str]:
        """What a claim of this size takes, or more than it takes where it reads no further than `size` jobs."""
        due = sorted((job for job in self.jobs.values() if job.is_due(now)), key=lambda job: (job.priority, job.name))
        group_size = due[0].suspect if due else 0
        alike = [job.name for job in due if job.suspect == group_size]
        return alike[: min(size, max(1, group_size // 2)) if group_size else size]

    def claim(self, owner: int, names: Collection[str]) -> None:
        """These jobs are in the hand of this owner now."""
        for name in names:
            self.jobs[name].status, self.jobs[name].owner = "claimed", owner

    # --- settling --------------------------------------------------------------------------------------

    def settle(self, owner: int, words: Mapping[str, Word], now: datetime, *, keep: bool) -> set[str]:
        """Write what is said of the jobs that are still this owner's; those that are not."""
        held = {name: word for name, word in words.items() if name in self.jobs and self.jobs[name].is_held_by(owner)}
        group_size = sum(word.kind == "suspect" for word in words.values())
        for name, word in held.items():
            self._write(self.jobs[name], word, now, group_size)
            if self.jobs[name].status == "done" and not keep:
                del self.jobs[name]
        return words.keys() - held.keys()

    def _write(self, job: Job, word: Word, now: datetime, group_size: int) -> None:
        before = job.attempts
        if word.kind == "done":
            job.status = "done"
        elif word.kind == "hopeless":
            job.attempts, job.suspect = before + 1, 0
            job.leave("dead")
        elif word.kind == "failed":
            if job.charge(suspect=word.alone):
                job.run_at = _after(now, before) if word.retry_in is None else _exactly(now, word.retry_in)
        else:
            job.leave("unclaimed")
            if word.kind == "suspect":
                job.suspect, job.run_at = group_size, _after(now, before)

    # --- dying -----------------------------------------------------------------------------------------

    def reclaim(self, owner: int, now: datetime, locked: Collection[str] = ()) -> int:
        """Hand back what a dead owner holds, but for what a stranger has `locked`; how many jobs."""
        held = self.held_by(owner)
        free = [job for job in held if job.name not in locked]
        if len(held) == len(free) == 1 and owner not in self.declared:
            self._died_alone(free[0], now)
        else:
            for job in free:
                job.leave("unclaimed")
                job.suspect, job.run_at = len(free), (now, now)
        self._take_out(owner, all_free=len(held) == len(free))
        return len(free)

    def leave(self, owner: int) -> None:
        """It ends of its own will, and hands back what it holds as it was."""
        for job in self.held_by(owner):
            job.leave("unclaimed")
        self.owners -= {owner} - self.declared

    def _died_alone(self, job: Job, now: datetime) -> None:
        before = job.attempts
        if job.charge(suspect=True):
            job.run_at = _after(now, before) if before else (now, now)

    def _take_out(self, owner: int, *, all_free: bool) -> None:
        if all_free:
            self.owners.discard(owner)
            self.declared.discard(owner)
        elif owner in self.owners:
            self.declared.add(owner)

    # --- looking after the dead ------------------------------------------------------------------------

    def retry(self, names: Collection[str], now: datetime) -> None:
        """All their attempts again."""
        for job in self._of(names):
            job.leave("unclaimed")
            job.attempts = job.suspect = 0
            job.run_at = (now, now)

    def drop(self, names: Collection[str]) -> None:
        """Dead, and now gone."""
        for job in list(self._of(names)):
            del self.jobs[job.name]

    def _of(self, names: Collection[str]) -> Iterator[Job]:
        return (self.jobs[name] for name in names)


def _after(now: datetime, failures: int) -> Span:
    longest = timedelta(seconds=min(BASE * 2**failures, CAP))
    return now + longest / 2, now + longest


def _exactly(now: datetime, seconds: float) -> Span:
    return now + timedelta(seconds=seconds), now + timedelta(seconds=seconds)
