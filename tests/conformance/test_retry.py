"""Failures are counted and waited for; the jobs of a batch that fails as a whole become suspects."""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Queue, Retry, make, side_car_tables
from claimjobs.admin.stats import Retries
from claimjobs.table.definitions import article_table
from tests.backends import Backend, Clock
from tests.conformance.jobs import dead_jobs, jobs, names
from tests.conformance.owners import still

pytestmark = pytest.mark.usefixtures("each_kind_of_claim")

JOBS = article_table()

LATER = timedelta(hours=2)
"""Beyond every back-off."""


class Poison(Exception):
    """What the bad job does to its batch."""


def one(backend: Backend) -> Any:
    [row] = backend.rows(JOBS)
    return row


def marks(backend: Backend) -> dict[str, int]:
    return {row["d"]: row["suspect"] for row in backend.rows(JOBS)}


def spoil(queue: Queue, size: int = 100) -> Batch:
    """Claim, and let an exception that names no job leave the block."""
    batch = queue.claim(size)
    with contextlib.suppress(Poison), batch:
        raise Poison("it blew up")
    return batch


def without(backend: Backend, *columns: str) -> None:
    """The table of jobs, lacking some columns."""
    backend.make()
    backend.run(f"DROP INDEX jobs_claim{'' if backend.family == 'postgres' else ' ON jobs'}")
    for column in columns:
        backend.run(f"ALTER TABLE jobs DROP COLUMN {column}")


# --- what is an attempt ------------------------------------------------------------------------------------


def test_a_failure_is_an_attempt_and_a_release_or_a_clean_stop_is_none(backend: Backend) -> None:
    queue = backend.queue(retry=Retry(base=0))
    queue.enqueue(jobs(1))
    for _ in range(3):
        queue.claim().settle()
        queue.claim()
        queue.close()
    assert one(backend)["attempts"] == 0
    for failures in (1, 2):
        with queue.claim() as batch:
            batch.fail(batch[0], "broken")
        queue.claim().settle()
        assert one(backend)["attempts"] == failures


@pytest.mark.parametrize("leave", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_to_be_stopped_is_no_jobs_fault(backend: Backend, leave: type[BaseException]) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(2))
    with pytest.raises(leave), queue.claim(2):
        raise leave
    assert [(row["status"], row["attempts"], row["suspect"]) for row in backend.rows()] == [("unclaimed", 0, 0)] * 2
    assert len(queue.claim(2)) == 2


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_a_job_is_dead_after_the_attempts_that_the_queue_gives(backend: Backend, clock: Clock, attempts: int) -> None:
    queue = backend.queue(JOBS, now=clock.sql, retry=Retry(attempts=attempts))
    queue.enqueue(jobs(1, run_at=clock.now))
    for failures in range(1, attempts + 1):
        assert one(backend)["status"] == "unclaimed"
        with queue.claim() as batch:
            batch.fail(batch[0], f"for the {failures}. time")
        clock.now += LATER
    assert (one(backend)["status"], one(backend)["attempts"]) == ("dead", attempts)
    assert one(backend)["last_error"] == f"for the {attempts}. time"
    assert not queue.claim()


def test_the_wait_doubles_up_to_the_cap(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql, retry=Retry(attempts=10, base=4, cap=20))
    queue.enqueue(jobs(1, run_at=clock.now))
    for longest in (4, 8, 16, 20, 20):
        with queue.claim() as batch:
            batch.fail(batch[0], "again")
        wait = (one(backend)["run_at"] - clock.now).total_seconds()
        assert longest / 2 <= wait <= longest
        clock.now += timedelta(seconds=wait) - timedelta(milliseconds=1)
        assert not queue.claim()
        clock.now += timedelta(milliseconds=1)


def test_jobs_that_fail_together_do_not_come_back_together(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql, retry=Retry(base=10))
    queue.enqueue(jobs(50, run_at=clock.now))
    with queue.claim() as batch:
        for job in batch.jobs:
            batch.fail(job, "all of them")
    waits = {row["run_at"] - clock.now for row in backend.rows(JOBS)}
    assert len(waits) > 25
    assert timedelta(seconds=5) <= min(waits) < timedelta(seconds=7) < max(waits) <= timedelta(seconds=10)


def test_a_handler_may_say_when_or_that_there_is_no_use(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql, retry=Retry(base=10, cap=20))
    queue.enqueue(jobs(3, run_at=clock.now))
    with queue.claim() as batch:
        batch.fail(batch[0], "in an hour", retry_in=3600)
        batch.fail(batch[1], "at once", retry_in=0)
        batch.fail(batch[2], "never", retry=False, retry_in=5)
    found = [(row["status"], row["run_at"] - clock.now, row["attempts"]) for row in backend.rows(JOBS)]
    assert found == [("unclaimed", timedelta(hours=1), 1), ("unclaimed", timedelta(0), 1), ("dead", timedelta(0), 1)]


def test_what_a_handler_says_of_the_wait_gives_no_attempt_more(backend: Backend) -> None:
    queue = backend.queue(retry=Retry(attempts=1))
    queue.enqueue(jobs(1))
    with queue.claim() as batch:
        batch.fail(batch[0], "again, please", retry_in=0)
    assert one(backend)["status"] == "dead"


