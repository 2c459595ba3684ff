"""Verdict: what a phase came to, promise by promise."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.chaos import audit
from tests.chaos.arena import Arena, Strike
from tests.chaos.audit import Story
from tests.chaos.faults import Fault, NotHere
from tests.chaos.fleet import Overdue

SAMPLES: Final = 10
"""A median of fewer says little."""


@dataclass
class Verdict:
    """One line of the table."""

    database: str
    fault: str
    skipped: str = ""
    """Why it could not be tried here."""
    times: int = 0
    jobs: int = 0
    lost: int = 0
    settled_twice: int = 0
    executed_twice: int = 0
    bound: int = 0
    delays: list[float] = field(default_factory=list)
    """Seconds until work went on, for each strike that hit work."""
    broken: list[str] = field(default_factory=list)
    """Promises that were not kept."""

    @property
    def longest(self) -> float | None:
        """Seconds until work went on, the worst of all."""
        return max(self.delays, default=None)

    @property
    def median(self) -> float | None:
        """Seconds until work went on, the median of all."""
        return statistics.median(self.delays) if self.delays else None


def run(arena: Arena, fault: Fault, times: int) -> Verdict:
    """Strike so often under load, drain, stop, and judge."""
    if reason := arena.queue.lacks.get(fault.needs):
        return Verdict(arena.server.backend, fault.name, skipped=reason)
    try:
        with fault.place(arena) as place:
            return _run(place, fault, times)
    except NotHere as error:
        return Verdict(arena.server.backend, fault.name, skipped=str(error))


def _run(arena: Arena, fault: Fault, times: int) -> Verdict:
    leaks: list[str] = []
    arena.injected = 0
    with arena.fleet(fault.formation):
        try:
            for _ in range(times):
                arena.pause(*fault.pause)
                arena.injected += 1
                fault.strike(arena)
                arena.restore()
            arena.drain()
        except Overdue as error:
            leaks.append(str(error))
        arena.load.stop()
        leaks += arena.stop()
    return judge(arena, fault, leaks)


def judge(arena: Arena, fault: Fault, leaks: list[str]) -> Verdict:
    """What became of it."""
    story = audit.read(arena.engine, arena.kind)
    verdict = Verdict(arena.server.backend, fault.name, times=arena.injected, jobs=len(story.enqueued))
    verdict.lost = len(story.lost(fault.poison)) + max(0, arena.load.acknowledged - verdict.jobs)
    verdict.settled_twice = len(story.settled_twice)
    verdict.executed_twice = story.executed_twice
    verdict.bound = sum(strike.in_danger for strike in arena.strikes)
    if fault.hands is not None:
        verdict.delays = [story.detour(job) for job in story.innocent]
    else:
        verdict.delays = [delay for strike in arena.strikes if (delay := went_on(story, strike)) is not None]
    story.dump(arena.folder / f"{arena.server.backend}-{fault.name}.txt".replace(" ", "-"), arena.strikes)
    most = 1 if arena.in_order else arena.per_key
    if most and story.most_in_hand > most:
        leaks = [*leaks, f"{story.most_in_hand} jobs of one key were claimed at once, more than {most}"]
    if arena.in_order:
        leaks = [*leaks, *story.out_of_order[:5]]
    if arena.queue.exactly_once and story.not_exactly_once:
        leaks = [*leaks, f"{len(story.not_exactly_once)} jobs not exactly once: {story.not_exactly_once[:3]}"]
    if story.writes:
        leaks = [*leaks, f"{len(story.writes)} writes of rows that must not be altered: {story.writes[:3]}"]
    verdict.broken = [*leaks, *_broken(verdict, fault, story)]
    return verdict


def went_on(story: Story, strike: Strike) -> float | None:
    """Seconds until work went on: until the last job in danger ran elsewhere, or anything ran again."""
    if strike.everyone:
        return story.next_run(strike.at)
    jobs = story.in_hand(strike.pids, strike.at)
    delays = [story.went_on(job, strike.pids, strike.at) for job in jobs]
    return max((delay for delay in delays if delay is not None), default=None)


def _broken(verdict: Verdict, fault: Fault, story: Story) -> Iterator[str]:
    if verdict.lost:
        yield f"{verdict.lost} jobs lost: {story.lost(fault.poison)[:5]}"
    if verdict.settled_twice:
        yield f"{verdict.settled_twice} settles were not the owner's: {story.settled_twice[:3]}"
    if verdict.executed_twice > verdict.bound:
        yield f"{verdict.executed_twice} jobs executed twice, more than {verdict.bound}"
    if fault.hands is not None and max(story.innocent.values(), default=0) > fault.hands:
        yield f"an innocent job was in {max(story.innocent.values())} hands, more than {fault.hands}"
    if fault.hands is not None and len(story.dead) != verdict.times:
        yield f"{len(story.dead)} of {verdict.times} poison jobs are dead"
    if (verdict.longest or 0) > fault.limit:
        yield f"work went on after {verdict.longest:.2f} s, later than {fault.limit:g}"
    if fault.median is not None and verdict.times == fault.times and len(verdict.delays) < SAMPLES:
        yield f"a median of {len(verdict.delays)} samples, fewer than {SAMPLES}"
    if fault.median is not None and len(verdict.delays) >= SAMPLES and (verdict.median or 0) > fault.median:
        yield f"median {verdict.median:.2f} s, more than {fault.median:g}"
