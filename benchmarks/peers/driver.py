"""Driver: one process of a system under test, in that system's own environment.

`python -m benchmarks.peers.driver MODULE fill|work ORDER`, the order as JSON. The standard library alone: this runs
where nothing of the project is installed. What `race` and a worker say to each other is a line each, all JSON from
here: `{"ready": true}`; then `go`; `{"handled": 17}` every some milliseconds; then `stop`;
`{"numbers": [...]}`. driver.mjs says the same for systems that need Node.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import SplitResult, urlsplit

SECONDS_A_LINE = 0.01
SECONDS_TO_END = 10.0
DIGITS = 8
"""Of the job's number, at the end of its first string."""
LENGTH = 64
"""Of the strings."""
NOTES = "CLAIMJOBS_PEERS_NOTES"
"""The variable that names the file for what the children of a worker did."""


_done: list[str] = []


def did(d: str) -> None:
    """What a handler calls, with the first string of its job."""
    _done.append(d)


def note(d: str) -> None:
    """What a handler calls that runs in a child of the worker."""
    os.write(_notes(), f"{d}\n".encode())


@cache
def _notes() -> int:
    return os.open(os.environ[NOTES], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@dataclass(frozen=True)
class Order:
    """What is to be done."""

    url: str
    """As SQLAlchemy writes it."""
    rows: str
    """A file with two strings a line, as many lines as jobs or more."""
    jobs: int
    batch: int
    workers: int
    """How many processes work at the same time."""
    number: int
    """Which of them this is, from 0."""

    @property
    def dsn(self) -> str:
        """As libpq and asyncpg write it."""
        return self.url.replace("postgresql+psycopg:", "postgresql:", 1)

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.url)

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith("postgresql")

    def read(self) -> Iterator[tuple[str, str]]:
        """The jobs: two strings each."""
        with Path(self.rows).open() as file:
            for line in islice(file, self.jobs):
                d, e = line.split()
                yield d, e

    def chunks(self, size: int = 1_000) -> Iterator[list[tuple[str, str]]]:
        """The jobs, `size` at a time."""
        rows = self.read()
        while chunk := list(islice(rows, size)):
            yield chunk


class Line:
    """The start line, and what a worker tells from then on."""

    def __init__(self, told: TextIO) -> None:
        self.stop = threading.Event()
        self._told = told
        self._notes = Path(os.environ[NOTES])
        self._on_stop: list[Callable[[], object]] = []

    def ready(self) -> None:
        """Wait for the start. Call it with all modules imported and all connections open, where that can be had."""
        self._tell(ready=True)
        if not sys.stdin.readline():
            os._exit(1)  # nobody is there any more
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._report, daemon=True).start()

    def on_stop(self, call: Callable[[], object]) -> None:
        """Call this, in a thread of its own, when the time has come to end."""
        self._on_stop.append(call)

    def finish(self) -> None:
        """Tell what was done."""
        self._tell(numbers=[int(d[-DIGITS:]) for d in (*_done, *self._noted())])

    def _listen(self) -> None:
        if not sys.stdin.readline():
            os._exit(1)
        self.stop.set()
        for call in self._on_stop:
            call()

    def _report(self) -> None:
        told = 0
        while not self.stop.wait(SECONDS_A_LINE):
            if (handled := len(_done) + self._count_noted()) != told:
                self._tell(handled=handled)
                told = handled

    def _noted(self) -> list[str]:
        return self._notes.read_text().splitlines() if self._notes.exists() else []

    def _count_noted(self) -> int:
        return self._notes.stat().st_size // (LENGTH + 1) if self._notes.exists() else 0

    def _tell(self, **what: Any) -> None:
        print(json.dumps(what), file=self._told, flush=True)


def main() -> None:
    name, action, order = sys.argv[1:]
    told = _take_stdout()
    module = import_module(name)
    if action == "fill":
        module.fill(Order(**json.loads(order)))
        return
    line = Line(told)
    module.work(Order(**json.loads(order)), line)
    line.finish()
    told.close()
    os._exit(0)  # threads that a system leaves behind are none of our business


def _take_stdout() -> TextIO:
    """What a system prints goes to standard error."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return told


if __name__ == "__main__":
    import_module("benchmarks.peers.driver").main()  # the module that the systems import, not a second copy of it
