"""The consumers of a phase: supervisors with their processes, and bare ones; each group in a session of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import psutil

from claimjobs.options import Kind
from tests.chaos.kinds import KINDS

ROOT: Final = Path(__file__).parents[2]
HANDLER: Final = "tests.chaos.work:handle"
THREADS: Final = "tests.chaos.work:handle_job"
TASKS: Final = "tests.chaos.work:await_job"
BARE: Final = (
    *("size", "lease", "max_batch_time", "attempts", "threads"),
    *("kind", "session_lock", "candidates", "any_order", "per_key", "in_order"),
)
"""The settings of a consumer without a supervisor."""
PATIENCE: Final = 60.0
"""Seconds until something that must happen is given up."""

Road = Literal["direct", "proxy", "namespace", "pooler"]


class Overdue(Exception):
    """Something that must happen did not."""


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Return when it is true. Raises Overdue."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Overdue(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)


@dataclass(frozen=True)
class Settings:
    """How a group is run."""

    size: int = 10
    lease: float = 10.0
    max_batch_time: float = 3600.0
    attempts: int = 5
    road: Road = "direct"
    """How it reaches the server."""
    clock: float = 0.0
    """Hours by which its clock is off."""
    kind: Kind = "rows"
    """The kind of queue that it has."""
    candidates: str | None = None
    """The URL of a replica where claims of consumers without a supervisor find their candidates."""
    session_lock: bool | None = None
    """See `Liveness`."""
    any_order: bool = False
    """Whether consumers without a supervisor claim with `order_by=()`."""
    concurrency: int = 0
    """How many jobs each consumer with a supervisor handles at once; 0: batches, one after the other."""
    tasks: bool = False
    """Whether it does that in an event loop, not in threads."""
    threads: int = 1
    """How many threads of a consumer without a supervisor share its Queue."""
    per_key: int = 0
    """How many jobs of each value of column `e` may be claimed at once; 0: any number."""
    in_order: bool = False
    """Whether the jobs of each value of column `e` are done one after the other, in their order."""
    stop_timeout: float | None = None
    """Seconds from a SIGTERM until a supervisor releases what its consumers hold."""

    @property
    def most_held(self) -> int:
        """The most jobs that a consumer holds: those may be executed twice if it dies."""
        return self.size + 2 * self.concurrency


@dataclass(frozen=True)
class Formation:
    """Which groups a phase begins with. The witnesses are never hit on purpose: they go on."""

    supervised: int = 0
    """Consumers of one supervisor."""
    bare: int = 0
    witnesses: int = 1
    settings: Settings = Settings()

    def but(self, **settings: object) -> Formation:
        """A formation with these groups and other settings."""
        return replace(self, settings=replace(self.settings, **settings))  # type: ignore[arg-type]


class Group:
    """Processes with one leader, in a session of their own."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path, consumers: int | None) -> None:
        """`consumers` of a supervisor; None: the leader is a consumer itself."""
        self.size = consumers or 1
        self.supervised = consumers is not None
        self.doomed = False
        """Whether its leader was killed on purpose."""
        self.log = log
        with log.open("ab") as output:
            self.leader = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the leader: the supervisor, or the bare consumer itself."""
        return self.leader.pid

    @property
    def alive(self) -> bool:
        """Whether its leader is."""
        return self.leader.poll() is None

    def processes(self) -> list[int]:
        """All that are alive."""
        self.leader.poll()
        return [process.pid for process in psutil.process_iter() if self._is_mine(process)]

    def _is_mine(self, process: psutil.Process) -> bool:
        try:
            return os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            return False

    def consumers(self) -> list[int]:
        """The processes that handle jobs, or will."""
        return [pid for pid in self.processes() if not self.supervised or _is_spawned(pid)]

    def seats(self, taken: Container[int]) -> list[bool]:
        """For each consumer that there should be, whether it is there and among these."""
        here = sum(pid in taken for pid in self.consumers())
        return [seat < here for seat in range(self.size)]

    def send(self, number: signal.Signals, *pids: int) -> None:
        """Signal these processes of the group, or all of it."""
        for pid in pids or tuple(self.processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def doom(self) -> None:
        """SIGKILL of its leader; return when that is gone."""
        self.doomed = True
        self.leader.kill()
        self.leader.wait()

    def stop(self) -> None:
        """Let it end in order. Raises Overdue, with nothing of it left all the same."""
        try:
            if self.alive:
                self.leader.send_signal(signal.SIGTERM)
            until(lambda: not self.processes(), f"the end of {self.processes()}, log {self.log}", 30)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it at once."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        self.leader.wait()


def _is_spawned(pid: int) -> bool:
    try:
        return any("spawn_main" in word for word in psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return False


def supervised(url: str, settings: Settings, consumers: int) -> list[str]:
    """The command of a supervisor with so many consumers."""
    options: dict[str, object] = {
        "--consumers": consumers,
        "--batch-size": settings.size,
        "--lease": settings.lease,
        "--max-batch-time": settings.max_batch_time,
        "--retry-attempts": settings.attempts,
        "--url": url,
    }
    if settings.stop_timeout is not None:
        options["--stop-timeout"] = settings.stop_timeout
    if settings.per_key or settings.in_order:
        options["--per-key"] = "e"
    if settings.per_key:
        options["--per-key-at-most"] = settings.per_key
    queue = KINDS[settings.kind]
    handler = f"tests.chaos.work:{queue.handler}"
    if settings.concurrency:
        options["--concurrency"] = settings.concurrency
        handler = TASKS if settings.tasks else THREADS
    words = [str(word) for option in options.items() for word in option]
    words += [*queue.words, *(["--per-key-in-order"] if settings.in_order else [])]
    return [sys.executable, "-m", "claimjobs", "start-processing", handler, *words, "--json"]


def bare(url: str, settings: Settings) -> list[str]:
    """The command of a consumer without a supervisor."""
    given = {name: getattr(settings, name) for name in BARE}
    return [sys.executable, "-m", "tests.chaos.bare", url, json.dumps(given)]


@contextlib.contextmanager
def all_ended(groups: list[Group]) -> Iterator[None]:
    """Whatever happens: afterwards no process of any group is left."""
    try:
        yield
    finally:
        for group in groups:
            group.kill()
