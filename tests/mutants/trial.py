"""Trials: a mutant in a copy of the tree of its own, and the tests that must notice it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import servers
from tests.mutants.mutations import Mutant
from tests.mutants.targets import LEFT_ALONE, ROOT

ROUNDS: Final = ("not mysql and not mariadb and not portable", "mysql or portable")
"""Most mutants are noticed on the database that is quickest; the others are asked where that one notices nothing. What
MariaDB does in its own way is MySQL's SQL in the portable statements."""
BACKENDS: Final[tuple[servers.Backend, ...]] = ("postgres", "mysql")
LEFT_OUT: Final = (".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "results")
A_TEST: Final = 60
"""Seconds until a single test has hung."""
WORKERS: Final = "2"
ALL_TESTS: Final = 900
TIMED_OUT: Final = "time-out"


class Laboratory:
    """A copy of the tree, and servers that are started once."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._tree = folder / "tree"
        self._environment = {**os.environ, **environment, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
        shutil.copytree(ROOT, self._tree, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))

    def noticed_by(self, mutant: Mutant, tests: Sequence[str]) -> str | None:
        """The first test that fails with it, `time-out`, or None: it survives."""
        place = self._tree / mutant.file
        original = place.read_text(encoding="utf-8")
        place.write_text(mutant.source, encoding="utf-8")
        self._forget(mutant.file)
        try:
            return self.first_failure(tests)
        finally:
            place.write_text(original, encoding="utf-8")
            self._forget(mutant.file)

    def _forget(self, file: str) -> None:
        """Bytecode is known by the second of its source and its length, which a mutant may share."""
        for compiled in (self._tree.parent / "bytecode").rglob(f"{Path(file).stem}.*.pyc"):
            compiled.unlink()

    def first_failure(self, tests: Sequence[str]) -> str | None:
        """The same for the tree as it is."""
        failures = (self._first_failure([*tests, "-k", f"({those}) and {LEFT_ALONE}"]) for those in ROUNDS)
        return next(filter(None, failures), None)

    def _first_failure(self, words: Sequence[str]) -> str | None:
        usual = (
            "-q",
            "-x",
            "--no-header",
            "-p",
            "no:cacheprovider",
            "--timeout",
            str(A_TEST),
            "-n",
            WORKERS,
            "--dist",
            "worksteal",
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *usual, *words],
            cwd=self._tree,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=ALL_TESTS)
        except subprocess.TimeoutExpired:
            return TIMED_OUT
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return None if process.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED) else _failed(out)


def _failed(out: str) -> str:
    told = [
        line.split(" - ")[0].split(" ", 1)[1] for line in out.splitlines() if line.startswith(("FAILED ", "ERROR "))
    ]
    return told[0] if told else "no test could be collected"


@contextmanager
def laboratory() -> Iterator[Laboratory]:
    """A copy of the tree and its servers, for a `with` block."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cj-mutants-", ignore_cleanup_errors=True))
        started = {backend: stack.enter_context(servers.start(backend)).url for backend in BACKENDS}
        yield Laboratory(Path(folder), {f"CLAIMJOBS_TEST_{name.upper()}_URL": url for name, url in started.items()})
