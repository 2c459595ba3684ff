"""A connection breaks during a commit: whether it happened is asked of the database, and nothing is done twice."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Queue
from claimjobs.errors import BatchRolledBack, ServerUnreachable
from claimjobs.options import Liveness
from tests.backends import Backend
from tests.conformance.connections import answer_lost
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import age, hold_of, owner_row, states, still

both_ways = pytest.mark.parametrize("happened", [True, False], ids=["it happened", "it did not"])


@both_ways
def test_the_answer_to_a_registration_is_lost(backend: Backend, happened: bool) -> None:
    """No owner is left behind that nobody is."""
    engine = backend.new_engine()
    queue = backend.queue(bind=engine)
    queue.enqueue(jobs(1))
    queue.check()
    commits: list[None] = []
    with answer_lost(engine, backend.dialect, happened, lambda: commits.append(None)):
        me = queue.owner_id
    assert commits
    assert [owner.id for owner in queue.stats().owners] == [me]


@both_ways
def test_the_answer_to_a_claim_is_lost(backend: Backend, happened: bool) -> None:
    """No job stays claimed that is in nobody's hand."""
    engine = backend.new_engine()
    queue = still(backend.queue(bind=engine))
    queue.enqueue(jobs(6))
    me, in_hand = queue.owner_id, queue.claim(1)
    with answer_lost(engine, backend.dialect, happened, lambda: None):
        batch = queue.claim(2)
    assert queue.owner_id == me
    assert len(batch) == 2
    claimed = [row["d"] for row in backend.rows() if row["status"] == "claimed"]
    assert claimed == sorted(names(batch) + names(in_hand))
    assert queue.report.transients == {"connection lost": 1}
    for each in (batch, in_hand):
        each.done()
        each.settle()
        assert each.lost == ()
    assert [(row["status"], row["attempts"]) for row in backend.rows()] == [("unclaimed", 0)] * 3


@both_ways
def test_the_answer_to_a_settle_is_lost(backend: Backend, happened: bool) -> None:
    """Nothing is reported lost, nothing is counted or written twice."""
    engine = backend.new_engine()
    queue = still(backend.queue(bind=engine))
    queue.enqueue(jobs(5))
    batch = queue.claim(4)
    decide(batch)
    with answer_lost(engine, backend.dialect, happened, lambda: None):
        batch.settle()
    assert batch.lost == ()
    report = queue.report
    assert (report.done, report.retried, report.released, report.dead, report.lost) == (1, 1, 1, 1, 0)
    assert report.transients == {"connection lost": 1}
    assert [(row["d"], row["status"], row["attempts"]) for row in backend.rows()] == [
        ("0001", "unclaimed", 1),
        ("0002", "unclaimed", 0),
        ("0003", "dead", 1),
        ("0004", "unclaimed", 0),
    ]


def decide(batch: Batch) -> None:
    batch.done(batch[0])
    batch.fail(batch[1], "broken")
    batch.release(batch[2])
    batch.fail(batch[3], "broken for good", retry=False)


@both_ways
def test_where_a_transaction_holds_the_jobs_a_settle_whose_answer_is_lost_is_said_to_be_in_doubt(
    backend: Backend, happened: bool
) -> None:
    """All is committed or nothing. Nobody can ask which: others may have done the jobs meanwhile."""
    engine = backend.new_engine()
    queue = backend.queue(bind=engine, hold="transaction")
    queue.enqueue(jobs(4))
    batch = queue.claim()
    decide(batch)
    with (
        answer_lost(engine, backend.dialect, happened, lambda: None),
        pytest.raises(BatchRolledBack, match="or all of it is committed: the rows of its jobs say which") as raised,
    ):
        batch.settle()
    assert raised.value.kind == BatchRolledBack.UNCONFIRMED
    assert states(backend) == ["unclaimed", "unclaimed", "dead"] if happened else ["unclaimed"] * 4


def not_answered(backend: Backend, happened: bool) -> tuple[Queue, Batch]:
    """A batch of two done jobs: the answer to its settle is lost, and nothing is tried again."""
    engine = backend.new_engine()
    queue = still(backend.queue(bind=engine, liveness=Liveness(patience=0)))
    queue.enqueue(jobs(2))
    batch = queue.claim(2)
    batch.done()
    with answer_lost(engine, backend.dialect, happened, lambda: None), pytest.raises(sa.exc.DBAPIError):
        batch.settle()
    return queue, batch


