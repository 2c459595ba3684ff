"""A batch that fails as a whole is taken apart, whoever claims it, until the bad job is alone."""

from __future__ import annotations

import contextlib
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, Retry
from tests.backends import Backend, Clock
from tests.conformance.jobs import before_the_lock, dead_jobs, jobs, names
from tests.conformance.owners import still
from tests.conformance.test_retry import JOBS, LATER, Poison, spoil

pytestmark = pytest.mark.usefixtures("each_kind_of_claim")


def work(
    queue: Queue, bad: Iterable[str], on_idle: Callable[[], Any], hands: Counter[str], *, size: int = 1_000
) -> None:
    """Until nothing is left: a batch with a bad job in it blows up, any other is done. Counts each job's hands."""
    spoilers = frozenset(bad)
    while has_more(queue):
        batch = queue.claim(size)
        assert len({job.suspect for job in batch.jobs}) <= 1
        hands.update(names(batch))
        with contextlib.suppress(Poison), batch:
            if spoilers & set(names(batch)):
                raise Poison
            batch.done()
        if not batch:
            on_idle()


def has_more(queue: Queue) -> bool:
    """Whether a job is neither done nor dead. `stats` would count much more each time."""
    with queue.engine.connect() as connection:
        return connection.scalar(sa.select(JOBS.c.id).where(JOBS.c.status != "dead").limit(1)) is not None


def most(count: int) -> int:
    """In how many hands an innocent job may be: log2(n) + 1."""
    return math.floor(math.log2(count)) + 1


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 64, 100])
@pytest.mark.parametrize("spoilers", [1, 2])
def test_the_bad_end_dead_and_the_innocent_are_done_within_few_hands(
    backend: Backend, clock: Clock, count: int, spoilers: int
) -> None:
    every = [f"{n:04}" for n in range(count)]
    for seed in range(2):
        bad = random.Random(f"{count} {spoilers} {seed}").sample(every, min(spoilers, count))
        queue = backend.queue(JOBS, now=clock.sql, retry=Retry(attempts=3))
        queue.enqueue(jobs(count, run_at=clock.now))
        hands: Counter[str] = Counter()
        work(queue, bad, lambda: setattr(clock, "now", clock.now + LATER), hands)
        dead = list(dead_jobs(queue))
        assert sorted(names(dead)) == sorted(bad)
        assert {job.attempts for job in dead} == {3}
        assert max([hands[d] for d in every if d not in bad], default=0) <= most(count)
        assert {hands[d] for d in bad} <= set(range(3, most(count) + 3))
        assert queue.jobs.drop() == len(bad)


def test_where_every_job_is_bad_all_end_dead(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql, retry=Retry(attempts=2))
    queue.enqueue(jobs(12, run_at=clock.now))
    hands: Counter[str] = Counter()
    work(queue, [f"{n:04}" for n in range(12)], lambda: setattr(clock, "now", clock.now + LATER), hands)
    assert {row["status"] for row in backend.rows()} == {"dead"}
    assert max(hands.values()) <= most(12) + 1


def test_several_consumers_at_once_with_fresh_jobs_coming_in(backend: Backend, clock: Clock) -> None:
    count, late = 96, 40
    bad = ["0017", "0055", "0099"]
    queues = [backend.queue(JOBS, now=clock.sql, retry=Retry(attempts=2)) for _ in range(4)]
    queues[0].enqueue(jobs(count, run_at=clock.now))
    hands: list[Counter[str]] = [Counter() for _ in queues]
    errors: list[BaseException] = []
    turn = threading.Lock()

    def idle() -> None:
        with turn:
            clock.now += LATER

    def consume(queue: Queue, mine: Counter[str]) -> None:
        try:
            work(queue, bad, idle, mine, size=24)
        except BaseException as error:  # raised below, in the thread that the test runs in
            errors.append(error)

    threads = [threading.Thread(target=consume, args=pair) for pair in zip(queues, hands, strict=True)]
    for thread in threads:
        thread.start()
    queues[0].enqueue([{**job, "d": f"{count + n:04}"} for n, job in enumerate(jobs(late, run_at=clock.now))])
    for thread in threads:
        thread.join(120)
    assert errors == []
    total = sum(hands, Counter())
    assert sorted(names(dead_jobs(queues[0]))) == bad
    assert [row["d"] for row in backend.rows()] == bad
    assert max(n for d, n in total.items() if d not in bad) <= most(24)
    assert len(total) == count + late
    assert sum(queue.report.lost for queue in queues) == 0


