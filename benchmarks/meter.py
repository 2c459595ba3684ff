"""Meter: what the server and the disk did while a run lasted, and what limited the run by that.

The consumers tell their own CPU. The server's is that of its process and all that descend from it, read from /proc by
a thread of the parent some times a second, and taken in between as if it had grown evenly. That somebody waited for
the disk is the kernel's own count (`/proc/pressure/io`, "some"): under a queue that is the fsync of a commit.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

EVERY = 0.2
"""Seconds between two looks: one costs about 2 ms."""

TICKS = os.sysconf("SC_CLK_TCK")
PRESSURE = Path("/proc/pressure/io")

FULL = 0.9
"""Of the machine's cores: busier than that, and its CPU is what limits."""
MANY_OTHERS = 0.5
"""Cores that somebody else keeps busy: who waits then, waits for a core now and then."""


@dataclass(frozen=True)
class Clocks:
    """Clocks that count seconds, read at one time."""

    at: float
    server: float
    """CPU of the server."""
    disk: float
    """Time in which at least one task waited for the disk."""


@dataclass(frozen=True)
class Used:
    """What was used between two moments: cores on average, and the disk's share of the time. None: not known."""

    server: float | None = None
    disk: float | None = None


class Meter:
    """Looks at a server while a `with` block lasts. Without a process id it knows nothing of the server's CPU."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._looks: list[Clocks] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="meter", daemon=True)

    def __enter__(self) -> Self:
        self._looks.append(self._look())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._looks.append(self._look())

    def between(self, began: float, ended: float) -> Used:
        """What was used between two moments of the monotonic clock, both within the `with` block."""
        first, last = self._at(began), self._at(ended)
        seconds = last.at - first.at
        return Used(
            server=None if self._pid is None else (last.server - first.server) / seconds,
            disk=(last.disk - first.disk) / seconds if PRESSURE.exists() else None,
        )

    def _at(self, moment: float) -> Clocks:
        """What a look at this moment would have seen."""
        after = min(max(bisect_right(self._looks, moment, key=lambda look: look.at), 1), len(self._looks) - 1)
        one, two = self._looks[after - 1], self._looks[after]
        part = (moment - one.at) / (two.at - one.at)
        return Clocks(moment, _within(one.server, two.server, part), _within(one.disk, two.disk, part))

    def _watch(self) -> None:
        while not self._over.wait(EVERY):
            self._looks.append(self._look())

    def _look(self) -> Clocks:
        server = 0.0 if self._pid is None else cpu_of_tree(self._pid)
        return Clocks(time.monotonic(), server, _disk())


def _within(one: float, two: float, part: float) -> float:
    return one + (two - one) * part


def _disk() -> float:
    if not PRESSURE.exists():
        return 0.0
    return int(PRESSURE.read_text().splitlines()[0].rpartition("total=")[2]) / 1e6


def cpu_of_tree(pid: int) -> float:
    """CPU seconds of a process, of those that descend from it, and of those of them that have ended."""
    found = dict(_processes())
    parents = {child: parent for child, (parent, _) in found.items()}
    return sum(seconds for process, (_, seconds) in found.items() if _descends(process, pid, parents))


def _descends(process: int, pid: int, parents: dict[int, int]) -> bool:
    while process != pid and process in parents:
        process = parents[process]
    return process == pid


def _processes() -> Iterator[tuple[int, tuple[int, float]]]:
    """Of each process its parent and its CPU seconds, with those of its children that it has waited for."""
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            said = Path("/proc", name, "stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = said[said.rindex(b")") + 2 :].split()
        yield int(name), (int(fields[1]), sum(map(int, fields[11:15])) / TICKS)


# --- what limits a run ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """Cores that were kept busy during a run, on average."""

    consumers: int
    cores: int
    clients: float
    busy: float
    """By whomever."""
    used: Used

    @property
    def server(self) -> float:
        """Where it is not known: whoever was busy and no consumer."""
        return max(0.0, self.busy - self.clients) if self.used.server is None else self.used.server

    @property
    def others(self) -> float:
        """Who is busy and neither consumer nor server."""
        return max(0.0, self.busy - self.clients - self.server)


def limit(load: Load) -> str:
    """What limits a run.

    Where all cores are busy it is CPU, of those who have most of it. Elsewhere a consumer and its session of the server
    take turns, so what limits is what its time goes into: its own CPU, the server's, or waiting for neither.
    """
    if load.busy >= FULL * load.cores:
        return _most({"client CPU": load.clients, "server CPU": load.server, "CPU of others": load.others})
    client, server = load.clients / load.consumers, load.server / load.consumers
    waiting = max(0.0, 1 - client - server)
    return _most({"client CPU": client, "server CPU": server, _awaited(load, waiting): waiting})


def _most(shares: dict[str, float]) -> str:
    return max(shares, key=lambda name: shares[name])


def _awaited(load: Load, waiting: float) -> str:
    """The disk, if somebody waited for it during half of the time that went into waiting; else perhaps a line."""
    if load.others >= MANY_OTHERS:
        return "CPU of others"
    return "fsync" if (load.used.disk or 0.0) >= waiting / 2 else "waiting"
