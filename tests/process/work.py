"""Handlers for the process tests. Each says in the table `audit` what it did, so that a test can see it."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import sqlalchemy as sa

from claimjobs import Batch, Job, Queue, signals
from claimjobs.workers import supervisor_pipe

AUDIT = sa.Table(
    "audit",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("job", sa.Integer, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("what", sa.String(20), nullable=False),
)


EFFECTS = sa.Table(
    "effects",
    sa.MetaData(),
    sa.Column("job", sa.Integer, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    mysql_engine="InnoDB",
)
"""What is written in the transaction that holds the job: no key, so that nothing keeps it from being there twice."""


@cache
def _engine() -> sa.Engine:
    return sa.create_engine(os.environ["CLAIMJOBS_URL"], isolation_level="AUTOCOMMIT")


def _note(what: str, *jobs: Job) -> None:
    rows = [{"job": job.key, "pid": os.getpid(), "what": what} for job in jobs]
    with _engine().connect() as connection:
        connection.execute(sa.insert(AUDIT).values(rows))  # all of them are seen at once


def note_batch(batch: Batch) -> None:
    """Do the whole batch at once."""
    _note("done", *batch.jobs)
    batch.done()


def note_job(job: Job) -> None:
    """Do one job; those of `d = 'bad'` fail."""
    if job.d == "bad":
        raise ValueError("bad payload")
    _note("done", job)


def postpone_bad(batch: Batch) -> None:
    """Do the jobs of a batch; those of `d = 'bad'` fail, and are not due again before the run ends."""
    for job in batch:
        if job.d == "bad":
            batch.fail(job, "bad payload", retry_in=3600.0)


def tell(job: Job) -> None:
    """Log as this module does, and as a library that it uses."""
    logging.getLogger(__name__).info("sends %s", job.key)
    logging.getLogger("a.client.of.services").info("HTTP 200 for %s", job.key)
    logging.getLogger("a.client.of.services").warning("slow")


def note_failed(job: Job, error: BaseException | str) -> None:
    """A hook, which fails itself for a job of `d = 'worse'`."""
    _note("failed", job)
    if job.d == "worse":
        raise RuntimeError(f"the hook fails, too: {error}")


def fail_or_die(job: Job) -> None:
    """Kill the process by the job of `d = 'deadly'`; fail by any other."""
    if job.d == "deadly":
        os.kill(os.getpid(), 9)
    raise ValueError("bad payload")


@contextlib.contextmanager
def entering() -> Iterator[None]:
    """A setup that says when it is entered and left, once a process."""
    with _engine().connect() as connection:
        note = sa.insert(AUDIT)
        connection.execute(note, {"job": 0, "pid": os.getpid(), "what": "entered"})
        yield
        connection.execute(note, {"job": 0, "pid": os.getpid(), "what": "left"})


@contextlib.contextmanager
def no_entry() -> Iterator[None]:
    """A setup that fails."""
    raise ConnectionError("no model here")
    yield


@contextlib.contextmanager
def no_exit() -> Iterator[None]:
    """A setup that fails when it is left."""
    yield
    raise ConnectionError("cannot be closed")


def no_manager() -> None:
    """Return nothing that can be entered."""


def wait_for_file(batch: Batch) -> None:
    """Begin, and end when the file named by GATE is there."""
    _note("begun", *batch.jobs)
    _wait_for_gate()
    _note("done", *batch.jobs)
    batch.done()


def _wait_for_gate() -> None:
    while not os.path.exists(os.environ["GATE"]):
        time.sleep(0.01)


def die_once(batch: Batch) -> None:
    """The first process to get here dies by kill -9 with its batch in hand."""
    _note("begun", *batch.jobs)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(os.environ["GATE"], os.O_CREAT | os.O_EXCL))
        os.kill(os.getpid(), 9)
    note_batch(batch)


def hold_on(batch: Batch) -> None:
    """Begin, and never let go, whatever is raised."""
    _note("begun", *batch.jobs)
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(60)


def close_late(batch: Batch) -> None:
    """Do the batch. The process closes its queue only when it is cancelled, and says before that it is about to."""
    cancel, close, cancelled = signals.cancel, Queue.close, threading.Event()

    def told() -> None:
        cancel()
        cancelled.set()

    def closed(queue: Queue) -> None:
        _note("closing", *batch.jobs[:1])
        cancelled.wait(60)
        close(queue)

    supervisor_pipe.cancel, Queue.close = told, closed  # type: ignore[assignment, attr-defined, method-assign]
    note_batch(batch)


def hold_the_interpreter(batch: Batch) -> None:
    """Begin, and let no other Python code of this process run: a call of C that keeps the interpreter's lock."""
    _note("begun", *batch.jobs)
    ctypes.PyDLL(None).sleep(600)


def hold_the_interpreter_for_bad(batch: Batch) -> None:
    """As `hold_the_interpreter` if a job is `d = 'bad'`; otherwise do all."""
    if any(job.d == "bad" for job in batch.jobs):
        hold_the_interpreter(batch)
    note_batch(batch)


