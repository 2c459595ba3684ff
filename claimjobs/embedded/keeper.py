"""Keep the embedded Postgres running while a command needs it, and stop it after the last one, however that ends.

Run as a program by claimjobs.embedded, one for each command, with the standard library alone. It starts the server
where none runs, answers one line of JSON, {"socket": folder} or {"error": reason}, and waits until its standard input
ends, which a kill -9 of the command does as well. All commands of a data folder share a lock; whoever can have it
alone is the last, and stops the server. The kernel lets go of a dead process's locks, so none can be forgotten.
What fails at the end is a second line, {"left": reason}; if the command is gone, a line of the server's log.

The server is started and stopped without pg_ctl, which passes paths through a shell, and would have to be within the
reach of the server's account until the end.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

NAME = "claimjobs"
"""Of the database, and of the user that owns it."""
PORT = "5432"
"""The socket is named after it; nothing listens on the network."""
SOCKET = f".s.PGSQL.{PORT}"
LONGEST_SOCKET = 100
"""Bytes; a socket's address holds 107 on Linux, 103 on macOS."""
START_SECONDS = 120.0
STOP_SECONDS = 20.0
"""For each of WAYS_TO_STOP. (Postgres 18 was seen to wait for ever when it is told to stop while it recovers.)"""
WAYS_TO_STOP = (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)
"""In order, then as in a crash, from which the next start recovers, then by force."""
POLL_SECONDS = 0.02
TAIL_LINES = 10
NO_PROCESS = str(2**22 + 1)
"""Above the largest process id of Linux."""
SHELL_CHARACTERS = frozenset('"$`\\\n')
"""What a shell does not take as it is between double quotes."""


class Problem(Exception):
    """Why there is no server, or why one is left behind."""