@both_ways
def test_a_settle_whose_answer_is_lost_can_be_called_again(backend: Backend, happened: bool) -> None:
    """The second call finds out whether the first one is committed."""
    queue, batch = not_answered(backend, happened)
    batch.settle()
    assert (batch.lost, queue.report.done, queue.report.lost) == ((), 2, 0)
    assert backend.rows() == []


def test_what_this_owner_itself_released_meanwhile_is_lost(backend: Backend) -> None:
    queue, batch = not_answered(backend, False)
    assert hold_of(queue).release_held() == 2
    batch.settle()
    assert (batch.lost, queue.report.done, queue.report.lost) == (batch.jobs, 0, 2)
    assert states(backend) == ["unclaimed"] * 2


def test_jobs_of_an_unconfirmed_claim_that_cannot_be_released_now_are_released_later(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim that follows is given to its caller all the same."""
    engine = backend.new_engine()
    queue = still(backend.queue(bind=engine, liveness=Liveness(patience=0)))
    queue.enqueue(jobs(4))
    hold = hold_of(queue)
    with answer_lost(engine, backend.dialect, True, lambda: None), pytest.raises(sa.exc.DBAPIError):
        queue.claim(2)
    with monkeypatch.context() as broken:
        broken.setattr(hold._settling, "commit", fails)
        batch = queue.claim(1)
    assert not hold.owner.sleeper.can_sleep()
    assert (names(batch), states(backend).count("claimed")) == (["0002"], 3)
    hold.maintain()
    assert states(backend) == ["unclaimed", "unclaimed", "claimed", "unclaimed"]
    batch.done()
    batch.settle()
    assert batch.lost == ()


def fails(*_: object, **__: object) -> None:
    raise ServerUnreachable("no answer")


@both_ways
def test_declared_dead_before_a_settle_could_be_tried_again(backend: Backend, happened: bool) -> None:
    """Whether its own commit happened nobody can tell then: all is reported as lost, nothing written twice."""
    engine = backend.new_engine()
    queue, other = still(backend.queue(bind=engine)), still(backend.queue())
    queue.enqueue(jobs(2))
    me, batch = queue.owner_id, queue.claim(2)
    batch.done()

    def dies() -> None:
        age(backend, me)
        backend.wait_for(lambda: (other.reclaim(), owner_row(backend, me) is None)[-1], "it is reclaimed")

    with answer_lost(engine, backend.dialect, happened, dies):
        batch.settle()
    assert batch.lost == batch.jobs
    assert queue.report.lost == 2
    assert queue.owner_id > me
    assert states(backend) == ([] if happened else ["unclaimed"] * 2)


KINDS = pytest.mark.parametrize("claims", ["rows", "batches"])


@KINDS
def test_a_failed_job_that_is_due_at_once_is_charged_once_for_a_lost_answer(backend: Backend, claims: Any) -> None:
    """The settle claims no batch: its second try would find the failed job in that one, and charge it again."""
    engine = backend.new_engine()
    queue = still(backend.queue(bind=engine, claims=claims))
    queue.enqueue(jobs(2))
    with closing(iter(queue.batches(2))) as loop:
        batch = next(loop)
        with answer_lost(engine, backend.dialect, True, lambda: None), batch:
            batch.done(batch[0])
            batch.fail(batch[1], "broken", retry_in=0)
    assert batch.lost == ()
    assert [(row["d"], row["attempts"]) for row in backend.rows()] == [("0001", 1)]


@KINDS
@both_ways
def test_what_others_cancelled_is_lost_whether_the_answer_is_lost_or_not(
    backend: Backend, claims: Any, happened: bool
) -> None:
    engine = backend.new_engine()
    queue = still(backend.queue(bind=engine, claims=claims))
    queue.enqueue(jobs(2))
    batch = queue.claim(2)
    assert backend.queue(claims=claims).cancel([batch[0].key]) == [batch[0].key]
    batch.done()
    with answer_lost(engine, backend.dialect, happened, lambda: None):
        batch.settle()
    assert (batch.lost, queue.report.done, queue.report.lost) == ((batch[0],), 1, 1)
    assert states(backend) == ["dead"]