def fork_workers(job: Job) -> None:
    """Work with forked processes, which a SIGTERM must end."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
    _note("done", job)


def fork_one_that_exits(job: Job) -> None:
    """Do one job, with a forked process that ends itself."""
    if os.fork() == 0:
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
    _note("done", job)


def fork_one_that_exits_for_a_batch(batch: Batch) -> None:
    """As `fork_one_that_exits`."""
    for job in batch:
        fork_one_that_exits(job)
        batch.done(job)


def hold_on_as_an_orphan(batch: Batch) -> None:
    """Hold on, in a process that is given little time once its supervisor is gone."""
    supervisor_pipe.GRACE_SECONDS = supervisor_pipe.LAST_GRACE_SECONDS = 0.2  # type: ignore[misc]
    hold_on(batch)


def break_down(batch: Batch) -> None:
    """Raise at the first batch; do the second."""
    _note("begun", *batch.jobs)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(os.environ["GATE"], os.O_CREAT | os.O_EXCL))
        raise RuntimeError("broken down")
    note_batch(batch)


def forget(batch: Batch) -> None:
    """Say nothing about any job."""
    _note("begun", *batch.jobs)


def write_effect(job: Job, connection: sa.Connection) -> None:
    """Write into the transaction that holds the job; take a moment, to be killed in."""
    _note("begun", job)
    connection.execute(sa.insert(EFFECTS), {"job": job.key, "pid": os.getpid()})
    time.sleep(0.002)


def write_effects_and_wait(batch: Batch) -> None:
    """Write the effects of a whole batch, then wait until the file named by GATE is there."""
    batch.connection.execute(sa.insert(EFFECTS), [{"job": job.key, "pid": os.getpid()} for job in batch.jobs])
    if not os.path.exists(os.environ["GATE"]):
        _note("begun", *batch.jobs)
        _wait_for_gate()
    batch.done()


def fail_always(job: Job) -> None:
    """No job is ever done."""
    _note("begun", job)
    raise ValueError("bad payload")


def fail_in_sql(job: Job) -> None:
    """The database says no."""
    with _engine().connect() as connection:
        connection.execute(sa.text("SELECT nothing"))


def commit_it(batch: Batch) -> None:
    """End the batch's transaction, which is not the handler's to end."""
    for _job in batch:
        batch.connection.commit()


def rollback_it(job: Job, connection: sa.Connection) -> None:
    """Roll back the batch's transaction, which is not the handler's to end."""
    del job
    connection.rollback()


def close_it(batch: Batch) -> None:
    """Close the batch's connection, which is not the handler's to close."""
    batch.connection.close()
    batch.done()


def fail_as_a_whole(batch: Batch) -> None:
    """Raise, and name no job."""
    _note("begun", *batch.jobs)
    raise RuntimeError("broken down")


async def send_later(job: Job) -> None:
    """A call runs nothing of it."""
    _note("begun", job)


def stream(job: Job) -> Iterator[None]:
    """Nor of this."""
    _note("begun", job)
    yield


def two(job: Job, other: object) -> None:
    """Nobody gives the second."""


def only_named(*, job: Job) -> None:
    """Nobody names the first."""


def give_a_coroutine(job: Job) -> object:
    """A coroutine that nobody runs, for the jobs of `d = 'bad'`."""
    return send_later(job) if job.d == "bad" else None


def give_a_generator(batch: Batch) -> object:
    """Nothing is done but what the first job's outcome says."""
    batch.done(batch[0])
    return (None for job in batch)


def exit_for_bad(job: Job) -> None:
    """`sys.exit()` for jobs of `d = 'bad'`."""
    if job.d == "bad":
        sys.exit(0)
    _note("done", job)


def exit_with_the_batch(batch: Batch) -> None:
    """`sys.exit()` where one of the batch is bad."""
    if any(job.d == "bad" for job in batch.jobs):
        sys.exit("cannot go on")
    note_batch(batch)


def exit_at_once(batch: Batch) -> None:
    """End the process, and leave no time for anything; with the exit code that the file named by GATE tells."""
    _note("begun", *batch.jobs)
    os._exit(int(Path(os.environ["GATE"]).read_text()))


def exit_where_one_is_bad(batch: Batch) -> None:
    """End the process if one job of the batch is bad."""
    if any(job.d == "bad" for job in batch.jobs):
        os._exit(3)
    note_batch(batch)


def exit_for_a_bad_job(job: Job) -> None:
    """End the process if the job is bad."""
    if job.d == "bad":
        os._exit(3)


def leave_a_thread(batch: Batch) -> None:
    """Start a thread that does not end."""
    threading.Thread(target=threading.Event().wait, name="endless").start()
    note_batch(batch)


def fail_twice(job: Job) -> None:
    """The first two attempts fail."""
    _note("begun", job)
    if job.attempts < 2:
        raise ValueError("not yet")


def end_never(job: Job) -> None:
    """Begin, and go on until something is raised."""
    _note("begun", job)
    threading.Event().wait()


def whatever(thing: object) -> None:
    """A parameter that tells nothing."""


NUMBER = 42
