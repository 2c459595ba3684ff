"""No Python file of the repository is long."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.packaging.conftest import REPOSITORY

LONGEST = 490
"""Lines of a file. One that is longer is divided by what it shows, into files with telling names."""


@functools.cache
def python_files() -> list[Path]:
    """The files that ruff checks: those that git knows or would know, without what was installed or made."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--show-files"]
    shown = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    return [path for path in map(Path, shown.splitlines()) if path.suffix == ".py"]


def too_long(paths: Iterable[Path]) -> list[str]:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    return sorted(f"{path}: {length} lines" for path, length in lengths.items() if length > LONGEST)


def test_no_file_is_longer_than_the_limit() -> None:
    assert too_long(python_files()) == []


def test_every_folder_is_seen() -> None:
    seen = {path.relative_to(REPOSITORY).parts[0] for path in python_files()}
    assert {"claimjobs", "dialects", "docs", "tests", "servers", "benchmarks", "examples"} <= seen


@pytest.mark.parametrize(("lines", "refused"), [(LONGEST, False), (LONGEST + 1, True)])
def test_one_line_too_many_is_found(tmp_path: Path, lines: int, refused: bool) -> None:
    path = tmp_path / "module.py"
    path.write_text("x = 1\n" * lines)
    assert too_long([path]) == ([f"{path}: {lines} lines"] if refused else [])
