"""`claimjobs start-processing` as a process group of its own, to be signalled and looked at."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa

from tests.backends import Backend
from tests.process.work import AUDIT

ROOT = Path(__file__).parents[2]
HANDLERS = "tests.process.work"


class Command:
    """A running command."""

    def __init__(self, backend: Backend, gate: Path, *arguments: str, verbose: bool = False) -> None:
        self.backend = backend
        self.gate = gate
        environment = {**os.environ, "CLAIMJOBS_URL": backend.url, "GATE": str(gate)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "claimjobs", *(["-v"] if verbose else []), "start-processing", *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def end(self, seconds: float = 60) -> tuple[int, str, str]:
        """Wait for the end: exit code, standard output, standard error."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def wait_until_begun(self, consumers: int = 2) -> int:
        """Wait until so many consumers have begun a batch; how many jobs these have. A batch may be smaller than was
        asked for: claims of the same moment may find the same candidates, and share them.
        """
        begun = sa.select(sa.func.count(AUDIT.c.pid.distinct())).where(AUDIT.c.what == "begun")

        def have_begun() -> bool:
            with self.backend.engine.connect() as connection:
                return connection.scalar(begun) == consumers

        self.backend.wait_for(have_begun, f"{consumers} consumers have begun")
        return len(noted(self.backend, "begun"))

    def wait_until_it_says(self, word: str) -> None:
        """Read standard error up to a line with this word."""
        assert self.process.stderr is not None
        assert any(word in line for line in self.process.stderr), f"it ended without a word of {word!r}"

    def send(self, number: signal.Signals) -> None:
        """Signal the command's own process."""
        self.process.send_signal(number)

    def send_to_group(self, number: signal.Signals) -> None:
        """Signal the command and all its children, as a terminal or a service manager does."""
        os.killpg(self.process.pid, number)

    def group(self) -> list[psutil.Process]:
        """All processes of the command that are alive."""
        return [process for process in psutil.process_iter() if self._is_mine(process)]

    def spawned(self) -> list[psutil.Process]:
        """Its children that are consumers or generators."""
        found = []
        for process in self.group():
            with contextlib.suppress(psutil.NoSuchProcess):
                if any("spawn_main" in word for word in process.cmdline()):
                    found.append(process)
        return found

    def _is_mine(self, process: psutil.Process) -> bool:
        try:
            return os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            return False

    def wait_until_all_is_gone(self, seconds: float = 20) -> None:
        """Fail if a process of the command is left."""
        self.backend.wait_for(lambda: not self.group(), "every process of the command is gone", seconds)


@contextmanager
def started(backend: Backend, tmp_path: Path, *arguments: str, verbose: bool = False) -> Iterator[Command]:
    """The command, running; nothing of it is left afterwards, whatever happened."""
    backend.make()
    AUDIT.create(backend.engine, checkfirst=True)
    command = Command(backend, tmp_path / "gate", *arguments, verbose=verbose)
    try:
        yield command
    finally:
        for process in command.group():
            process.kill()
        command.process.communicate()


def summary(out: str) -> dict[str, Any]:
    """The closing summary of a run with --json."""
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert found["event"] == "summary"
    return found


def adds_up(found: dict[str, Any]) -> bool:
    """Whether what came in is what went out."""
    came, went = found["generated"] + found["before"], found["done"] + found["failed"] + found["left"]
    return bool(came == went and found["unaccounted"] == 0)


def noted(backend: Backend, what: str) -> list[int]:
    """The jobs that handlers say this of."""
    with backend.engine.connect() as connection:
        return list(connection.scalars(sa.select(AUDIT.c.job).where(AUDIT.c.what == what)))


def statuses(backend: Backend) -> list[str]:
    """The status of every job that is left."""
    return [row["status"] for row in backend.rows()]


def rows(count: int, **values: Any) -> list[dict[str, Any]]:
    """Jobs to enqueue."""
    return [{"d": "d", "e": "e", **values}] * count
