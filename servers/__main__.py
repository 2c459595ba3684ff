"""`python -m servers`: use a real server for one command, fetch its programs, or see what would be used."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable

from servers import start
from servers.backends import BACKENDS, Backend
from servers.errors import Unavailable
from servers.sources import choose

UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h
INTERRUPTED = 130
SIGNALLED = 128  # plus the signal's number, as a shell says it


def main() -> int:
    options = _parser().parse_args()
    try:
        action: Callable[[argparse.Namespace], int] = options.action
        return action(options)
    except Unavailable as error:
        print(f"servers: {error}", file=sys.stderr)
        return UNAVAILABLE
    except KeyboardInterrupt:
        return INTERRUPTED


def run(options: argparse.Namespace) -> int:
    """Run a command with CLAIMJOBS_URL set to a server that lives as long as the command."""
    if not shutil.which(options.command[0]):
        raise Unavailable(f"there is no command {options.command[0]}: check its name, or give its path")
    with start(options.backend) as server:
        print(f"{server.backend} {server.version} ({server.how})", file=sys.stderr, flush=True)
        return _run(options.command, {**os.environ, "CLAIMJOBS_URL": server.url})


def _run(command: list[str], environment: dict[str, str]) -> int:
    # The terminal gives Ctrl-C to the command as well: it decides how to end, we wait for it. A handler,
    # because the command would inherit SIG_IGN.
    signal.signal(signal.SIGINT, lambda *_: None)
    process = subprocess.Popen(command, env=environment)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: process.send_signal(received))
    status = process.wait()
    return SIGNALLED - status if status < 0 else status


def fetch(options: argparse.Namespace) -> int:
    """Bring a server's programs to this machine and start nothing."""
    print(f"{options.backend}: {choose(options.backend).fetch()}")
    return 0


def show(_: argparse.Namespace) -> int:
    """Say for every backend what `run` would use."""
    lines = [(backend, _describe(backend)) for backend in BACKENDS]
    for backend, line in lines:
        print(f"{backend}: {line}")
    return 0


def _describe(backend: Backend) -> str:
    try:
        return choose(backend).describe()
    except Unavailable as error:
        return f"unavailable: {error}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m servers", description=__doc__)
    actions = parser.add_subparsers(required=True)
    running = actions.add_parser("run", help=run.__doc__, description=run.__doc__)
    running.add_argument("backend", choices=BACKENDS)
    running.add_argument("command", nargs="+", metavar="-- COMMAND", help="the command and its arguments")
    running.set_defaults(action=run)
    fetching = actions.add_parser("fetch", help=fetch.__doc__, description=fetch.__doc__)
    fetching.add_argument("backend", choices=BACKENDS)
    fetching.set_defaults(action=fetch)
    actions.add_parser("list", help=show.__doc__, description=show.__doc__).set_defaults(action=show)
    return parser


if __name__ == "__main__":
    sys.exit(main())