@pytest.mark.mariadb("it searches and locks in two statements")
@pytest.mark.parametrize("before", [0, 6], ids=["fresh", "of-a-larger-group"])
def test_jobs_whose_batch_failed_between_search_and_lock_are_taken_in_halves(backend: Backend, before: int) -> None:
    queue = still(backend.queue(JOBS, bind=backend.new_engine()))
    backend.insert("jobs", jobs(6, suspect=before))
    with (
        before_the_lock(queue.engine, "jobs", lambda: backend.run("UPDATE jobs SET suspect = 3 WHERE d < '0003'")),
        queue.claim(6) as batch,
    ):
        assert (names(batch), batch.jobs[0].suspect) == (["0000"], 3)
        batch.done()
    assert queue.report.suspects == 0


def test_an_owner_holds_suspects_alone(backend: Backend, clock: Clock) -> None:
    """If it died with them in one thread and other jobs in another, nobody would know which of all was the cause."""
    queue = backend.queue(JOBS, now=clock.sql)
    queue.enqueue(jobs(4, run_at=clock.now))
    spoil(queue, 2)
    clock.now += LATER
    fresh = queue.claim(1, where=JOBS.c.d == "0003")
    suspects = queue.claim(4)
    assert (len(suspects), suspects.contended) == (0, True)
    assert not queue.claim(1, where=JOBS.c.d == "0002"), "nor other jobs, so that it holds none at some time"
    with fresh:
        fresh.done()
    with queue.claim(1) as suspects:
        assert (names(suspects), suspects[0]["suspect"]) == (["0000"], 2)
        assert not queue.claim(1), "nothing beside suspects"
        suspects.done()
    first, second = queue.claim(1), queue.claim(1, where=JOBS.c.d == "0002")
    assert (names(first), len(second)) == (["0001"], 0)
    first.done()
    first.settle()
    with queue.claim(1) as last:
        assert names(last) == ["0002"]
        last.done()
    assert backend.rows() == []
    assert queue.report.lost == 0


def test_a_loop_that_settles_beside_another_thread_claims_no_suspects(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql)
    queue.enqueue(jobs(4, run_at=clock.now))
    spoil(queue, 2)
    loop = queue.batches(1, where=JOBS.c.d != "0003", drain=True)
    first = next(loop)
    assert names(first) == ["0002"]
    beside = queue.claim(1, where=JOBS.c.d == "0003")
    clock.now += LATER
    with first:
        first.done()
    assert [row["status"] for row in backend.rows() if row["d"] < "0002"] == ["unclaimed"] * 2
    with beside:
        beside.done()
    for batch in loop:
        assert len(batch) == 1
        with batch:
            batch.done()
    assert backend.rows() == []


def test_a_job_that_kills_its_process_is_found_whatever_else_that_holds(backend: Backend) -> None:
    """Batches that were claimed ahead, or those of other threads: after each death fewer jobs are suspects."""
    size, beside, bad = 4, 3, "0002"
    alive, deaths = backend.queue(JOBS, retry=Retry(attempts=2, base=0)), 0
    alive.enqueue(jobs(24))
    hands: Counter[str] = Counter()
    while has_more(alive):
        consumer = still(backend.queue(JOBS))
        held = [batch for _ in range(1 + beside) if (batch := consumer.claim(size))]
        for batch in held:
            hands.update(names(batch))
            if bad in names(batch):
                assert alive.reclaim_owner(consumer.owner_id)
                deaths += 1
                break
            batch.done()
            batch.settle()
        consumer.close()
    assert [(row["d"], row["status"], row["attempts"]) for row in backend.rows()] == [(bad, "dead", 2)]
    assert deaths <= most((1 + beside) * size) + 2
    assert max(hands[d] for d in hands if d != bad) <= most((1 + beside) * size)
