"""Eight processes on one queue: every job is done, and none twice."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from benchmarks.crew import SPAWN, Worker, gather
from claimjobs.options import CLAIMS, ClaimsKind
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.racer import AUDIT, race

PROCESSES = 8
JOBS = 20_000
SIZE = 50


@pytest.mark.timeout(120)
@pytest.mark.parametrize("claims", CLAIMS)
def test_every_job_is_done_exactly_once(backend: Backend, claims: ClaimsKind) -> None:
    queue = backend.queue(claims=claims)
    AUDIT.create(backend.engine)
    queue.enqueue(jobs(JOBS))
    start = SPAWN.Barrier(PROCESSES, timeout=120)
    options = {"claims": claims}
    gather([Worker(race, backend.url, options, SIZE, start) for _ in range(PROCESSES)])
    with backend.engine.connect() as connection:
        handled, distinct, owners = connection.execute(
            sa.select(
                sa.func.count(), sa.func.count(AUDIT.c.job.distinct()), sa.func.count(AUDIT.c.owner_id.distinct())
            )
        ).one()
    assert (handled, distinct) == (JOBS, JOBS)
    assert owners == PROCESSES
    assert queue.stats().left == 0
