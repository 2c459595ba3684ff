"""A retry that a unique index refuses, because a job with the same values waits, is written when that one is gone."""

from __future__ import annotations

import pytest

from claimjobs import Job, Queue, Retry
from claimjobs.errors import OutcomeRefused
from claimjobs.lease.lease_hold import LeaseHold
from claimjobs.settle import settler
from claimjobs.workers.consumer import consume
from claimjobs.workers.handlers import Handler
from tests.backends import Backend
from tests.conformance.owners import hold_of, owner_row, states, still


def one_waiting_each(backend: Backend, monkeypatch: pytest.MonkeyPatch, wait: float = 0.0) -> Queue:
    """A queue in which only one job with the same `d` may wait. `wait`: seconds until a retry is due."""
    monkeypatch.setattr(settler, "REFUSED_RETRY_SECONDS", 0.1)
    queue = backend.queue(retry=Retry(base=wait))
    if backend.has("partial indexes"):
        backend.run("CREATE UNIQUE INDEX one_waiting ON jobs (d) WHERE status = 'unclaimed'")
    else:
        waiting = "waiting VARCHAR(64) AS (IF(status = 'unclaimed', d, NULL))"
        backend.run(f"ALTER TABLE jobs ADD COLUMN {waiting}, ADD UNIQUE one_waiting (waiting)")
    queue.enqueue({"d": "same", "e": ""})
    return queue


@pytest.mark.parametrize("outcome", ["fail", "release"])
def test_a_refused_retry_is_tried_again(backend: Backend, monkeypatch: pytest.MonkeyPatch, outcome: str) -> None:
    queue = one_waiting_each(backend, monkeypatch)
    with pytest.raises(OutcomeRefused, match=r"one_waiting.*tried again.*let the unique index count claimed"):  # noqa: PT012, SIM117
        with queue.claim() as batch:
            backend.insert("jobs", [{"d": "same", "e": ""}])
            if outcome == "fail":
                batch.fail(batch[0], "broken")
    assert sorted(row["status"] for row in backend.rows()) == ["claimed", "unclaimed"]
    backend.run("DELETE FROM jobs WHERE status = 'unclaimed'")
    backend.wait_for(lambda: backend.rows()[0]["status"] == "unclaimed", "it is written again", 120)
    assert [row["attempts"] for row in backend.rows()] == [int(outcome == "fail")]
    backend.wait_for(lambda: (queue.report.retried + queue.report.released) == 1, "it is counted", 120)


def test_a_consumer_goes_on_beside_a_refused_retry(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = one_waiting_each(backend, monkeypatch, wait=3600.0)
    done: list[str] = []

    def handle(job: Job) -> None:
        if not done and len(backend.rows()) == 1:
            backend.insert("jobs", [{"d": "same", "e": "second"}])
            raise ValueError(job.d)
        done.append(job.e)

    queue.drain()
    consume(queue, Handler(handle, "handle", "job"), size=1)
    assert done == ["second"]
    backend.wait_for(lambda: queue.report.retried == 1, "the retry is written", 120)
    assert [(row["status"], row["attempts"]) for row in backend.rows()] == [("unclaimed", 1)]


def test_a_refused_release_keeps_no_other_job(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at the deadline of a stop, nor when the Queue is closed: its owner stays, for the one job."""
    queue = still(one_waiting_each(backend, monkeypatch))
    queue.enqueue({"d": name, "e": ""} for name in ("other", "third"))
    batch = queue.claim(3)
    assert len(batch) == 3
    backend.insert("jobs", [{"d": "same", "e": "newer"}])
    me, hold = queue.owner_id, hold_of(queue)
    assert hold.release_held() == 2
    assert [(row["d"], row["status"]) for row in backend.rows()] == [
        ("same", "claimed"),
        ("other", "unclaimed"),
        ("third", "unclaimed"),
        ("same", "unclaimed"),
    ]
    queue.close()
    assert owner_row(backend, me) is not None
    backend.run("DELETE FROM jobs WHERE e = 'newer'")
    assert backend.queue().reclaim() == 1
    assert (states(backend), owner_row(backend, me)) == (["unclaimed"] * 3, None)


def test_a_job_that_is_claimed_anew_gets_no_failure_of_its_last_claim(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That could not be written, and would be written now, while another handler works on the job."""
    queue = still(one_waiting_each(backend, monkeypatch))
    hold = hold_of(queue)
    batch = queue.claim()
    backend.insert("jobs", [{"d": "same", "e": ""}])
    batch.fail(batch[0], "broken")
    with pytest.raises(OutcomeRefused):
        batch.settle()
    assert queue.cancel([batch[0].key]) == [batch[0].key]
    backend.run("DELETE FROM jobs WHERE status = 'unclaimed'")
    assert queue.jobs.retry([batch[0].key]) == 1
    with queue.claim() as again:
        backend.wait_for(lambda: _has_written(hold), "nothing is to be written later")
        assert [(row["status"], row["attempts"]) for row in backend.rows()] == [("claimed", 0)]
        again.done()
    assert again.lost == ()
    assert backend.rows() == []


def _has_written(hold: LeaseHold) -> bool:
    hold.maintain()
    return not hold._settling.later