class Keeper:
    """The server of one data folder, and the locks that commands share it by."""

    def __init__(self, folder: Path, programs: Path, account: dict[str, int]) -> None:
        self.folder = folder
        self.programs = programs
        self.data = folder / "data"
        self.run = folder / "run"
        """What belongs to the running server: its socket and its log."""
        self._account: dict[str, Any] = {**account, "extra_groups": []} if account else {}
        self._users: IO[str] | None = None
        self._started: subprocess.Popen[bytes] | None = None

    # --- coming and going ------------------------------------------------------------------------------

    def come(self) -> str:
        """Be counted, and return the folder of the socket of a server that runs. Raises Problem."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o755 if self._account else 0o700)
        with self._alone():
            self._users = (self.folder / "users").open("w")
            fcntl.flock(self._users, fcntl.LOCK_SH)
            return self._ready() or self._start()

    def go(self) -> None:
        """Be counted no more; the last one stops the server. Raises Problem where it cannot be stopped."""
        if self._users is None:
            return
        with self._alone(), self._users, contextlib.suppress(BlockingIOError):
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._stop()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else starts or stops the server meanwhile."""
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # --- what is there ---------------------------------------------------------------------------------

    def _ready(self) -> str | None:
        """The folder of the socket of a server that takes connections. Line 8 of its pid file says that it does."""
        status = self._pid_file()[7:8]
        return self._answering() if [word.strip() for word in status] == ["ready"] else None

    def _answering(self) -> str | None:
        """The folder of the socket at which a server answers. Line 5 of its pid file names it."""
        try:
            folder = self._pid_file()[4]
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(Path(folder, SOCKET)))
        except (OSError, IndexError):
            return None
        return folder

    def _server(self) -> int | None:
        """The process id of the server of these data, if it runs. It has no pid file yet when it was just started."""
        if self._started and self._started.poll() is None:
            return self._started.pid
        return _postgres(self._pid_file())

    def _pid_file(self) -> list[str]:
        """Its lines, or none. A copy of the data has the file of the original's server: line 2 tells."""
        lines = _lines(self.data / "postmaster.pid")
        try:
            return lines if os.path.samefile(lines[1], self.data) else []
        except (OSError, IndexError):
            return []

    # --- the server ------------------------------------------------------------------------------------

    def _start(self) -> str:
        """A server whose keeper was killed may be starting already."""
        if self._server() is None:
            self._make_reachable()
            self._own(self.run)
            if not self.data.exists():
                self._initialise()
            self._forget_the_dead()
            self._started = self._serve(self._socket_folder())
        with contextlib.suppress(TimeoutError):
            _wait(lambda: self._ready() or self._server() is None, START_SECONDS)
        if folder := self._ready():
            return folder
        why = f"is not ready after {START_SECONDS:g} s" if self._server() else "ended while it started"
        raise Problem(f"the server {why}{self._log_tail()}")

    def _serve(self, sockets: str) -> "subprocess.Popen[bytes]":
        settings = {"listen_addresses": "", "unix_socket_directories": sockets, "port": PORT, "max_connections": "200"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.run / "log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - the wheel's own program
                [self.programs / "postgres", "-D", self.data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.run,
                env=self._environment(self.data),
                start_new_session=True,
                **self._account,
            )

    def _forget_the_dead(self) -> None:
        """Let no lock file stop the start: no server of these data runs.

        A restarted container gives the number to another program; one without an init keeps it as a zombie. The
        rest of the file stays: by it Postgres finds out whether memory of the old server is still in use.
        """
        for file in (self.data / "postmaster.pid", self.run / f"{SOCKET}.lock"):
            if file.exists():
                file.write_text("\n".join([NO_PROCESS, *_lines(file)[1:], ""]))

    def _initialise(self) -> None:
        """Under another name until it is complete: what an interruption leaves is no data folder."""
        new = self.folder / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        self._own(new)
        words = ["--username", NAME, "--auth=trust", "--encoding=UTF8", "--locale=C"]
        with self._in_a_plain_path() as programs:
            self._run([programs / "initdb", *words, "--locale-provider=builtin", "--builtin-locale=C.UTF-8"], new)
        self._run([self.programs / "postgres", "--single", "postgres"], new, f"CREATE DATABASE {NAME}\n")
        new.rename(self.data)

    def _stop(self) -> None:
        sockets = self._answering()
        for how in WAYS_TO_STOP:
            with contextlib.suppress(TimeoutError):
                self._signal(how)
                _wait(lambda: self._server() is None, STOP_SECONDS)
                break
        if self._server() is not None or self._answering():
            number = next(iter(self._pid_file()), "unknown")
            raise Problem(f"process {number} is not to be ended from here: end it with `kill -INT {number}`")
        if sockets and Path(sockets) != self.run:
            shutil.rmtree(sockets, ignore_errors=True)

    def _signal(self, how: signal.Signals) -> None:
        if pid := self._server():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)

    def _socket_folder(self) -> str:
        """Beside the data, unless a socket's address or Postgres's list of folders cannot hold that path."""
        beside = str(self.run)
        if len(os.fsencode(self.run / SOCKET)) <= LONGEST_SOCKET and not set(beside) & set(",\"'\\"):
            return beside
        elsewhere = Path(tempfile.mkdtemp(prefix=f"{NAME}-"))
        self._own(elsewhere)
        return str(elsewhere)

    def _run(self, command: Sequence[str | Path], data: Path, say: str = "") -> None:
        """Run a program of Postgres's to its end."""
        done = subprocess.run(  # noqa: S603 - the wheel's own programs
            command,
            input=say,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd=self.run,
            env=self._environment(data),
            **self._account,
        )
        if done.returncode:
            raise Problem(f"{Path(command[0]).name} failed: {' '.join(done.stderr.split())}{self._log_tail()}")

    @staticmethod
    def _environment(data: Path) -> dict[str, str]:
        return {"PATH": os.defpath, "LC_ALL": "C", "PGDATA": str(data)}

    def _log_tail(self) -> str:
        lines = _lines(self.run / "log")[-TAIL_LINES:]
        return "\n  ".join([f"; the end of {self.run / 'log'}:", *lines]) if lines else ""

    # --- programs that their caller can reach ----------------------------------------------------------

    def _own(self, folder: Path) -> None:
        """A folder that only the server's account can enter."""
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)
        if self._account:
            os.chown(folder, self._account["user"], self._account["group"])

    def _make_reachable(self) -> None:
        """Root's server runs as another account, which enters neither root's home nor any other private folder."""
        if not self._account:
            return
        if not _open_to_all(self.folder):
            raise Problem(
                f"Postgres does not run as root, and no other account can enter {self.folder}: "
                "set CLAIMJOBS_DATA to a folder below such as all may enter"
            )
        if not _open_to_all(self.programs):
            self.programs = self._kept_copy()

    def _kept_copy(self) -> Path:
        package = self.programs.parent.parent
        copy = self.folder / "programs" / str(package.stat().st_mtime_ns)
        if not copy.exists():
            new = self.folder / "programs.new"
            shutil.rmtree(new, ignore_errors=True)
            _copy(self.programs, new)
            copy.parent.mkdir(exist_ok=True)
            new.rename(copy)
        return copy / self.programs.relative_to(package.parent)

    @contextlib.contextmanager
    def _in_a_plain_path(self) -> Iterator[Path]:
        """The programs, where initdb can call them: it names them to a shell."""
        if not SHELL_CHARACTERS & set(str(self.programs)):
            yield self.programs
            return
        with tempfile.TemporaryDirectory(prefix=f"{NAME}-") as folder:
            yield _copy(self.programs, Path(folder))


