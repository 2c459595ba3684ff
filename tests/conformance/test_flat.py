"""What a consumer keeps does not grow with what it has done: memory, callbacks, threads, descriptors."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from claimjobs import Queue
from tests.backends import Backend, wait_for
from tests.conformance.jobs import jobs
from tests.conformance.owners import hold_of
from tests.conformance.sleepers import Consumer

CLAIMS = 10_000
BATCHES = 600
"""So many of the claims find a job."""

PYTHONS = pytest.mark.one_server("what a process keeps is kept by Python, whatever the server is")

WINDOWS = 4
"""What grows does so in each of them. What is made once, by a first heartbeat or for a statement, is made in one."""
FEW = 5
"""So many more than before are noise."""


def kept() -> Counter[str]:
    """What this process keeps at this moment, as far as it can be counted."""
    gc.collect()
    found = Counter(type(one).__name__ for one in gc.get_objects())
    found["blocks of memory"] = sys.getallocatedblocks() // 5  # a job that is kept is some five of them, and more
    found["threads"] = threading.active_count()
    found["descriptors"] = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    return found


def grown_by(work: Callable[[], object], times: int) -> set[str]:
    """Of what there is one more for each ten times that this is done."""
    work()
    before = kept()
    grown = set(before)
    for _ in range(WINDOWS):
        for _ in range(times // WINDOWS):
            work()
        now = kept()
        grown &= {name for name in now if now[name] - before[name] > max(FEW, times / WINDOWS / 10)}
        before = now
    return grown


def callbacks_of(queue: Queue) -> int:
    """How many callbacks wait for the end of a consumer's connection."""
    connection = hold_of(queue)._connector._connection
    assert connection is not None
    return len(connection.connection._connection_record.finalize_callback)


@pytest.mark.timeout(600)
@pytest.mark.thorough("ten thousand claims take half a minute")
def test_nothing_grows_with_ten_thousand_claims(backend: Backend) -> None:
    """Most of them find nothing: on the servers' disks, 10,000 batches would take a minute."""
    queue = backend.queue()
    queue.enqueue(jobs(2 * BATCHES + 200))

    def settled() -> None:
        with queue.claim(2) as batch:
            batch.done()

    assert grown_by(settled, BATCHES) == set()
    backend.run("DELETE FROM jobs")
    assert grown_by(lambda: queue.claim(2), CLAIMS - BATCHES) == set()
    assert callbacks_of(queue) <= 1


@PYTHONS
def test_nothing_grows_with_batches_that_are_settled_with_the_next_claim(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(BATCHES + 200))
    batches = queue.batches(1)

    def turned() -> None:
        with next(batches) as batch:
            batch.done()

    assert grown_by(turned, BATCHES) == set()
    assert callbacks_of(queue) <= 1
    batches.close()


@PYTHONS
def test_nothing_grows_with_transactions_that_hold_a_batch(backend: Backend) -> None:
    queue = backend.queue(hold="transaction")
    queue.enqueue(jobs(BATCHES + 200))

    def held() -> None:
        with queue.claim(1) as batch:
            batch.done()

    assert grown_by(held, BATCHES) == set()


@PYTHONS
@pytest.mark.parametrize("whose", ["own", "the caller's"])
def test_nothing_grows_with_enqueues_that_wake_a_sleeper(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """Also where one connection, of the caller's, commits all of them."""
    monkeypatch.setattr(
        "claimjobs.queue.batch_loop.SHORT_SLEEP_SECONDS", 0.0
    )  # it sleeps again at once, however short its last sleep was
    queue = backend.queue()
    with Consumer(backend) as consumer, backend.engine.connect() as connection:

        def woken() -> None:
            before = len(consumer.done)
            if whose == "own":
                queue.enqueue({"d": "own", "e": ""})
            else:
                with connection.begin():
                    queue.enqueue({"d": "caller's", "e": ""}, connection)
            wait_for(lambda: len(consumer.done) > before, "it is done")
            consumer.falls_asleep()  # what it keeps while it works is counted by chance

        consumer.falls_asleep()
        assert grown_by(woken, 80) == set()
        assert callbacks_of(consumer.queue) <= 1
