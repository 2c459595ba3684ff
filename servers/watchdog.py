"""Own one server and its folder for a parent, and end both when the parent is gone, however it went.

Run as a program by servers.process, with the standard library alone. The parent writes a request a line,
{"start": [...]} or {"kill": null} or {"poll": null}, and reads an answer a line. Its end is seen twice: the
pipe closes, and its process descriptor becomes readable (a forked child may hold the pipe open). If this
program itself is killed, the kernel passes that on to the server.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
IPC_RMID = 0
STOP_SECONDS = 20
REMOVE_SECONDS = 10

libc = ctypes.CDLL(None, use_errno=True)


class Watchdog:
    def __init__(self, folder: Path, stop: signal.Signals, account: dict[str, Any]) -> None:
        self.folder = folder
        self.stop = stop
        self.account = account
        self.server: subprocess.Popen[bytes] | None = None

    def answer(self, request: dict[str, Any]) -> int | None:
        """The server's process id after `start`; its exit code, None while it runs, after the others."""
        if "start" in request:
            return self._start(request["start"], request.get("stdin") or os.devnull)
        if "kill" in request:
            self.end(signal.SIGKILL)
        return self.server.poll() if self.server else None

    def _start(self, command: list[str], stdin: str) -> int:
        with open(stdin, "rb") as source, (self.folder / "server.log").open("ab") as log:
            self.server = subprocess.Popen(
                command,
                stdin=source,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"HOME": str(self.folder), "PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
                start_new_session=True,  # the terminal's Ctrl-C is not for the server
                preexec_fn=self._die_with_us,  # noqa: PLW1509 - this program has one thread
                **self.account,
            )
        return self.server.pid

    def _die_with_us(self) -> None:
        """Runs after the change of account, which would clear it."""
        libc.prctl(PR_SET_PDEATHSIG, int(self.stop))

    def end(self, how: signal.Signals) -> None:
        """Stop the server and everything it started."""
        if self.server and self.server.poll() is None:
            self.server.send_signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.wait(STOP_SECONDS)
            self.server.kill()
            self.server.wait()
        _reap_orphans()


def _reap_orphans() -> None:
    """A killed server's own children are ours now: a crash leaves none of them."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in _children():
                os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)


def _children() -> list[int]:
    task = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in task.read_text().split()] if task.exists() else []


def _remove_shared_memory(folder: Path) -> None:
    """A Postgres that was killed leaves a small System V segment; line 7 of its pid file names it."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        segment = (folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()[1]
        libc.shmctl(int(segment), IPC_RMID, None)


def _remove(folder: Path) -> None:
    _remove_shared_memory(folder)
    deadline = time.monotonic() + REMOVE_SECONDS
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)


def _make_folder(name: str, account: dict[str, Any], within: str | None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"claimjobs-{name}-", dir=within))
    if account:
        os.chown(folder, account["user"], account["group"])
    return folder


def _serve(watchdog: Watchdog, parent: int) -> None:
    """Answer requests until the parent is gone or has closed the pipe."""
    poll = select.poll()
    poll.register(sys.stdin, select.POLLIN)
    poll.register(parent, select.POLLIN)
    while not any(descriptor == parent for descriptor, _ in poll.poll()):
        line = sys.stdin.readline()
        if not line:
            return
        _say(watchdog.answer(json.loads(line)))


def _say(answer: object) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(answer), flush=True)


def _leave(*_: object) -> None:
    raise SystemExit


def main(settings: dict[str, Any]) -> None:
    signal.signal(signal.SIGTERM, _leave)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    parent = os.pidfd_open(settings["parent"])
    if os.getppid() != settings["parent"]:
        return
    folder = _make_folder(settings["name"], settings["account"], settings["within"])
    watchdog = Watchdog(folder, signal.Signals(settings["stop"]), settings["account"])
    try:
        _say(str(folder))
        _serve(watchdog, parent)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        watchdog.end(watchdog.stop)
        _remove(folder)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
