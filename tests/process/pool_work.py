"""Handlers that are called for many jobs at once, plain and async. `d` says what a job does when it first runs."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from claimjobs import Batch, Job
from tests.process.work import _note

HANGS, KILLS, WAITS = "hangs", "kills", "waits"


def handle(job: Job) -> None:
    """In a thread."""
    _note("begun", job)
    if job.d == KILLS:
        os.kill(os.getpid(), signal.SIGKILL)
    if job.d == HANGS and not job.attempts:
        time.sleep(600)
    while job.d == WAITS and not os.path.exists(os.environ["GATE"]):
        time.sleep(0.01)
    _note("done", job)


async def ahandle(job: Job) -> None:
    """In a task."""
    await asyncio.to_thread(_note, "begun", job)
    if job.d == KILLS:
        os.kill(os.getpid(), signal.SIGKILL)
    if job.d == HANGS and not job.attempts:
        await asyncio.sleep(600)
    while job.d == WAITS and not os.path.exists(os.environ["GATE"]):
        await asyncio.sleep(0.01)
    await asyncio.to_thread(_note, "done", job)


def take_batch(batch: Batch) -> None:
    """Not for many at once."""
    batch.done()
