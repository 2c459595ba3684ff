"""Trials: a mutant in a copy of the tree of its own, and the tests that must notice it."""

from __future__ import annotations

import contextlib
import functools
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
from tests.mutants.reach import FOLDER, Timed
from tests.mutants.targets import LEFT_ALONE, ROOT

BACKENDS: Final[tuple[servers.Backend, ...]] = ("postgres", "mysql")
"""What MariaDB does in its own way is MySQL's SQL in the portable statements: it is left out."""
LEFT_OUT: Final = (".git", ".mutants", ".venv", "__pycache__", ".*_cache", ".hypothesis", "results")
NEAR: Final = 12
"""Seconds of tests that a mutant gets at first, on each database: the quickest that reach its line."""
FAR: Final = 30
"""Seconds of the other tests that reach it, for a mutant that survives those."""
HUNG: Final = 6
"""A test that takes so many times longer than it did has hung."""
LEAST: Final = 15
"""Seconds that every test may take at least: the machine may be busy."""
MOST: Final = 60
"""Seconds for the tests of one step. Those that it cuts say nothing."""
FAST: Final = ("--suite", "test")
"""What `make test` runs must notice a change: nobody runs more after each one."""
WORKERS: Final = "2"
ALL_TESTS: Final = 900


class Laboratory:
    """A copy of the tree, servers that are started once, and which tests reach which lines."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._tree = folder / "tree"
        self._environment = {**os.environ, **environment, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
        shutil.copytree(ROOT, self._tree, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))

    def look(self, tests: Sequence[str], folder: Path) -> str | None:
        """See which lines each test reaches, and write that into a folder; the first test that fails, or None."""
        folder.mkdir(parents=True, exist_ok=True)
        words = ("-p", "tests.mutants.reach", "-n", WORKERS, "--dist", "worksteal", "--timeout", str(MOST))
        chosen = (*FAST, "-k", f"not mariadb and {LEFT_ALONE}")
        return self._first_failure([*words, *chosen, *tests], ALL_TESTS, **{FOLDER: str(folder.resolve())})

    def noticed_by(self, mutant: Mutant, reaching: Timed, tests: Sequence[str], *, far: bool = False) -> str | None:
        """The first test that fails with it, or hangs, of the nearest that reach it (or of those that are left then);
        where none is known to, of others. Or None: it survives."""
        original = (self._tree / mutant.file).read_text(encoding="utf-8")
        self._put(mutant.file, mutant.source)
        try:
            return self._noticed(reaching, far) if reaching else self._noticed_by_files(tests)
        finally:
            self._put(mutant.file, original)

    def _put(self, file: str, source: str) -> None:
        (self._tree / file).write_text(source, encoding="utf-8")
        # Bytecode is known by the second of its source and its length, which a mutant may share.
        for compiled in (self._tree.parent / "bytecode").rglob(f"{Path(file).stem}.*.pyc"):
            compiled.unlink()

    def fails_anyway(self, tests: Sequence[str]) -> str | None:
        """The first of these tests that fails without any mutant."""
        return self._first_failure(["-n", WORKERS, *tests], ALL_TESTS) if tests else None

    def _noticed_by_files(self, tests: Sequence[str]) -> str | None:
        return self._first_failure(["-n", WORKERS, *FAST, "-k", f"not mariadb and {LEFT_ALONE}", *tests], MOST)

    def _noticed(self, reaching: Timed, far: bool) -> str | None:
        there = [one for one in reaching if "[mysql" not in one[0]]
        near = _within(there, NEAR)
        near_mysql = _within([one for one in reaching if one not in there] or self._on_mysql(there), NEAR)
        others = [one for one in reaching if one not in near and one not in near_mysql]
        steps = (_within(others, FAR),) if far else (near, near_mysql)
        return next(filter(None, (self._of(step) for step in steps if step)), None)

    def _on_mysql(self, tests: Timed) -> Timed:
        """These tests on MySQL: they were seen on Postgres, the quicker one, alone."""
        same = [(test.replace("[postgres", "[mysql"), seconds) for test, seconds in tests if "[postgres" in test]
        return [one for one in same if one[0] in self._on_both]

    @functools.cached_property
    def _on_both(self) -> frozenset[str]:
        files = sorted({str(path.relative_to(ROOT)) for path in (ROOT / "tests/conformance").glob("test_*.py")})
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-k", "mysql"]
        told = subprocess.run([*command, *files], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        return frozenset(told.stdout.splitlines())

    def _of(self, step: Timed) -> str | None:
        longest = max(LEAST, HUNG * max(seconds for _, seconds in step))
        return self._first_failure(["--timeout", f"{longest:.0f}", *(test for test, _ in step)], MOST)

    def _first_failure(self, words: Sequence[str], bound: float, **environment: str) -> str | None:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *words],
            cwd=self._tree,
            env={**self._environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=bound)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return None if process.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED) else _failed(out)


def _within(tests: Timed, bound: float) -> Timed:
    """As many as a number of seconds allows, and one at least."""
    chosen: Timed = []
    for test, seconds in tests:
        bound -= seconds
        if chosen and bound < 0:
            break
        chosen.append((test, seconds))
    return chosen


def _failed(out: str) -> str:
    told = [
        line.split(" - ")[0].split(" ", 1)[1] for line in out.splitlines() if line.startswith(("FAILED ", "ERROR "))
    ]
    return told[0] if told else "no test could be run"


@contextmanager
def laboratory() -> Iterator[Laboratory]:
    """A copy of the tree and its servers, for a `with` block."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cj-mutants-", ignore_cleanup_errors=True))
        started = {backend: stack.enter_context(servers.start(backend, durable=False)).url for backend in BACKENDS}
        yield Laboratory(Path(folder), {f"CLAIMJOBS_TEST_{name.upper()}_URL": url for name, url in started.items()})
