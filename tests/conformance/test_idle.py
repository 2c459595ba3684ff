"""A loop that ends when there was nothing to do for long enough."""

from __future__ import annotations

import time
from datetime import timedelta

from claimjobs import Batch
from tests.backends import Backend
from tests.conformance.jobs import jobs

IDLE = 0.3


def test_a_loop_ends_when_there_was_no_batch_for_so_long(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(5))
    for batch in queue.batches(2, idle=IDLE):
        with batch:
            batch.done()
            ended = time.monotonic()
    assert time.monotonic() - ended >= IDLE
    assert backend.rows() == []


def test_an_empty_queue_is_waited_for_as_well(anywhere: Backend) -> None:
    began = time.monotonic()
    assert list(anywhere.queue().batches(idle=IDLE)) == []
    assert time.monotonic() - began >= IDLE


def test_work_that_takes_longer_is_not_idleness(anywhere: Backend) -> None:
    """The second job comes while the first one is worked on, for longer than the loop would wait."""
    queue, seen = anywhere.queue(), list[Batch]()
    queue.enqueue(jobs(1))
    for batch in queue.batches(1, idle=IDLE):
        with batch:
            if not seen:
                began = time.monotonic()
                anywhere.wait_for(lambda: time.monotonic() - began > IDLE, "time passes")  # noqa: B023
                queue.enqueue(jobs(1))
            seen.append(batch)
            batch.done()
    assert len(seen) == 2


def test_new_work_begins_the_wait_anew(anywhere: Backend) -> None:
    """Each job comes well within the wait, all of them together take longer than it."""
    queue, done = anywhere.queue(), list[float]()
    queue.enqueue(jobs(1))
    for batch in queue.batches(idle=2.0, poll=0.02):
        with batch:
            batch.done()
        done.append(time.monotonic())
        if len(done) < 4:
            queue.enqueue(jobs(1, run_at=queue.now() + timedelta(seconds=0.7)))
    assert len(done) == 4
    assert done[-1] - done[0] > 2.0


def test_the_last_moment_is_no_storm_of_looks(anywhere: Backend) -> None:
    queue = anywhere.queue()
    assert list(queue.batches(idle=1.0, poll=0.5)) == []
    assert queue.report.empty_claims < 15
