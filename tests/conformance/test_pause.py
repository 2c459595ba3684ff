"""A paused queue: nobody claims from its table until it is resumed, on any machine."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from claimjobs import Queue
from claimjobs.errors import TableMissing
from claimjobs.options import HoldKind, Liveness
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs, names
from tests.conformance.orders import orders
from tests.conformance.owners import hold_of
from tests.conformance.sleepers import Consumer

HOLDS: tuple[HoldKind, ...] = ("lease", "transaction")
QUICK = Liveness(lease=2.0)
"""A heartbeat every 0.4 s."""


def is_paused(queue: Queue) -> bool:
    return queue._control.paused


@pytest.mark.parametrize("options", [{}, {"hold": "transaction"}], ids=str)
def test_nothing_is_claimed_while_it_is_paused(backend: Backend, options: dict[str, Any]) -> None:
    queue, operator = backend.queue(liveness=QUICK, **options), backend.queue(**options)
    queue.enqueue(jobs(4))
    with queue.claim(1) as batch:
        batch.done()
    operator.pause("the mail server is down")
    backend.wait_for(lambda: queue._consumer._is_paused(queue._consumer.hold), "the pause is noticed")
    queue.enqueue(jobs(1))
    assert len(queue.claim(10)) == 0
    with backend.queue(**options) as newcomer:
        assert len(newcomer.claim(10)) == 0
    stats = operator.stats()
    assert (stats.pause_reason, stats.unclaimed) == ("the mail server is down", 4)
    assert 0 <= (stats.paused or -1) < 60
    assert operator.resume()
    with queue.claim(10) as batch:
        assert len(batch) == 4
        batch.done()
    assert (operator.stats().paused, operator.resume()) == (None, False)


def test_a_second_pause_replaces_the_reason_only(backend: Backend) -> None:
    backend.make()
    queue = backend.queue()
    queue.pause("one")
    [first] = backend.rows("claimjobs_queues")
    queue.pause("other")
    [second] = backend.rows("claimjobs_queues")
    assert (second["claims"], second["reason"], second["paused"]) == ("jobs", "other", first["paused"])
    queue.pause()
    assert queue.stats().pause_reason is None
    assert queue.resume()


def test_it_counts_for_one_table_and_for_each_queue_of_it(backend: Backend) -> None:
    backend.make("others")
    backend.queue(table="others").enqueue(jobs(1))
    queue = backend.queue(where="d > '0'")
    queue.enqueue(jobs(1))
    backend.queue(where="d < '0'").pause()
    assert len(queue.claim(1)) == 0
    assert len(backend.queue(table="others").claim(1)) == 1
    queue.resume()


@pytest.mark.parametrize("hold", HOLDS)
def test_a_loop_finishes_its_batch_releases_the_others_and_goes_on_when_it_is_resumed(
    backend: Backend, hold: HoldKind
) -> None:
    queue, operator = backend.queue(hold=hold, liveness=QUICK), backend.queue()
    queue.enqueue(jobs(30))
    with Consumer(backend, queue, size=5, drain=True, poll=0.05) as consumer:
        consumer.busy.clear()
        backend.wait_for(lambda: consumer.done, "the first batch has begun")
        operator.pause()
        if hold == "lease":
            backend.wait_for(lambda: is_paused(queue), "a heartbeat has read it")
        else:
            threading.Event().wait(QUICK.beat)  # it is read between two batches, this long after the last time
        consumer.busy.set()
        backend.wait_for(lambda: is_paused(queue) and not held(backend, hold), "nothing is held")
        done = list(consumer.done)
        assert len(done) < 30
        assert not consumer.is_over
        operator.resume()
        backend.wait_for(lambda: consumer.is_over, "the queue is drained")
    assert len(consumer.done) == 30
    assert Counter(row["status"] for row in backend.rows()) == {}


def held(backend: Backend, hold: HoldKind) -> int:
    if hold == "transaction":
        return backend.locked()
    return sum(row["status"] == "claimed" for row in backend.rows())


def test_a_sleeping_loop_reads_it_when_it_wakes_and_a_resume_wakes_it(backend: Backend, only_when_called: None) -> None:
    backend.make()
    operator = backend.queue()
    with Consumer(backend) as consumer:
        consumer.falls_asleep()
        operator.pause()
        operator.enqueue(jobs(1))
        backend.wait_for(lambda: is_paused(consumer.queue), "it has read the pause when the enqueue woke it")
        consumer.falls_asleep()
        assert consumer.done == []
        operator.resume()
        consumer.does("0000")


@pytest.mark.parametrize("end", ["stop", "idle"])
def test_a_paused_loop_ends_by_stop_and_idle(anywhere: Backend, end: str) -> None:
    queue = anywhere.queue()
    queue.enqueue(jobs(1))
    queue.pause()
    with Consumer(anywhere, queue, idle=0.2 if end == "idle" else None) as consumer:
        anywhere.wait_for(lambda: is_paused(queue), "it is paused")
        if end == "stop":
            queue.stop()
        anywhere.wait_for(lambda: consumer.is_over, "the loop has ended")
    queue.resume()
    assert len(anywhere.rows()) == 1


def test_the_hot_path_sends_nothing_for_it(backend: Backend) -> None:
    queue = backend.queue(liveness=Liveness(lease=600))
    queue.enqueue(jobs(20))
    hold_of(queue)
    with counted(queue.engine) as sent:
        for batch in queue.batches(5, drain=True):
            batch.done()
            batch.settle()
    assert sent
    assert not any("claimjobs_queues" in statement for statement in sent)


def test_without_the_table_of_queues_a_transaction_claims_and_a_pause_says_what_to_do(backend: Backend) -> None:
    queue = backend.queue(hold="transaction")
    queue.enqueue(jobs(2))
    backend.run("DROP TABLE claimjobs_queues")
    with queue.claim(1) as batch:
        assert names(batch) == ["0000"]
        batch.done()
    assert (queue.stats().paused, queue.stats().unclaimed) == (None, 1)
    for tell in (queue.pause, queue.resume):
        with pytest.raises(TableMissing, match="claimjobs setup-tables"):
            tell()


def test_a_table_that_does_not_exist_cannot_be_paused(anywhere: Backend) -> None:
    anywhere.make()
    with pytest.raises(TableMissing):
        anywhere.bare_queue("nowhere").pause()
    assert anywhere.rows("claimjobs_queues") == []


def test_a_queue_with_a_side_car_is_paused_by_the_name_of_its_table(backend: Backend) -> None:
    queue = orders(backend, 2)
    queue.pause()
    assert [row["claims"] for row in backend.rows("claimjobs_queues")] == ["orders"]
    assert len(queue.claim(1)) == 0
    queue.resume()
    assert len(queue.claim(1)) == 1
