"""Keep a network namespace for a parent; when the parent is gone, however it went, end all that runs in it.

Run as a program by servers.network inside the namespace, with the standard library alone. It says a line when it is
there, and waits for the end of its standard input. With its last process the kernel removes a namespace and its links.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

GRACE_SECONDS = 25
"""From SIGTERM to SIGKILL: a server's watchdog removes its folder meanwhile."""
KILL_SECONDS = 5
POLL_SECONDS = 0.02


def processes_beside(keeper: int) -> list[int]:
    """All processes in the network namespace of this one, but itself."""
    place = _namespace(keeper)
    found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [process for process in found if process != keeper and place is not None and _namespace(process) == place]


def _namespace(process: int) -> str | None:
    """None for one that is gone, or is a zombie."""
    try:
        return os.readlink(f"/proc/{process}/ns/net")
    except OSError:
        return None


def end_all_beside(keeper: int, how: signal.Signals, seconds: float) -> None:
    """Signal them all; return when none is left, or after so many seconds."""
    deadline = time.monotonic() + seconds
    seen: set[int] = set()
    while (left := processes_beside(keeper)) and time.monotonic() < deadline:
        for process in left:
            if process not in seen or how == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, how)
        seen.update(left)
        time.sleep(POLL_SECONDS)


def main() -> None:
    print("ready", flush=True)
    sys.stdin.read()
    end_all_beside(os.getpid(), signal.SIGTERM, GRACE_SECONDS)
    end_all_beside(os.getpid(), signal.SIGKILL, KILL_SECONDS)


if __name__ == "__main__":
    main()
