"""`python -m tests.operation --minutes 60`: operate a run on Postgres and MySQL, and count what was lost on the way.

Two supervisors are deployed anew, stopped by a deadline, scraped, paused, resumed and explained, one action after the
other. It prints one line for each database, and ends with 1 if a job was lost or settled twice.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import servers
from tests.chaos.arena import own_server
from tests.chaos.fleet import Overdue
from tests.operation.operator import Operator

BACKENDS: tuple[servers.Backend, ...] = ("postgres", "mysql")


def main() -> int:
    """Operate on each database at the same time."""
    parser = argparse.ArgumentParser(prog="python -m tests.operation", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--backend", action="append", choices=[*BACKENDS, "mariadb"], dest="backends")
    options = parser.parse_args()
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    stop = threading.Event()
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(_operated, backend, options.minutes * 60, stop) for backend in options.backends or BACKENDS]
        try:
            lines = [run.result() for run in runs]
        except BaseException:
            stop.set()
            raise
    return 1 if any(lines) else 0


def _operated(backend: servers.Backend, seconds: float, stop: threading.Event) -> list[str]:
    """Operate on one database; return the promises that were broken."""
    with own_server(backend) as server, tempfile.TemporaryDirectory(prefix="cj-operation-") as folder:
        with Operator(server, Path(folder), random.Random(1)) as operator:
            operator.begin()
            end = time.monotonic() + seconds
            while time.monotonic() < end and not stop.is_set():
                operator.act()
            broken = operator.finish()
        print(operator.line(), flush=True)
        for promise in broken:
            print(f"BROKEN {backend}: {promise}", flush=True)
        return broken


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Overdue as error:
        sys.exit(f"{error}")
