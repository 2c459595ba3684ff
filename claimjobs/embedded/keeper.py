"""Keep the embedded Postgres running while a command needs it, and stop it after the last command.

claimjobs.embedded runs this file as a program, once for each command, with only the standard library. It starts the
server if none runs, and prints one line of JSON: {"socket": folder} or {"error": reason}. Then it waits until its
standard input ends, which also happens after a kill -9 of the command. All commands of a data folder share a lock. A
keeper that can get the lock exclusively is the last one, and stops the server. The kernel releases the locks of a dead
process. A failure at the end is a second line, {"left": reason}.

The server is started and stopped without pg_ctl, which passes paths through a shell, and which the server's account
would have to be able to run until the end.
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
"""The name of the database, and of the user that owns it."""
PORT = "5432"
"""A part of the socket's name: the server does not listen on the network."""
SOCKET = f".s.PGSQL.{PORT}"
LONGEST_SOCKET = 100
"""Bytes. The address of a socket has at most 107 on Linux, and 103 on macOS."""
START_SECONDS = 120.0
STOP_SECONDS = 20.0
"""How long each of WAYS_TO_STOP is waited for. (Postgres 18 may never stop if it gets SIGINT during recovery.)"""
WAYS_TO_STOP = (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)
"""A normal stop; then one as in a crash, after which the next start recovers; then a kill."""
POLL_SECONDS = 0.02
TAIL_LINES = 10
NO_PROCESS = str(2**22 + 1)
"""Above the largest process id of Linux."""


class Problem(Exception):
    """Why there is no server, or why one is left behind."""


