"""Handlers: they write down each execution, then behave as the job says."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
import uuid
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import sqlalchemy as sa

from claimjobs import Batch, Job
from tests.chaos.audit import EFFECTS, NOW, RUNS
from tests.chaos.engines import engine_to

PLAIN = "plain"
RAISES = "raises"
KILLS = "kills"
HOLDS = "holds"
HANGS = "hangs"
"""Kinds of jobs, in column `d`: poison that raises, kills its process, or lets no thread of it run; and one that hangs
when it first runs."""

AUDIT_URL = "CHAOS_AUDIT_URL"
SECONDS = "CHAOS_WORK_SECONDS"
HANG_SECONDS = "CHAOS_HANG_SECONDS"
GIVE_UP = 120.0


class Poison(Exception):
    """It spoils the batch that it is in."""


def handle(batch: Batch) -> None:
    """Write the execution of every job down, work for a while, and all is done."""
    _write_down(*batch.jobs)
    _work(batch)


def handle_in_transaction(batch: Batch) -> None:
    """The same, and each job has an effect in the transaction that holds it."""
    connection = batch.connection
    postgres = connection.dialect.name == "postgresql"
    session = connection.scalar(sa.select(sa.func.chaos_session() if postgres else sa.func.connection_id()))
    _write_down(*batch.jobs, session=session)
    connection.execute(sa.insert(EFFECTS), [{"job": job.key, "session": session} for job in batch.jobs])
    _work(batch)


def _work(batch: Batch) -> None:
    kinds = {str(job.d) for job in batch.jobs}
    if KILLS in kinds:
        os.kill(os.getpid(), signal.SIGKILL)
    if HOLDS in kinds:
        ctypes.PyDLL(None).sleep(600)  # a call of C that keeps Python's lock
    if RAISES in kinds:
        raise Poison
    for job in batch.jobs:
        if job.d == HANGS and _persistently(partial(_first_time, job=job.key)):
            time.sleep(float(os.environ[HANG_SECONDS]))
    time.sleep(float(os.environ[SECONDS]))
    batch.done()


def handle_job(job: Job) -> None:
    """The same for one job, in a thread."""
    _begin(job)
    time.sleep(float(os.environ[SECONDS]))


async def await_job(job: Job) -> None:
    """The same for one job, in a task."""
    await asyncio.to_thread(_begin, job)
    await asyncio.sleep(float(os.environ[SECONDS]))


def _begin(job: Job) -> None:
    _write_down(job)
    if job.d == KILLS:
        os.kill(os.getpid(), signal.SIGKILL)
    if job.d == RAISES:
        raise Poison


def _write_down(*jobs: Job, session: int | None = None) -> None:
    call = {"call": uuid.uuid4().hex, "pid": os.getpid(), "session": session}
    rows = [{**call, "job": job.key, "owner": job.get("owner_id")} for job in jobs]
    _persistently(lambda connection: connection.execute(_insert(connection), rows))


def _insert(connection: sa.Connection) -> Any:
    """Written twice it is there once: the answer to the first try may be lost."""
    name = connection.dialect.name
    postgres = name == "postgresql"
    columns = "(call, job, owner, pid, session, at)" if postgres else "(`call`, job, owner, pid, session, at)"
    values = f"VALUES (:call, :job, :owner, :pid, :session, {NOW[name]})"
    verb, rest = ("INSERT", "ON CONFLICT DO NOTHING") if postgres else ("INSERT IGNORE", "")
    return sa.text(f"{verb} INTO {RUNS.name} {columns} {values} {rest}")


def _first_time(connection: sa.Connection, job: int) -> bool:
    return connection.scalar(sa.select(sa.func.count()).select_from(RUNS).where(RUNS.c.job == job)) == 1


@cache
def _engine() -> sa.Engine:
    return engine_to(os.environ[AUDIT_URL], isolation_level="AUTOCOMMIT", pool_size=1, max_overflow=30)


def _persistently(work: Callable[[sa.Connection], Any]) -> Any:
    """The audit must not be what fails."""
    deadline = time.monotonic() + GIVE_UP
    while True:
        try:
            with _engine().connect() as connection:
                return work(connection)
        except sa.exc.DBAPIError:
            _engine().dispose()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
