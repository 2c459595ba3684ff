"""The parent's side of the watchdog: start and end one server's processes."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import IO, Any, cast

from servers import unprivileged
from servers.errors import Unavailable

WATCHDOG = Path(__file__).with_name("watchdog.py")
POLL_SECONDS = 0.02
TAIL_LINES = 20
END_SECONDS = 60


@dataclass(frozen=True)
class Command:
    """A program with its arguments and, where it reads any, the file that it reads."""

    arguments: list[str]
    stdin: Path | None = None


class Process:
    """One server at a time in a temporary folder of its own; neither outlives this process."""

    def __init__(self, name: str, stop: Signals, prefix: Sequence[str] = (), *, within: Path | None = None) -> None:
        """`prefix`: what all its commands begin with, such as `nsenter ... --`. `within`: where its folder is made; in
        the usual place by default.
        """
        place = str(within) if within else None
        settings = {"name": name, "stop": int(stop), "parent": os.getpid(), "account": _account(), "within": place}
        self._watchdog = subprocess.Popen(
            [*prefix, sys.executable, "-I", "-S", WATCHDOG, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._requests = cast(IO[str], self._watchdog.stdin)
        self._answers = cast(IO[str], self._watchdog.stdout)
        self.folder = Path(str(self._answer()))
        if not unprivileged.can_reach(self.folder.parent):
            self.close()
            raise Unavailable(f"the account {unprivileged.ACCOUNT} cannot enter {self.folder.parent}: set TMPDIR")

    def run(self, command: Command, seconds: float) -> None:
        """Run a command of the server's to its end, as the server's account."""
        self.start(command)
        deadline = time.monotonic() + seconds
        while (code := self.exit_code()) is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        if code != 0:
            outcome = f"did not end within {seconds:g} s" if code is None else f"ended with status {code}"
            raise Unavailable(f"`{' '.join(command.arguments)}` {outcome}. {self.log_tail()}")

    def start(self, command: Command) -> int:
        """Start a command as the server's account; return its process id."""
        started = self._request(start=command.arguments, stdin=str(command.stdin) if command.stdin else None)
        return cast(int, started)

    def exit_code(self) -> int | None:
        """Of what was started last; None while it runs."""
        code = self._request(poll=None)
        return code if isinstance(code, int) else None

    def kill(self) -> None:
        self._request(kill=None)

    def write(self, name: str, content: str) -> Path:
        """A file in the folder that only the server's account can read."""
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(content)
        if account := unprivileged.account():
            os.chown(path, account.pw_uid, account.pw_gid)
        return path

    def log_tail(self) -> str:
        log = self.folder / "server.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n  ".join(["The end of its log:", *lines[-TAIL_LINES:]])

    def close(self) -> None:
        """Stop the server and remove the folder; returns when both are gone."""
        for pipe in (self._requests, self._answers):
            with suppress(BrokenPipeError):
                pipe.close()  # which is the signal to end
        self._watchdog.wait(END_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)  # a watchdog that was killed could not

    def _request(self, **request: Any) -> object:
        if self._requests.closed:
            raise Unavailable("this server was closed: start another one")
        with suppress(BrokenPipeError):  # no answer comes then, which is the message
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
        return self._answer()

    def _answer(self) -> object:
        line = self._answers.readline()
        if not line:
            raise Unavailable("the server's watchdog was ended, and the server with it: start another one")
        return json.loads(line)


def _account() -> dict[str, Any]:
    account = unprivileged.account()
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
