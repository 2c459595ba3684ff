"""Which lines of the protocol each test reaches: a plugin of pytest (`-p tests.mutants.reach`), and what it found.

What a test runs in other processes is not seen.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from tests.mutants.mutations import Mutant
from tests.mutants.targets import ROOT

FOLDER: Final = "CLAIMJOBS_REACH"
"""The variable that names the folder where each worker of a run writes a file."""
OURS: Final = tuple(os.path.realpath(ROOT / folder) + os.sep for folder in ("claimjobs", "dialects"))
"""Traced: claimjobs/dialects is a symlink."""

Timed = list[tuple[str, float]]
"""Tests, and how many seconds each takes."""

_places: dict[str, str | None] = {}
_reached: dict[str, set[int]] = {}


def _place(path: str) -> str | None:
    """A source of ours, as it is called in the repository."""
    if path not in _places:
        real = os.path.realpath(path)
        _places[path] = str(Path(real).relative_to(os.path.realpath(ROOT))) if real.startswith(OURS) else None
    return _places[path]


def _enter(frame: FrameType, event: str, _: Any) -> Any:
    place = _place(frame.f_code.co_filename)
    if place is None:
        return None
    lines = _reached.setdefault(place, set())

    def see(frame: FrameType, event: str, _: Any) -> Any:
        lines.add(frame.f_lineno)
        return see

    return see


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Trace a test with its fixtures."""
    _reached.clear()
    began = time.monotonic()
    threading.settrace(_enter)
    sys.settrace(_enter)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)
        _write(item.nodeid, time.monotonic() - began)


def _write(test: str, seconds: float) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    told = {"test": test, "seconds": round(seconds, 2), "lines": {file: sorted(at) for file, at in _reached.items()}}
    with (Path(os.environ[FOLDER]) / f"{worker}.jsonl").open("a", encoding="utf-8") as out:
        out.write(json.dumps(told) + "\n")


# --- what was found ------------------------------------------------------------------------------------------


class Reach:
    """Which tests reach a line, from the files of a run."""

    def __init__(self, folder: Path) -> None:
        told = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text("utf-8").splitlines()]
        self._tests = sorted(told, key=lambda test: float(test["seconds"]))

    def tests(self, mutant: Mutant) -> Timed:
        """The tests that reach the statement that is changed: of each function the quickest, and so on; each time the
        quickest first."""
        lines = statement_lines((ROOT / mutant.file).read_text("utf-8"), mutant.line)
        reaching = [test for test in self._tests if not lines.isdisjoint(test["lines"].get(mutant.file, ()))]
        turns: Counter[str] = Counter()
        placed = []
        for test in reaching:
            function = test["test"].partition("[")[0] + ("mysql" if "[mysql" in test["test"] else "")
            placed.append((turns[function], test["seconds"], test["test"]))
            turns[function] += 1
        return [(test, seconds) for _, seconds, test in sorted(placed)]


def statement_lines(source: str, line: int) -> set[int]:
    """The lines of the statement that a line is part of; of a compound one, its head."""
    around = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt) and _head(node).start <= line]
    heads = [set(_head(node)) for node in around]
    return min((lines for lines in heads if line in lines), key=len)


def _head(node: ast.stmt) -> range:
    body: list[ast.stmt] = getattr(node, "body", [])
    return range(node.lineno, max(body[0].lineno, node.lineno + 1) if body else (node.end_lineno or node.lineno) + 1)
