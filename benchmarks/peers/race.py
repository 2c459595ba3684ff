"""Race: one system empties one full queue, in a database of its own, and every job is seen to be done once.

The clock runs from the start line, which all workers cross together, ready and connected, to the moment at which
the database holds no job that is not done. It is asked from when as many handlers have been called as there are
jobs: while the workers work, nobody else speaks to the database.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil
import sqlalchemy as sa

from benchmarks import article
from benchmarks.harness import now
from benchmarks.peers.catalogue import Peer
from benchmarks.peers.driver import DIGITS, NOTES, Order
from benchmarks.peers.environments import Environment
from benchmarks.written import SessionsLeft, written

SECONDS_TO_FILL = 120.0
SECONDS_TO_START = 60.0
SECONDS_TO_WORK = 60.0
SECONDS_TO_END = 15.0
SECONDS_A_LOOK = 0.002
DATABASE = "claimjobs_bench_peers"
TAIL_LINES = 12


class RunFailed(Exception):
    """A run whose figures would mean nothing. Says why."""


@dataclass(frozen=True)
class Outcome:
    """One system's run."""

    contestant: str
    batch: int
    workers: int
    jobs: int
    seconds: float
    """From the start line to the last job done."""
    client_cores: float
    """Cores that the workers kept busy, on average."""
    busy_cores: float
    """Cores that were busy, on average: the workers, the server and everybody else."""
    log_bytes: float | None = None
    """What the server wrote to its log for each job, from before the start of the workers until they were gone."""
    dead_rows: float | None = None
    """How many versions of rows an UPDATE or a DELETE left for each job, meanwhile."""

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return self.jobs / self.seconds


# --- a run ---------------------------------------------------------------------------------------------------


def run(peer: Peer, environment: Environment, order: Order) -> Outcome:
    """Fill a new database, let the workers empty it, and see that they did. Raises RunFailed."""
    url = fresh(order.url)
    order = Order(**{**asdict(order), "url": url})
    with tempfile.TemporaryDirectory(prefix="claimjobs-peers-") as logs:
        _fill(peer, environment, order, Path(logs, "fill"))
        with _connected(url) as watcher:
            _let_the_planner_learn(watcher, url)
            if (left := _left(watcher, peer)) != order.jobs:
                raise RunFailed(f"{left} jobs were in the queue at the start, not {order.jobs}")
            try:
                with written(url) as writes, workers(peer, environment, order, Path(logs)) as crew:
                    outcome = clocked(peer, order, crew, partial(_left, watcher, peer))
            except SessionsLeft as reason:
                raise RunFailed(str(reason)) from None
    return replace(outcome, log_bytes=writes.log_bytes / order.jobs, dead_rows=writes.dead_rows / order.jobs)


def clocked(peer: Peer, order: Order, crew: Sequence[Worker], left: Callable[[], int]) -> Outcome:
    """Let the workers empty the queue; `left` counts what is not done. Raises RunFailed."""
    _await(crew, "ready", SECONDS_TO_START)
    cpu = sum(worker.cpu() for worker in crew)
    began = now()
    for worker in crew:
        worker.say("go")
    _await_handled(crew, order.jobs)
    _await_done(left)
    ended = now()
    cpu = sum(worker.cpu() for worker in crew) - cpu
    for worker in crew:
        worker.say("stop")
    _await(crew, "numbers", SECONDS_TO_END)
    verify(order.jobs, [worker.told["numbers"] for worker in crew])
    seconds = ended.at - began.at
    return Outcome(
        contestant=peer.name,
        batch=order.batch,
        workers=order.workers,
        jobs=order.jobs,
        seconds=seconds,
        client_cores=cpu / seconds,
        busy_cores=(ended.busy - began.busy) / seconds,
    )


def verify(jobs: int, numbers: Sequence[Sequence[int]]) -> None:
    """Every job once. Raises RunFailed."""
    done = Counter(number for some in numbers for number in some)
    twice = sum(times > 1 for times in done.values())
    missing = jobs - len(done.keys() & set(range(jobs)))
    if twice or missing or len(done) != jobs:
        raise RunFailed(f"{twice} jobs were done twice or more, {missing} not")


# --- the database --------------------------------------------------------------------------------------------


def fresh(url: str) -> str:
    """An empty database, in place of the one of the run before; its URL."""
    drop(url)
    with _connected(url) as connection:
        connection.exec_driver_sql(f"create database {DATABASE}")
    return sa.make_url(url).set(database=DATABASE).render_as_string(hide_password=False)


def drop(url: str) -> None:
    """The database of the run before, if there is one."""
    force = " with (force)" if article.is_postgres(url) else ""
    with _connected(url) as connection:
        connection.exec_driver_sql(f"drop database if exists {DATABASE}{force}")


def _connected(url: str) -> sa.Connection:
    return sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT").connect()


