"""Crew: functions at work in spawned processes, and what they return."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")

SPAWN = multiprocessing.get_context("spawn")
"""For the start lines and the memory that workers share."""

WARM = ("benchmarks.contestants", "claimjobs.cli", "psycopg", "pymysql")
"""What workers have imported when they start, so that 600 starts of them take no minutes."""

_context: list[BaseContext] = [SPAWN]


def warm() -> None:
    """From now on fork workers from a process that has imported what they need, and has no connection to anything.

    A worker of Python alone takes half a second to start otherwise, and the ten of a run five seconds on two cores.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(WARM))
    _context[0] = context


class CrewFailed(Exception):
    """A worker raised, was ended, or took too long."""


class Worker(Generic[Result]):
    """A function at work in a process of its own."""

    def __init__(self, work: Callable[..., Result], *arguments: Any, **options: Any) -> None:
        self.pipe, theirs = SPAWN.Pipe(duplex=False)
        process: Any = _context[0].Process  # type: ignore[attr-defined]  # which each context has
        self._process = process(target=_run, args=(theirs, work, arguments, options), daemon=True)
        self._process.start()
        theirs.close()  # so that the end of the process is the end of the pipe

    def result(self) -> Result:
        """What the function returned; waits for it. Raises CrewFailed."""
        try:
            failure, result = self.pipe.recv()
        except EOFError:
            failure, result = "it was ended", None
        self._process.join()
        if failure:
            raise CrewFailed(f"a worker failed (exit code {self._process.exitcode}): {failure}")
        return result  # type: ignore[no-any-return]  # it came through a pipe

    def end(self) -> None:
        """Kill it, if it still runs."""
        self._process.kill()
        self._process.join()


def gather(workers: Sequence[Worker[Result]], seconds: float = 600.0) -> list[Result]:
    """What all of them return. The first failure ends the others and is raised, as CrewFailed."""
    results: dict[Any, Result] = {}
    by_pipe = {worker.pipe: worker for worker in workers}
    deadline = time.monotonic() + seconds
    try:
        while len(results) < len(workers):
            for pipe in _ready([pipe for pipe in by_pipe if pipe not in results], deadline):
                results[pipe] = by_pipe[pipe].result()
    finally:
        for worker in workers:
            worker.end()
    return [results[worker.pipe] for worker in workers]


def _ready(pipes: list[Connection], deadline: float) -> list[Any]:
    if ready := wait(pipes, max(0.0, deadline - time.monotonic())):
        return ready
    raise CrewFailed(f"{len(pipes)} workers took too long")


def orphaned() -> bool:
    """Whether the process that started this worker is no more, so that nobody waits for its result."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


def _run(pipe: Connection, work: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    try:
        pipe.send((None, work(*arguments, **options)))
    except BaseException:
        pipe.send((traceback.format_exc(), None))
        raise SystemExit(1) from None