# --- an exception that names no job ------------------------------------------------------------------------


def test_all_that_were_undecided_go_back_as_suspects_without_an_attempt(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql, retry=Retry(base=8))
    queue.enqueue(jobs(10, run_at=clock.now))
    with contextlib.suppress(Poison), queue.claim() as batch:
        batch.done(*batch.jobs[:2])
        batch.fail(batch[2], "this one I know", retry_in=0)
        raise Poison("x" * 5_000)
    rows = backend.rows(JOBS)
    assert names(batch.jobs[2:]) == [row["d"] for row in rows]
    [known, *suspects] = rows
    assert (known["attempts"], known["suspect"], known["last_error"]) == (1, 0, "this one I know")
    for row in suspects:
        assert (row["status"], row["owner_id"], row["owner_date"]) == ("unclaimed", None, None)
        assert (row["attempts"], row["suspect"]) == (0, 7)
        assert row["last_error"] == f"Poison: {'x' * 1_991}…"
        assert timedelta(seconds=4) <= row["run_at"] - clock.now <= timedelta(seconds=8)
    report = queue.report
    assert (report.done, report.retried, report.suspects, report.released, report.dead) == (2, 1, 7, 0, 0)


def test_one_that_is_left_is_the_one(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql)
    queue.enqueue(jobs(3, run_at=clock.now))
    with contextlib.suppress(Poison), queue.claim() as batch:
        for job in batch:
            if job.d == "0002":
                raise Poison
    assert (one(backend)["attempts"], one(backend)["suspect"]) == (1, 1)
    assert queue.report.retried == 1


def test_nothing_is_blamed_when_all_is_decided(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(2))
    with contextlib.suppress(Poison), queue.claim() as batch:
        batch.done()
        raise Poison
    assert backend.rows() == []


@pytest.mark.claims_in_rows
def test_suspects_are_as_many_as_they_were_though_some_were_taken_away(backend: Backend) -> None:
    queue = backend.queue(JOBS)
    queue.enqueue(jobs(4))
    batch = queue.claim(4)
    backend.run("UPDATE jobs SET status = 'unclaimed', owner_id = NULL WHERE d = '0001'")
    batch.blame("it blew up")
    batch.settle()
    assert names(batch.lost) == ["0001"]
    assert marks(backend) == {"0000": 4, "0001": 0, "0002": 4, "0003": 4}


def test_a_later_word_on_a_suspect_counts(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(5))
    with queue.claim() as batch:
        batch.blame("something is wrong")
        batch.done(batch[0])
        batch.release(batch[1])
    assert marks(backend) == {"0001": 0, "0002": 3, "0003": 3, "0004": 3}


def test_it_never_spins_for_suspects_wait(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql)
    queue.enqueue(jobs(20, run_at=clock.now))
    spoil(queue)
    assert not queue.claim()
    assert list(queue.batches(drain=True)) == []
    assert queue.stats().unclaimed == 20


@pytest.mark.parametrize("figures", [(10, 100, 5), (10, 3, 3), (7, 100, 3), (3, 9, 1), (2, 9, 1)])
def test_suspects_are_claimed_in_half_their_company_at_most(
    backend: Backend, clock: Clock, figures: tuple[int, int, int]
) -> None:
    company, size, taken = figures
    queue = backend.queue(JOBS, now=clock.sql)
    queue.enqueue(jobs(company, run_at=clock.now))
    spoil(queue)
    clock.now += LATER
    batch = queue.claim(size)
    assert names(batch) == [f"{n:04}" for n in range(taken)]
    assert {job.suspect for job in batch.jobs} == {company}


def test_a_claim_takes_suspects_with_their_like_alone(backend: Backend, clock: Clock) -> None:
    """Of what is due the first decides which kind it is: 0000-0009 were ten, 0010-0015 six, the rest are fresh."""
    queue = backend.queue(JOBS, now=clock.sql)
    queue.enqueue(jobs(30, run_at=clock.now))
    spoil(queue, 10)
    spoil(queue, 6)
    clock.now += LATER
    taken = [backend.queue(JOBS, now=clock.sql).claim(100) for _ in range(6)]
    kinds = [sorted({job.suspect for job in batch.jobs}) for batch in taken]
    assert [len(batch) for batch in taken] == [5, 5, 3, 3, 14, 0]
    assert kinds == [[10], [10], [6], [6], [0], []]
    assert names(taken[1]) == [f"{n:04}" for n in range(5, 10)]


def test_fresh_jobs_before_suspects_are_claimed_in_full(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql)
    queue.enqueue(jobs(4, run_at=clock.now))
    spoil(queue)
    clock.now += LATER
    queue.enqueue(jobs(6, run_at=clock.now, priority=-1))
    taken = [backend.queue(JOBS, now=clock.sql).claim(100) for _ in range(4)]
    assert [len(batch) for batch in taken] == [6, 2, 2, 0]


