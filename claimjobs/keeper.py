"""Keep the embedded Postgres running while a command needs it, and stop it after the last one, however that ends.

Run as a program by claimjobs.embedded, one for each command, with the standard library alone. It starts the server
where none runs, answers one line of JSON, {"socket": folder} or {"error": reason}, and waits until its standard input
ends, which a kill -9 of the command does as well. All commands of a data folder share a lock; whoever can have it
alone is the last, and stops the server. The kernel lets go of a dead process's locks, so none can be forgotten.
"""

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "claimjobs"
"""Of the database, and of the user that owns it."""
PORT = "5432"
"""The socket is named after it; nothing listens on the network."""
SOCKET = f".s.PGSQL.{PORT}"
LONGEST_SOCKET = 100
"""Bytes; a socket's address holds 107 on Linux, 103 on macOS."""
START_SECONDS = "120"
STOP_SECONDS = "20"
"""For a shutdown in order; after that one as in a crash, from which the next start recovers. (Postgres 18 was seen
to wait for ever when it is told to stop while it recovers.)"""
TAIL_LINES = 10
NO_PROCESS = str(2**22 + 1)
"""Above the largest process id of Linux."""


class Problem(Exception):
    """Why there is no server."""


class Keeper:
    """The server of one data folder, and the locks that commands share it by."""

    def __init__(self, folder: Path, programs: Path, account: dict[str, int]) -> None:
        self.folder = folder
        self.programs = programs
        self.data = folder / "data"
        self.run = folder / "run"
        """What belongs to the running server: its socket and its log."""
        self._account: dict[str, Any] = {**account, "extra_groups": []} if account else {}

    # --- coming and going ------------------------------------------------------------------------------

    def come(self) -> str:
        """Be counted, and return the folder of the socket of a server that runs. Raises Problem."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o755 if self._account else 0o700)
        with self._alone():
            self._users = (self.folder / "users").open("w")
            fcntl.flock(self._users, fcntl.LOCK_SH)
            return self._answering() or self._start()

    def go(self) -> None:
        """Be counted no more; the last one stops the server."""
        with self._alone(), self._users, contextlib.suppress(BlockingIOError):
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._stop()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else starts or stops the server meanwhile."""
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # --- the server ------------------------------------------------------------------------------------

    def _answering(self) -> str | None:
        """The folder of the socket at which a server answers. Line 5 of its pid file names it."""
        try:
            folder = (self.data / "postmaster.pid").read_text().splitlines()[4]
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(Path(folder, SOCKET)))
        except (OSError, IndexError):
            return None
        return folder

    def _start(self) -> str:
        self._make_reachable()
        self._own(self.run)
        if self.data.exists():
            self._forget_the_dead()
        else:
            self._initialise()
        folder = self._socket_folder()
        settings = {"listen_addresses": "", "unix_socket_directories": folder, "port": PORT, "max_connections": "200"}
        options = shlex.join(word for name, value in settings.items() for word in ("-c", f"{name}={value}"))
        self._program("pg_ctl", "start", "-w", "-t", START_SECONDS, "-l", "log", "-o", options)
        return folder

    def _forget_the_dead(self) -> None:
        """Let no lock file stop the start whose process is no server any more.

        A restarted container gives the number to another program; one without an init keeps it as a zombie. The
        rest of the file stays: by it Postgres finds out whether memory of the old server is still in use.
        """
        for file in (self.data / "postmaster.pid", self.run / f"{SOCKET}.lock"):
            with contextlib.suppress(FileNotFoundError):
                pid, *rest = file.read_text().splitlines()
                if not _is_postgres(pid):
                    file.write_text("\n".join([NO_PROCESS, *rest, ""]))

    def _initialise(self) -> None:
        """Under another name until it is complete: what an interruption leaves is no data folder."""
        new = self.folder / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        self._own(new)
        words = ["--username", NAME, "--auth=trust", "--encoding=UTF8", "--locale=C"]
        self._program("initdb", *words, "--locale-provider=builtin", "--builtin-locale=C.UTF-8", data=new)
        self._program("postgres", "--single", "postgres", data=new, say=f"CREATE DATABASE {NAME}\n")
        new.rename(self.data)

    def _stop(self) -> None:
        folder = self._answering()
        for mode in ("fast", "immediate"):
            with contextlib.suppress(Problem):
                self._program("pg_ctl", "stop", "-w", "-t", STOP_SECONDS, "-m", mode)
                break
        if folder and Path(folder) != self.run:
            shutil.rmtree(folder, ignore_errors=True)

    def _socket_folder(self) -> str:
        """Beside the data, unless a socket's address or Postgres's list of folders cannot hold that path."""
        beside = str(self.run)
        if len(os.fsencode(self.run / SOCKET)) <= LONGEST_SOCKET and not set(beside) & set(",\"'\\"):
            return beside
        elsewhere = Path(tempfile.mkdtemp(prefix=f"{NAME}-"))
        self._own(elsewhere)
        return str(elsewhere)

    def _program(self, name: str, *words: str, data: Path | None = None, say: str = "") -> None:
        """Run a program of Postgres's to its end. Folders are not on its command line: pg_ctl quotes badly."""
        done = subprocess.run(  # noqa: S603 - the wheel's own programs
            [self.programs / name, *words],
            input=say,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd=self.run,
            env={"PATH": os.defpath, "LC_ALL": "C", "PGDATA": str(data or self.data)},
            **self._account,
        )
        if done.returncode:
            raise Problem(f"{name} failed: {' '.join(done.stderr.split())}{self._log_tail()}")

    def _log_tail(self) -> str:
        log = self.run / "log"
        lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if log.exists() else []
        return "\n  ".join([f"; the end of {log}:", *lines]) if lines else ""

    # --- root's server runs as another account ---------------------------------------------------------

    def _own(self, folder: Path) -> None:
        """A folder that only the server's account can enter."""
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)
        if self._account:
            os.chown(folder, self._account["user"], self._account["group"])

    def _make_reachable(self) -> None:
        if not self._account:
            return
        if not _open_to_all(self.folder):
            raise Problem(f"Postgres does not run as root, and no other account can enter {self.folder}")
        if not _open_to_all(self.programs):
            self.programs = self._copy(self.programs.parent)

    def _copy(self, release: Path) -> Path:
        """Programs in a place that every account can enter, with the shared libraries they look for beside them."""
        package = release.parent
        copy = self.folder / "programs" / str(package.stat().st_mtime_ns)
        if not copy.exists():
            new = self.folder / "programs.new"
            shutil.rmtree(new, ignore_errors=True)
            for source in (release, package.with_name(f"{package.name}.libs")):
                if source.is_dir():
                    shutil.copytree(source, new / source.relative_to(package.parent), symlinks=True)
            copy.parent.mkdir(exist_ok=True)
            new.rename(copy)
        return copy / package.name / release.name / "bin"


def _is_postgres(pid: str) -> bool:
    """Whether this is a running server; also said of anything where that cannot be known."""
    if not Path("/proc/self/cmdline").exists():
        return True
    try:
        return b"postgres" in Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return False


def _open_to_all(folder: Path) -> bool:
    return all(above.stat().st_mode & 0o001 for above in [folder.resolve(), *folder.resolve().parents])


def _come(keeper: Keeper) -> dict[str, str]:
    try:
        return {"socket": keeper.come()}
    except (Problem, OSError) as problem:
        return {"error": str(problem)}


def main(settings: dict[str, Any]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Only the command's end is ours. (SIG_IGN would be passed on to the server.)
        signal.signal(number, lambda *_: None)
    os.umask(0o022 if settings["account"] else 0o077)
    keeper = Keeper(Path(settings["folder"]), Path(settings["programs"]), settings["account"])
    answer = _come(keeper)
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(answer), flush=True)  # noqa: T201 - the answer
    sys.stdin.read()
    keeper.go()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
