"""A batch may be larger than what one statement holds."""

from __future__ import annotations

import sqlalchemy as sa

from claimjobs import job_table
from claimjobs.options import Liveness
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.owners import still

PATIENT = Liveness(lease=60.0)


def test_more_jobs_at_once_than_a_statement_has_parameters(database: Backend) -> None:
    queue = still(database.queue(liveness=PATIENT))
    queue.enqueue(jobs(66_000))
    with queue.claim(66_000) as batch:
        assert len(batch) == 66_000
        batch.done(*batch.jobs[:33_000])
    assert batch.lost == ()
    assert queue.stats().unclaimed == 33_000


def small_packets(own: Backend, size: int) -> None:
    """As an administrator may have set it; for sessions that begin from now on."""
    if own.family != "postgres":  # which knows no such limit
        own.run(f"SET GLOBAL max_allowed_packet = {size}")


def test_more_at_once_than_a_packet_holds(own: Backend) -> None:
    """A thousand rows of 6 kB, a thousand errors of 2 kB, packets of 1 MB, as an old configuration has them."""
    table = job_table("emails", sa.MetaData(), sa.Column("body", sa.Text))
    own.make(table)
    small_packets(own, 1 << 20)
    try:
        queue = still(own.bare_queue(table, bind=own.new_engine(), liveness=PATIENT))
        queue.enqueue({"body": "x" * 6_000} for _ in range(1_000))
        with queue.claim(1_000) as batch:
            assert len(batch) == 1_000
            for number, job in enumerate(batch.jobs):
                batch.fail(job, f"{number} " + "ß" * 5_000, retry=number % 2 == 0)
        assert batch.lost == ()
        assert (queue.report.retried, queue.report.dead) == (500, 500)
        assert queue.report.transients == {}
    finally:
        small_packets(own, 64 << 20)