def _let_the_planner_learn(connection: sa.Connection, url: str) -> None:
    if article.is_postgres(url):
        connection.exec_driver_sql("analyze")
        return
    names = sa.inspect(connection).get_table_names()
    connection.exec_driver_sql(f"analyze table {', '.join(f'`{name}`' for name in names)}").all()


def _left(connection: sa.Connection, peer: Peer) -> int:
    return int(connection.exec_driver_sql(peer.left).scalar_one())


def _await_done(left: Callable[[], int]) -> None:
    deadline = time.monotonic() + SECONDS_TO_END
    while count := left():
        if time.monotonic() > deadline:
            raise RunFailed(f"all handlers were called, but {count} jobs are not done")
        time.sleep(SECONDS_A_LOOK)


# --- the workers ---------------------------------------------------------------------------------------------


class Worker:
    """A process of the system, and what it told last."""

    def __init__(self, command: Sequence[str], variables: dict[str, str], log: Path) -> None:
        self.told: dict[str, Any] = {}
        self._log = log
        self._rest = b""
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                bufsize=0,
                env=variables,
                start_new_session=True,  # it may have processes of its own
            )

    @property
    def pipe(self) -> IO[bytes]:
        assert self._process.stdout
        return self._process.stdout

    @property
    def handled(self) -> int:
        """How many of its handlers were called."""
        return int(self.told.get("handled", 0))

    def say(self, word: str) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{word}\n".encode())

    def listen(self) -> bool:
        """Hear what it has told by now; False when it is done telling. Raises RunFailed when it is gone before."""
        heard = os.read(self.pipe.fileno(), 1 << 20)
        *lines, self._rest = (self._rest + heard).split(b"\n")
        for line in lines:
            self.told.update(json.loads(line))
        if not heard and "numbers" not in self.told:
            raise RunFailed(f"a worker ended with status {self._process.wait()}: {self.last_words()}")
        return bool(heard)

    def cpu(self) -> float:
        """Seconds, of the process and all that it started and that still run."""
        process = psutil.Process(self._process.pid)
        times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
        return sum(time.user + time.system for time in times)

    def last_words(self) -> str:
        return tail(self._log)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()


def tail(log: Path) -> str:
    """The end of what a process wrote."""
    return " | ".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:]) or "it wrote nothing"


@contextmanager
def workers(peer: Peer, environment: Environment, order: Order, logs: Path) -> Iterator[list[Worker]]:
    """As many as are ordered, started; none is left behind."""
    with ExitStack() as stack:
        crew = []
        for number in range(1 if peer.alone else order.workers):
            command = environment.command(peer, "work", _json(order, number))
            crew.append(
                Worker(
                    command,
                    {**environment.variables(), NOTES: str(logs / f"notes-{number}")},
                    logs / f"worker-{number}",
                )
            )
            stack.callback(crew[-1].end)
        yield crew


def _fill(peer: Peer, environment: Environment, order: Order, log: Path) -> None:
    with log.open("wb") as file:
        try:
            done = subprocess.run(
                environment.command(peer, "fill", _json(order, 0)),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                check=False,
                timeout=SECONDS_TO_FILL,
                env=environment.variables(),
            )
        except subprocess.TimeoutExpired:
            raise RunFailed(f"to fill the queue took more than {SECONDS_TO_FILL:g} s: {tail(log)}") from None
    if done.returncode:
        raise RunFailed(f"the queue could not be filled: {tail(log)}")


def _json(order: Order, number: int) -> str:
    return json.dumps({**asdict(order), "number": number})


def _await(crew: Sequence[Worker], word: str, seconds: float) -> None:
    """Until all of them told this."""
    for _ in _heard(crew, seconds):
        if all(word in worker.told for worker in crew):
            return
    raise RunFailed(f"a worker did not tell its {word!r} within {seconds:g} s: {_last_words(crew)}")


def _await_handled(crew: Sequence[Worker], jobs: int) -> None:
    handled = 0
    for _ in _heard(crew, SECONDS_TO_WORK):
        handled = sum(worker.handled for worker in crew)
        if handled >= jobs:
            return
    raise RunFailed(f"{handled} of {jobs} jobs were handled within {SECONDS_TO_WORK:g} s: {_last_words(crew)}")


def _last_words(crew: Sequence[Worker]) -> str:
    return "; ".join(worker.last_words() for worker in crew)


def _heard(crew: Sequence[Worker], seconds: float) -> Iterator[None]:
    """Each time that somebody told something, until time is up."""
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for worker in crew:
            selector.register(worker.pipe, selectors.EVENT_READ, worker)
        while ready := selector.select(max(0.0, deadline - time.monotonic())):
            for key, _ in ready:
                if not key.data.listen():
                    selector.unregister(key.fileobj)
            yield


# --- the jobs ------------------------------------------------------------------------------------------------


def write_rows(path: Path, count: int) -> None:
    """Two strings a line, of as many characters as the article's; the first ends in the job's number."""
    with path.open("w") as file:
        for number, (d, e) in enumerate(article.payload(count)):
            file.write(f"{d[:-DIGITS]}{number:0{DIGITS}} {e}\n")
