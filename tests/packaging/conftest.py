"""The distributions, built once a run by the tools that a release uses, each in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.authorities import remembered

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Built:
    """The files of one build, by what they were built from."""

    sdist: Path
    wheel: Path
    """From the repository."""
    wheel_of_sdist: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    direct, released = tmp_path_factory.mktemp("direct"), tmp_path_factory.mktemp("released")
    _build("--wheel", "--outdir", str(direct))
    _build("--outdir", str(released))  # the sdist, and the wheel from the sdist
    return Built(
        sdist=_only(released, "*.tar.gz"), wheel=_only(direct, "*.whl"), wheel_of_sdist=_only(released, "*.whl")
    )


def contents(wheel: Path) -> dict[str, bytes]:
    """Name and content of every file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _build(*options: str) -> None:
    command = [sys.executable, "-m", "build", *options, str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=remembered())
    assert done.returncode == 0, done.stdout + done.stderr


def _only(folder: Path, pattern: str) -> Path:
    [path] = folder.glob(pattern)
    return path