def _copy(programs: Path, into: Path) -> Path:
    """Programs in a place that every account can enter, with the shared libraries they look for beside them."""
    release = programs.parent
    package = release.parent
    for source in (release, package.with_name(f"{package.name}.libs")):
        if source.is_dir():
            shutil.copytree(source, into / source.relative_to(package.parent), symlinks=True)
    for path in [into, *into.rglob("*")]:  # copied with their modes, which a strict umask made private
        if not path.is_symlink():
            path.chmod(0o755)
    return into / programs.relative_to(package.parent)


def _lines(file: Path) -> list[str]:
    """Of a file that may be missing."""
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _postgres(lock_file: list[str]) -> int | None:
    """The process that wrote a lock file, if it is a server still: another program may have the number by now."""
    pid, folder, *_ = [*lock_file, "", ""]
    return int(pid) if pid.isdigit() and f"-D {folder} " in _command_line(pid) else None


def _command_line(pid: str) -> str:
    """What a process was started with; empty where it is gone, or a zombie."""
    if not Path("/proc/self/cmdline").exists():  # macOS
        ps = ["/bin/ps", "-ww", "-o", "command=", "-p", pid]
        return subprocess.run(ps, capture_output=True, text=True, check=False).stdout  # noqa: S603 - a number
    try:
        return os.fsdecode(Path("/proc", pid, "cmdline").read_bytes()).replace("\0", " ")
    except OSError:
        return ""


def _wait(condition: Callable[[], object], seconds: float) -> None:
    """Raises TimeoutError where the condition does not come true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(POLL_SECONDS)


def _open_to_all(folder: Path) -> bool:
    return all(above.stat().st_mode & 0o001 for above in [folder.resolve(), *folder.resolve().parents])


def _come(keeper: Keeper) -> dict[str, str]:
    try:
        return {"socket": keeper.come()}
    except (Problem, OSError) as problem:
        return {"error": str(problem)}


def _go(keeper: Keeper) -> dict[str, str]:
    try:
        keeper.go()
    except (Problem, OSError) as problem:
        return {"left": str(problem)}
    return {}


def _tell(keeper: Keeper, said: dict[str, str]) -> None:
    """To the command; where that is gone, to whoever reads the server's log."""
    try:
        print(json.dumps(said), flush=True)  # noqa: T201 - the answer
    except BrokenPipeError:
        with contextlib.suppress(OSError), (keeper.run / "log").open("a") as log:
            log.write(f"claimjobs: {json.dumps(said)}\n")


def run(settings: dict[str, Any]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Only the command's end is ours. (SIG_IGN would be passed on to the server.)
        signal.signal(number, lambda *_: None)
    os.umask(0o022 if settings["account"] else 0o077)
    keeper = Keeper(Path(settings["folder"]), Path(settings["programs"]), settings["account"])
    _tell(keeper, _come(keeper))
    sys.stdin.read()
    if left := _go(keeper):
        _tell(keeper, left)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