class Keeper:
    """The server of one data folder, and the locks that commands share it by."""

    def __init__(
        self,
        folder: Path,
        programs: Path,
        account: dict[str, int],
        *,
        copies: Path | None = None,
        is_temporary: bool = False,
    ) -> None:
        """`copies`: the folder for copies of the programs. `is_temporary`: the server waits for no disk, and its folder
        is removed after it.
        """
        self.folder = folder
        self.programs = programs
        self._copies, self._is_temporary = copies or folder, is_temporary
        self.data = folder / "data"
        self.run = folder / "run"
        """The folder of the running server's socket and log."""
        self._account: dict[str, Any] = {**account, "extra_groups": []} if account else {}
        self._users: IO[str] | None = None
        self._started: subprocess.Popen[bytes] | None = None

    # --- joining and leaving -----------------------------------------------------------------------------

    def join(self) -> str:
        """Share the lock of all users, start the server if none runs, and return the folder of its socket.

        Raises Problem.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o755 if self._account else 0o700)
        with _locked(self.folder / "lock"):
            self._users = (self.folder / "users").open("w")
            fcntl.flock(self._users, fcntl.LOCK_SH)
            return self._ready() or self._start()

    def leave(self) -> None:
        """Release the shared lock; the last user stops the server. Raises Problem if it cannot be stopped."""
        if self._users is None:
            return
        with _locked(self.folder / "lock"), self._users, contextlib.suppress(BlockingIOError):
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            elsewhere = self._folder_elsewhere()
            for how in WAYS_TO_STOP:
                with contextlib.suppress(TimeoutError, ProcessLookupError):
                    if pid := self._server():
                        os.kill(pid, how)
                    _wait(lambda: self._server() is None, STOP_SECONDS)
                    break
            if self._server() is not None or self._answering():
                number = next(iter(self._pid_file()), "unknown")
                raise Problem(f"process {number} could not be ended: end it with `kill -INT {number}`")
            if elsewhere is not None:
                shutil.rmtree(elsewhere, ignore_errors=True)
            if self._is_temporary:
                shutil.rmtree(self.folder)

    # --- the present state -------------------------------------------------------------------------------

    def _ready(self) -> str | None:
        """The folder of the socket of a server that accepts connections. Line 8 of its pid file says so."""
        return self._answering() if [word.strip() for word in self._pid_file()[7:8]] == ["ready"] else None

    def _answering(self) -> str | None:
        """The folder of the socket on which a server answers. Line 5 of its pid file is that folder."""
        with contextlib.suppress(OSError, IndexError), socket.socket(socket.AF_UNIX) as client:
            folder = self._pid_file()[4]
            client.connect(str(Path(folder, SOCKET)))
            return folder
        return None

    def _server(self) -> int | None:
        """The process id of the server of these data, if it runs. Just after its start it has no pid file yet."""
        if self._started and self._started.poll() is None:
            return self._started.pid
        pid, folder, *_ = [*self._pid_file(), "", ""]
        # Another program may have its id by now.
        return int(pid) if pid.isdigit() and f"-D {folder} " in _command_line(pid) else None

    def _pid_file(self) -> list[str]:
        """The lines of the pid file; none if line 2 names another folder: the data are a copy."""
        lines = _lines(self.data / "postmaster.pid")
        try:
            return lines if os.path.samefile(lines[1], self.data) else []
        except (OSError, IndexError):
            return []

    # --- the server ------------------------------------------------------------------------------------

    def _start(self) -> str:
        """Start the server, unless one is starting whose keeper was killed, and wait until it is ready."""
        if self._server() is None:
            self._make_reachable()
            self._own(self.run)
            if not self.data.exists():
                self._initialise()
            # No server of these data runs, though another program may have the process id of a lock file: in a
            # restarted container, for example. From the rest of the file Postgres learns whether memory is in use.
            sockets = self._socket_folder()
            for file in (self.data / "postmaster.pid", sockets / f"{SOCKET}.lock"):
                if file.exists():
                    file.write_text("\n".join([NO_PROCESS, *_lines(file)[1:], ""]))
            settings = {"listen_addresses": "", "unix_socket_directories": sockets}
            settings |= {"port": PORT, "max_connections": "200"}
            if self._is_temporary:
                settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
            options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
            with (self.run / "log").open("ab") as log:
                self._started = subprocess.Popen(  # noqa: S603 - the wheel's own program
                    [self.programs / "postgres", "-D", self.data, *options],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.run,
                    env=_environment(self.data),
                    start_new_session=True,
                    **self._account,
                )
        with contextlib.suppress(TimeoutError):
            _wait(lambda: self._ready() or self._server() is None, START_SECONDS)
        if folder := self._ready():
            return folder
        why = f"is not ready after {START_SECONDS:g} s" if self._server() else "ended while it started"
        raise Problem(f"the server {why}{self._log_tail()}")

    def _socket_folder(self) -> Path:
        """The folder of the socket. After a crash it is the one from before: commands that run know no other."""
        # The path beside the data may be too long for a socket, or Postgres cannot take it in a list.
        if len(os.fsencode(self.run / SOCKET)) <= LONGEST_SOCKET and not set(str(self.run)) & set(",\"'\\"):
            return self.run
        if before := self._folder_elsewhere():
            return before
        sockets = Path(tempfile.mkdtemp(prefix=f"{NAME}-"))
        self._own(sockets)
        return sockets

    def _folder_elsewhere(self) -> Path | None:
        """The folder of the socket, from line 5 of the pid file, if it is not beside the data. It may be gone since a
        crash, and somebody else may have made one of that name.
        """
        for folder in map(Path, self._pid_file()[4:5]):
            with contextlib.suppress(OSError):
                if folder != self.run and folder.lstat().st_uid == self._account.get("user", os.geteuid()):
                    return folder
        return None

    def _initialise(self) -> None:
        """Make the data folder, under another name until it is complete, because it may be interrupted."""
        new = self.folder / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        self._own(new)
        words = ["--username", NAME, "--auth=trust", "--encoding=UTF8", "--locale=C"]
        self._run([self.programs / "initdb", *words, "--locale-provider=builtin", "--builtin-locale=C.UTF-8"], new)
        self._run([self.programs / "postgres", "--single", "postgres"], new, f"CREATE DATABASE {NAME}\n")
        new.rename(self.data)

    def _run(self, command: Sequence[str | Path], data: Path, say: str = "") -> None:
        done = subprocess.run(  # noqa: S603 - the wheel's own programs
            command,
            input=say,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd=self.run,
            env=_environment(data),
            **self._account,
        )
        if done.returncode:
            raise Problem(f"{Path(command[0]).name} failed: {' '.join(done.stderr.split())}{self._log_tail()}")

    def _log_tail(self) -> str:
        lines = _lines(self.run / "log")[-TAIL_LINES:]
        return "\n  ".join([f"; the end of {self.run / 'log'}:", *lines]) if lines else ""

    # --- programs that the server's account can run --------------------------------------------------------

    def _own(self, folder: Path) -> None:
        """Make a folder that only the server's account can enter."""
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)
        if self._account:
            os.chown(folder, self._account["user"], self._account["group"])

    def _make_reachable(self) -> None:
        """Copy the programs if the account of root's server cannot enter their folder. Raises Problem."""
        if not self._account:
            return
        if not _open_to_all(self.folder):
            raise Problem(
                f"Postgres does not run as root, and no other account can enter {self.folder}: "
                "set CLAIMJOBS_DATA to a folder that every account can enter"
            )
        if _open_to_all(self.programs):
            return
        release, package = self.programs.parent, self.programs.parent.parent
        copy = self._copies / "programs" / str(package.stat().st_mtime_ns)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self._copies / "programs.lock"):
            if not copy.exists():
                new = self._copies / "programs.new"
                shutil.rmtree(new, ignore_errors=True)
                for source in (release, package.with_name(f"{package.name}.libs")):
                    if source.is_dir():
                        shutil.copytree(source, new / source.relative_to(package.parent), symlinks=True)
                for path in [new, *new.rglob("*")]:  # a strict umask made the modes of the originals private
                    if not path.is_symlink():
                        path.chmod(0o755)
                new.rename(copy)
        self.programs = copy / self.programs.relative_to(package.parent)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _environment(data: Path) -> dict[str, str]:
    return {"PATH": os.defpath, "LC_ALL": "C", "PGDATA": str(data)}


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _command_line(pid: str) -> str:
    """The command line of a process; empty if it has ended, or is a zombie."""
    if not Path("/proc/self/cmdline").exists():  # macOS
        ps = ["/bin/ps", "-ww", "-o", "command=", "-p", pid]
        return subprocess.run(ps, capture_output=True, text=True, check=False).stdout  # noqa: S603 - a number
    return " ".join(_lines(Path("/proc", pid, "cmdline"))).replace("\0", " ")


def _wait(condition: Callable[[], object], seconds: float) -> None:
    """Wait until the condition is true. Raises TimeoutError after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(POLL_SECONDS)


def _open_to_all(folder: Path) -> bool:
    return all(above.stat().st_mode & 0o001 for above in [folder.resolve(), *folder.resolve().parents])


def run(settings: dict[str, Any]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The keeper ends only after its command. (The server would inherit SIG_IGN.)
        signal.signal(number, lambda *_: None)
    os.umask(0o022 if settings["account"] else 0o077)
    folder, programs, copies = (Path(settings[name]) for name in ("folder", "programs", "copies"))
    keeper = Keeper(folder, programs, settings["account"], copies=copies, is_temporary=settings["is_temporary"])
    with contextlib.suppress(BrokenPipeError):  # the command has ended
        try:
            print(json.dumps({"socket": keeper.join()}), flush=True)  # noqa: T201 - the answer
        except (Problem, OSError) as problem:
            print(json.dumps({"error": str(problem)}), flush=True)  # noqa: T201 - the answer
    sys.stdin.readline()  # the command says that it ends, or has ended
    try:
        keeper.leave()
    except (Problem, OSError) as problem:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"left": str(problem)}), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
