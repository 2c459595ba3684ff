"""Eight processes on one queue: every job is done, and none twice."""

from __future__ import annotations

import multiprocessing

import pytest
import sqlalchemy as sa

from tests.backends import FLAVOURS, Backend
from tests.conformance.jobs import jobs
from tests.conformance.racer import AUDIT, race

PROCESSES = 8
JOBS = 20_000
SIZE = 50
SPAWN = multiprocessing.get_context("spawn")


@pytest.mark.timeout(120)
def test_every_job_is_done_exactly_once(backend: Backend) -> None:
    queue = backend.queue()
    AUDIT.create(backend.engine)
    queue.enqueue(jobs(JOBS))
    start = SPAWN.Barrier(PROCESSES, timeout=60)
    given = (backend.url, FLAVOURS[backend.name].dialect, SIZE, start)
    racers = [SPAWN.Process(target=race, args=given, daemon=True) for _ in range(PROCESSES)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * PROCESSES
    with backend.engine.connect() as connection:
        handled, distinct, owners = connection.execute(
            sa.select(
                sa.func.count(), sa.func.count(AUDIT.c.job.distinct()), sa.func.count(AUDIT.c.owner_id.distinct())
            )
        ).one()
    assert (handled, distinct) == (JOBS, JOBS)
    assert owners == PROCESSES
    assert queue.stats().left == 0
