"""Client: how long a command takes to begin, and how much memory a consumer needs. `--help`"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks import article, tables
from benchmarks.goals import Found, Goal
from benchmarks.report import Sample
from benchmarks.scenario import Plot

if TYPE_CHECKING:
    from servers import Server

TITLE = "The client itself"
VARIES = "at most"
UNIT = "s, MB"
PLOT: Plot = None
SIZES = {"jobs": 5_000, "repeat": 10}
SMALL = {"jobs": 1_000, "repeat": 2}
FULL = {"repeat": 30}

SECONDS, MEGABYTES = 0.3, 80
COMMAND = str(Path(sys.executable).with_name("claimjobs"))
STARTS = {
    "python alone, s": [sys.executable, "-c", "pass"],
    "import sqlalchemy, s": [sys.executable, "-c", "import sqlalchemy"],
    "import claimjobs, s": [sys.executable, "-c", "import claimjobs"],
    "from claimjobs import Queue, s": [sys.executable, "-c", "from claimjobs import Queue"],
    "claimjobs --help, s": [COMMAND, "--help"],
}
IN_PYTHON = "a consumer in Python, MB"
IN_COMMAND = "a consumer of start-processing, MB"
HELD_TO = ("import claimjobs, s", "claimjobs --help, s", IN_PYTHON, IN_COMMAND)
CONSUMER = """
import os
from claimjobs import Queue
with Queue(os.environ["CLAIMJOBS_URL"]) as queue:
    for batch in queue.batches(drain=True):
        with batch:
            batch.done()
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
# Not ru_maxrss, which begins with what its parent had when it was forked.
PROCESSING = [COMMAND, "start-processing", "--generators", "0", "--consumers", "2", "--duration", "3"]


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """All commands, again and again; then each kind of consumer."""
    for _ in range(sizes.repeat):
        for name, command in STARTS.items():
            yield Sample(name, SECONDS, _seconds(command))
    yield Sample(IN_PYTHON, MEGABYTES, _own_peak(_filled(server.url, sizes.jobs)))
    yield Sample(IN_COMMAND, MEGABYTES, _peak_of_child(_filled(server.url, sizes.jobs)))


def _seconds(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _filled(url: str, jobs: int) -> dict[str, str]:
    """A full table, and an environment that leads to it."""
    tables.clear(url)
    tables.setup_claimjobs(url)
    tables.fill(url, list(article.payload(jobs)))
    return {**os.environ, "CLAIMJOBS_URL": url}


def _own_peak(environment: dict[str, str]) -> float:
    """Megabytes, at most, of a consumer that empties the table."""
    done = subprocess.run(
        [sys.executable, "-c", CONSUMER], check=True, env=environment, text=True, stdout=subprocess.PIPE
    )
    return int(done.stdout) / 1024


def _peak_of_child(environment: dict[str, str]) -> float:
    """Megabytes, at most, of the largest process that a run started."""
    run = subprocess.Popen(PROCESSING, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    while run.poll() is None:
        peak = max([peak, *(_resident(child) for child in psutil.Process(run.pid).children())])
        time.sleep(0.1)
    if run.returncode:
        raise subprocess.CalledProcessError(run.returncode, PROCESSING)
    return peak / 2**20


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def goals(found: Found, _backend: str) -> Iterator[Goal]:
    """Point 8."""
    for name in HELD_TO:
        [bound] = found.places(name)
        yield Goal(8, name, found.value(name, bound), bound, False)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("client")