def test_a_released_suspect_stays_one_and_a_named_one_does_not(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql)
    queue.enqueue(jobs(6, run_at=clock.now))
    spoil(queue)
    clock.now += LATER
    with queue.claim() as batch:
        batch.fail(batch[0], "it was me", retry_in=0)
    assert marks(backend) == {"0000": 0, **{f"{n:04}": 6 for n in range(1, 6)}}


def test_who_fails_alone_stays_alone_until_it_is_dead(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql, retry=Retry(attempts=4))
    queue.enqueue(jobs(1, run_at=clock.now))
    spoil(queue)
    queue.enqueue(jobs(5, run_at=clock.now))
    for attempts in (1, 2, 3):
        clock.now += LATER
        bad, others = queue.claim(), backend.queue(JOBS, now=clock.sql).claim()
        assert [(job.attempts, job.suspect) for job in bad.jobs] == [(attempts, 1)]
        assert len(others) == 5
        others.settle()
        bad.blame("it blew up again")
        bad.settle()
    [dead] = dead_jobs(queue)
    assert (dead.attempts, dead.suspect, dead.last_error) == (4, 0, "it blew up again")


def test_who_fails_by_name_after_that_is_in_company_again(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql)
    queue.enqueue(jobs(1, run_at=clock.now))
    spoil(queue)
    clock.now += LATER
    with queue.claim() as batch:
        batch.fail(batch[0], "the address is wrong")
    assert (one(backend)["attempts"], one(backend)["suspect"]) == (2, 0)


# --- tables that cannot hold it ----------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [["suspect"], ["suspect", "attempts"], ["run_at"], ["suspect", "last_error"]])
def test_a_table_that_cannot_hold_the_mark_has_its_jobs_released(backend: Backend, missing: list[str]) -> None:
    without(backend, *missing)
    queue = backend.bare_queue()
    queue.enqueue(jobs(4))
    spoil(queue)
    assert {(row["status"], row["owner_id"]) for row in backend.rows()} == {("unclaimed", None)}
    assert all(row.get("attempts", 0) == 0 for row in backend.rows())
    batch = queue.claim()
    assert len(batch) == 4
    assert queue.report.released == 4


def test_without_the_mark_one_alone_fails_all_the_same(backend: Backend, clock: Clock) -> None:
    without(backend, "suspect")
    queue = backend.bare_queue(now=clock.sql)
    queue.enqueue(jobs(1, run_at=clock.now))
    spoil(queue)
    [row] = backend.rows()
    assert (row["attempts"], row["last_error"]) == (1, "Poison: it blew up")
    assert not queue.claim()


def test_an_error_that_cannot_be_kept_is_no_hindrance(backend: Backend, clock: Clock) -> None:
    without(backend, "last_error")
    queue = backend.bare_queue(now=clock.sql)
    queue.enqueue(jobs(4, run_at=clock.now))
    spoil(queue)
    assert [row["suspect"] for row in backend.rows()] == [4] * 4
    clock.now += LATER
    with queue.claim(1) as batch:
        batch.fail(batch[0], "nor is this one")
    assert [row["attempts"] for row in backend.rows()] == [1, 0, 0, 0]


# --- waiting for retries -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"hold": "transaction"}, {"side_car": True}], ids=["lease", "lock", "beside"])
def test_a_drain_may_wait_for_those_that_failed(backend: Backend, options: dict[str, Any]) -> None:
    backend.make()
    if options.get("side_car"):
        make(backend.engine, side_car_tables(backend.engine, "jobs"))
    queue = backend.bare_queue("jobs", retry=Retry(base=0.2), **options)
    queue.enqueue(jobs(4))
    tries: Counter[str] = Counter()
    for batch in queue.batches(2, drain="retries", poll=0.1):
        with batch:
            for job in batch:
                tries[job.d] += 1
                if job.d == "0001" and tries[job.d] < 3:
                    batch.fail(job, "not yet")
    assert tries == {"0000": 1, "0001": 3, "0002": 1, "0003": 1}
    assert queue.stats().left == 0


def test_what_waits_for_its_retry_is_counted(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue([*jobs(3), {**jobs(1)[0], "d": "later", "run_at": queue.now() + timedelta(days=1)}])
    assert (queue.retries().jobs, queue.retries().next_in) == (0, None)
    with queue.claim(3) as batch:
        batch.done(batch[0])
        batch.fail(batch[1], "broken", retry_in=100)
        batch.fail(batch[2], "broken", retry_in=50)
    found = queue.retries()
    assert found.jobs == 2
    assert found.next_in is not None
    assert 0 < found.next_in <= 50
    assert found.due == 0
    assert queue.retries(sa.text("d = '0001'")).jobs == 1
    assert [list(queue.batches(drain="retries", where=sa.text("d = '0000'")))] == [[]]


def test_suspects_of_a_dead_owner_wait_for_nothing(backend: Backend) -> None:
    """They may be claimed at once. A run that ends must not say that it would have waited for them."""
    dead, queue = still(backend.queue()), backend.queue()
    queue.enqueue(jobs(3))
    held = dead.claim(3)
    assert queue.reclaim_owner(dead.owner_id) == len(held)
    assert queue.retries() == Retries(0, None, due=3)
