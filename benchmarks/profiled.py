"""Profiled: where a consumer's time goes, by phase. `python -m benchmarks.profiled`, or `-m benchmarks --profile`

What is no CPU of the consumer is waiting for the server: exact, by the clocks. Of its CPU a timer of the kernel takes
samples, each of which counts for the innermost frame that is in one of the layers: the driver's C code counts for the
driver, that of SQLAlchemy for SQLAlchemy. The handler does nothing.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

from benchmarks import article, report, tables
from benchmarks.contestants import LOOPS, OURS
from benchmarks.crew import Worker, gather

if TYPE_CHECKING:
    from servers import Server

EVERY = 0.001
"""Seconds of CPU between two samples; the kernel's own tick may be longer."""
WAITING = "waiting for the server"
ELSEWHERE = "Python and the rest"
LAYERS = {"psycopg": "driver", "pymysql": "driver", "sqlalchemy": "SQLAlchemy", "claimjobs": "claimjobs"}
"""Folders of modules, and what their time counts for."""
HOT = 12
"""So many functions are named."""


@dataclass
class Profile:
    """Where the time of one consumer went."""

    jobs: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    layers: Counter[str] = field(default_factory=Counter)
    """Samples of its CPU."""
    functions: Counter[str] = field(default_factory=Counter)
    """Samples of its CPU, by the innermost function."""

    def take(self, _number: int, frame: FrameType | None) -> None:
        """A sample: the handler of the timer's signal."""
        if frame is not None:
            self.layers[_layer(frame)] += 1
            self.functions[_name(frame)] += 1

    def phases(self) -> dict[str, float]:
        """Shares of the time, in order."""
        samples = max(1, self.layers.total())
        working = {name: self.cpu * count / samples for name, count in self.layers.most_common()}
        return {name: part / self.seconds for name, part in {WAITING: self.seconds - self.cpu, **working}.items()}


def _layer(frame: FrameType | None) -> str:
    while frame is not None:
        folder = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if folder in LAYERS:
            return LAYERS[folder]
        frame = frame.f_back
    return ELSEWHERE


def _name(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}"


def consume(url: str, *, name: str) -> Profile:
    """Empty the table, and sample what takes the time."""
    opened, options = LOOPS[name]
    profile = Profile()
    with opened(url, 1, **options) as loop:
        signal.signal(signal.SIGPROF, profile.take)
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
        began, cpu = time.monotonic(), time.process_time()
        profile.jobs = loop().jobs
        profile.seconds, profile.cpu = time.monotonic() - began, time.process_time() - cpu
        signal.setitimer(signal.ITIMER_PROF, 0)
    return profile


def profiles(server: Server, jobs: int) -> Iterator[tuple[str, Profile]]:
    """One consumer of each contestant, one after the other."""
    rows = list(article.payload(jobs))
    for name in LOOPS:
        tables.clear(server.url)
        tables.setup_claimjobs(server.url)
        tables.fill(server.url, rows)
        [profile] = gather([Worker(consume, server.url, name=name)])
        yield name, profile


def table(found: dict[str, Profile]) -> str:
    """Microseconds a job, and shares, by phase and contestant."""
    phases = list(dict.fromkeys(phase for profile in found.values() for phase in profile.phases()))
    lines = [("", "", *found), ("us a job", "in all", *(f"{_each(profile):.1f}" for profile in found.values()))]
    for phase in phases:
        parts = [(profile.phases().get(phase, 0.0), _each(profile)) for profile in found.values()]
        lines.append(("", phase, *(f"{part * each:.1f} ({part:.0%})" for part, each in parts)))
    return report.aligned(lines)


def _each(profile: Profile) -> float:
    return profile.seconds * 1e6 / profile.jobs


def hot(profile: Profile) -> str:
    """The functions with the most CPU."""
    samples = max(1, profile.functions.total())
    return "\n".join(f"{count / samples:6.1%}  {name}" for name, count in profile.functions.most_common(HOT))


def text(found: dict[str, Profile]) -> str:
    """The table, and what claimjobs spends its own CPU on."""
    return "\n".join([table(found), f"{OURS}: the client's CPU by function", hot(found[OURS])])


if __name__ == "__main__":
    from benchmarks.command import profile

    profile()
