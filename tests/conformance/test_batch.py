"""What becomes of the jobs of a batch, said outright or by the way the block is left."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from claimjobs.batch.hold import NextClaim
from claimjobs.errors import BadArgument, BatchMisused
from claimjobs.options import Liveness
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs, names


def states(backend: Backend) -> dict[str, Any]:
    """Each job still in the table, with its status."""
    return {row["d"]: row["status"] for row in backend.rows()}


def test_what_a_loop_has_moved_past_is_done(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(4))
    with queue.claim(3) as batch:
        assert [job.d for job in batch] == ["0000", "0001", "0002"]
    assert states(backend) == {"0003": "unclaimed"}
    assert batch.settled
    assert (queue.report.done, queue.report.released) == (3, 0)


def test_nothing_is_written_before_the_block_is_left(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(2))
    with queue.claim() as batch:
        batch.done()
        assert states(backend) == {"0000": "claimed", "0001": "claimed"}
    assert states(backend) == {}


def test_a_break_hands_back_the_job_in_hand_and_the_rest(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(4))
    with queue.claim() as batch:
        for job in batch:
            if job.d == "0001":
                break
    assert states(backend) == {"0001": "unclaimed", "0002": "unclaimed", "0003": "unclaimed"}
    released = backend.rows()[0]
    assert (released["owner_id"], released["owner_date"], released["attempts"]) == (None, None, 0)


def test_a_return_hands_back_the_job_in_hand_and_the_rest(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(3))

    def handle() -> str:
        with queue.claim() as batch:
            for job in batch:
                if job.d == "0001":
                    return str(job.d)
        raise AssertionError("it did not return")

    assert handle() == "0001"
    assert states(backend) == {"0001": "unclaimed", "0002": "unclaimed"}


def test_an_exception_hands_back_the_undecided_and_goes_on(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(4))

    def handle() -> None:
        with batch:
            for job in batch:
                if job.d == "0002":
                    raise RuntimeError("handler")

    batch = queue.claim()
    with pytest.raises(RuntimeError, match="handler"):
        handle()
    assert states(backend) == {"0002": "unclaimed", "0003": "unclaimed"}
    assert batch.settled


def test_a_block_that_says_nothing_hands_everything_back(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(2))
    with queue.claim():
        pass
    assert states(backend) == {"0000": "unclaimed", "0001": "unclaimed"}


def test_reading_decides_nothing(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        assert len(batch) == 3
        assert batch
        assert names(batch) == ["0000", "0001", "0002"]
        assert batch[1] in batch
        assert batch[-1].d == "0002"
        assert batch.undecided == batch.jobs
    assert Counter(states(backend).values()) == {"unclaimed": 3}


def test_outcomes_said_outright(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(5))
    with queue.claim() as batch:
        batch.done(batch[0], batch[3])
        batch.release(batch[1])
        batch.fail(batch[2], "broken", retry=False)
        assert names(batch.undecided) == ["0004"]
    assert states(backend) == {"0001": "unclaimed", "0002": "dead", "0004": "unclaimed"}


@pytest.mark.parametrize(("word", "rest"), [("done", {}), ("release", {"0000": "unclaimed", "0002": "unclaimed"})])
def test_without_arguments_the_undecided_are_meant(backend: Backend, word: str, rest: dict[str, str]) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        batch.fail(batch[1], "broken", retry=False)
        getattr(batch, word)()
    assert states(backend) == {**rest, "0001": "dead"}


def test_a_word_said_in_the_loop_is_not_undone_by_moving_on(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(4))
    with queue.claim() as batch:
        for job in batch:
            if job.d == "0001":
                batch.fail(job, "broken", retry=False)
            elif job.d == "0002":
                batch.release(job)
    assert states(backend) == {"0001": "dead", "0002": "unclaimed"}


def test_a_loop_passes_over_what_is_decided(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(4))
    with queue.claim() as batch:
        batch.release(batch[0], batch[2])
        assert [job.d for job in batch] == ["0001", "0003"]
        assert list(batch) == []
    assert states(backend) == {"0000": "unclaimed", "0002": "unclaimed"}


def test_a_later_word_replaces_an_earlier_one(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(4))
    with queue.claim() as batch:
        a, b, c, d = batch.jobs
        batch.done()
        batch.fail(a, "broken", retry=False)
        batch.release(b)
        batch.fail(c, "broken", retry=False)
        batch.done(c)
        batch.fail(d, "broken")
        batch.release(d)
    assert states(backend) == {"0000": "dead", "0001": "unclaimed", "0003": "unclaimed"}
    last = backend.rows()[-1]
    assert (last["attempts"], last["last_error"]) == (0, None)
    assert (queue.report.done, queue.report.released, queue.report.dead, queue.report.retried) == (1, 2, 1, 0)


def test_an_empty_batch_can_be_used_like_any_other(backend: Backend) -> None:
    queue = backend.queue()
    empty = queue.claim()
    with counted(backend.engine) as sent, empty as batch:
        assert list(batch) == []
        batch.done()
        batch.release()
    assert sent == []
    assert batch.settled
    assert batch.lost == ()


def test_a_settled_batch_takes_no_further_word(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(1))
    with queue.claim() as batch:
        [job] = batch
    for word in (batch.settle, batch.done, batch.release, lambda: batch.fail(job, "x"), batch.__enter__):
        with pytest.raises(BatchMisused, match="claim another one"):
            word()
    assert states(backend) == {}


def test_a_batch_can_be_settled_within_its_block(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        for job in batch:
            if job.d == "0001":
                batch.done(job)
                batch.settle()
                break
    assert states(backend) == {"0002": "unclaimed"}


def test_a_loop_over_a_settled_batch_makes_nothing_done(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        for _ in batch:
            if not batch.settled:
                batch.settle()
    assert Counter(states(backend).values()) == {"unclaimed": 3}


def test_a_job_of_another_batch_is_refused_and_nothing_is_decided(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(2))
    with queue.claim(1) as one, queue.claim(1) as other:
        for word in (one.done, one.release, lambda job: one.fail(job, "x")):
            with pytest.raises(BatchMisused, match="give a job that came from it"):
                word(other[0])
            for no_job in (one[0].key, [one[0]], object()):
                with pytest.raises(BatchMisused, match="give a job that came from it"):
                    word(no_job)  # type: ignore[arg-type]
        with pytest.raises(BatchMisused):
            one.done(one[0], other[0])
        assert len(one.undecided) == len(other.undecided) == 1


# --- batches, one after the other --------------------------------------------------------------------------


def test_a_drain_ends_when_nothing_is_left(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(7))
    sizes = []
    for batch in queue.batches(3, drain=True):
        with batch:
            sizes.append(len(batch))
            batch.done()
    assert sizes == [3, 3, 1]
    assert states(backend) == {}


def test_a_claim_of_a_settle_that_no_loop_has_taken_yet_is_not_replaced(backend: Backend) -> None:
    """A pool makes a settle for each owner id under which it has claimed."""
    queue = backend.queue()
    queue.enqueue(jobs(5))
    consumer = queue._consumer
    next_claim = NextClaim(consumer.plans, 1, None, queue._control)
    for batch in [consumer.claim(1, None, next_claim) for _ in range(2)]:
        with batch:
            batch.done()
    assert names(next_claim.claimed.jobs) == ["0002"]
    assert states(backend) == {"0002": "claimed", "0003": "unclaimed", "0004": "unclaimed"}


def test_a_drain_leaves_what_is_not_due_or_not_wanted(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(3))
    for batch in queue.batches(drain=True):
        with batch:
            for job in batch:
                batch.fail(job, "later", retry_in=3600)
    assert Counter(states(backend).values()) == {"unclaimed": 3}


def test_a_batch_that_is_left_open_is_an_error_and_its_jobs_are_handed_back(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(2))
    batches = queue.batches(1, drain=True)
    open_batch = next(batches)
    open_batch.done()
    with pytest.raises(BatchMisused, match="with batch:"):
        next(batches)
    assert open_batch.settled


def test_the_jobs_of_a_batch_left_open_are_anyones_again(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(2))
    told = "outcomes of its jobs were written, and jobs without one were released"
    batches = queue.batches(2, drain=True)
    batch = next(batches)
    batch.done(batch[0])
    with pytest.raises(BatchMisused, match=told):
        next(batches)
    assert states(backend) == {"0001": "unclaimed"}


def test_stop_ends_after_the_batch_in_hand(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(4))
    seen = []
    for batch in queue.batches(1):
        with batch:
            for job in batch:
                seen.append(job.d)
                if job.d == "0001":
                    queue.stop()
    assert seen == ["0000", "0001"]
    assert states(backend) == {"0002": "unclaimed", "0003": "unclaimed"}


def test_stop_wakes_a_queue_that_waits_for_work(backend: Backend) -> None:
    queue = backend.queue()
    waiting = threading.Thread(target=lambda: list(queue.batches(poll=60.0)))
    waiting.start()
    backend.wait_for(lambda: queue.report.claims, "it looks for work")
    queue.stop()
    waiting.join(120)
    assert not waiting.is_alive()


def test_an_idle_queue_finds_new_work_within_its_poll(backend: Backend) -> None:
    queue = backend.queue(liveness=Liveness(session_lock=False))  # so that nobody can call it
    found: list[str] = []

    def consume() -> None:
        for batch in queue.batches(poll=0.05):
            with batch:
                found.extend(job.d for job in batch)

    consumer = threading.Thread(target=consume)
    consumer.start()
    try:
        backend.wait_for(lambda: queue.report.empty_claims >= 5, "it has been idle for some looks")
        backend.queue().enqueue(jobs(3))
        backend.wait_for(lambda: len(found) == 3, "the jobs are done")
    finally:
        queue.stop()
        consumer.join()


def test_drain_asked_for_while_it_runs_ends_it_when_nothing_is_left(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(4))
    done: list[str] = []
    for batch in queue.batches(1, poll=60.0):
        with batch:
            queue.drain()
            done.extend(job.d for job in batch)
    assert done == ["0000", "0001", "0002", "0003"]


@pytest.mark.parametrize("size", [0, "10"])
def test_a_bad_size_is_told_when_batches_is_called_not_at_the_first_batch(anywhere: Backend, size: Any) -> None:
    with pytest.raises(BadArgument):
        anywhere.queue().batches(size)
