"""Claims per batch in a loop: a settle claims the next batch. Some databases do both in one round trip."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Columns
from claimjobs.errors import NothingDone
from claimjobs.queue.batch_loop import VAIN_BATCHES
from claimjobs.table.definitions import BATCHES_TABLE
from claimjobs.workers import consumer
from claimjobs.workers.handlers import Handler
from tests.backends import Backend
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import declare_dead, still
from tests.conformance.test_batch_claims import (
    KEYS,
    before_each,
    claim_rows,
    make_plain,
    open_their_batch,
    per_batch,
)

LATER = 4
"""The number of a batch at whose end all statements of a loop have been sent, so that they are sent together."""


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_each_kind(backend: Backend, kind: str) -> None:
    rows = make_plain(backend, kind)
    columns = Columns(status=None, owner_id=None)
    queue = backend.bare_queue("plain", claims="batches", columns=columns, on_done="delete")
    seen = []
    for batch in queue.batches(1, drain=True):
        seen += [job.key for job in batch]
        assert claim_rows(backend) == [(queue.owner_id, 1)]
        with batch:
            batch.done()
    assert len(seen) == len(set(seen)) == len(rows)
    assert backend.rows("plain") == []
    assert claim_rows(backend) == []


@pytest.mark.parametrize(("taken", "left"), [([3], [2, 4]), ([2, 3], [4, 5])])
def test_what_another_claim_took_meanwhile_is_left_to_it(backend: Backend, taken: list[int], left: list[int]) -> None:
    """The second statement of the round trip looks at the claim rows when the jobs are locked."""
    if not backend.dialect.pipelines:
        pytest.skip(f"on {backend.name} a loop claims as every claim does")
    engine = backend.new_engine()
    queue = per_batch(backend, bind=engine)
    queue.enqueue(jobs(6))
    keys = [row["id"] for row in backend.rows()]

    def claimed_by_another() -> None:
        with backend.engine.begin() as connection:
            open_their_batch(connection, [keys[number] for number in taken])

    loop = queue.batches(2)
    with before_each(engine, "WITH claimjobs_closed", claimed_by_another), next(loop) as first:
        first.done()
    assert [row["id"] for row in backend.rows()] == keys[2:]
    with next(loop) as second:
        assert [job.key for job in second] == [keys[number] for number in left]
        assert (queue.owner_id, len(left)) in claim_rows(backend)
        second.done()
    assert not second.lost
    loop.close()
    backend.run(f"DELETE FROM {BATCHES_TABLE} WHERE jobs > 0")


@pytest.mark.parametrize("on_done", ["delete", "keep"])
def test_a_job_that_is_gone_is_lost_and_the_others_are_settled(backend: Backend, on_done: Any) -> None:
    queue = per_batch(backend, on_done=on_done)
    queue.enqueue(jobs(20))
    seen, lost = [], []
    for number, batch in zip(count(1), queue.batches(2, drain=True), strict=False):
        seen += names(batch)
        with batch:
            if number == LATER:
                backend.run(f"DELETE FROM jobs WHERE d = '{names(batch)[0]}'")
            batch.done()
        lost += [(number, job["d"]) for job in batch.lost]
    assert sorted(seen) == [f"{number:04}" for number in range(20)]
    assert lost == [(LATER, seen[2 * LATER - 2])]
    assert (queue.report.done, claim_rows(backend)) == (19, [])
    assert len(backend.rows()) == (19 if on_done == "keep" else 0)


def test_an_owner_that_is_declared_dead_goes_on_under_a_new_id(backend: Backend) -> None:
    queue = still(per_batch(backend))
    queue.enqueue(jobs(20))
    owners, seen = [], []
    for number, batch in zip(count(1), queue.batches(2, drain=True), strict=False):
        seen += names(batch)
        owners.append(queue.owner_id)
        with batch:
            if number == LATER:
                declare_dead(backend, queue.owner_id)
            batch.done()
        assert not batch.lost
    assert sorted(seen) == [f"{number:04}" for number in range(20)]
    assert len(set(owners)) == 2
    assert backend.rows() == []
    backend.may_leave_owners = True


def test_a_batch_that_was_reclaimed_meanwhile_is_lost(backend: Backend) -> None:
    queue, other = still(per_batch(backend)), per_batch(backend, bind=backend.new_engine())
    queue.enqueue(jobs(20))
    loop = queue.batches(2)
    for _ in range(LATER):
        batch: Batch = next(loop)
        with batch:
            batch.done()
    late = next(loop)
    assert other.reclaim_owner(queue.owner_id) == 2
    with late:
        late.done()
    assert len(late.lost) == 2
    loop.close()
    assert claim_rows(backend) == []
    assert len(backend.rows()) == 20 - 2 * LATER
    backend.may_leave_owners = True


def test_whoever_listens_hears_each_statement_from_then_on(backend: Backend) -> None:
    """SQLAlchemy, which calls listeners, cannot send two statements together: each would be a transaction."""
    engine = backend.new_engine()
    queue = per_batch(backend, bind=engine)
    queue.enqueue(jobs(20))
    heard: list[str] = []
    seen = []
    for number, batch in zip(count(1), queue.batches(2, drain=True), strict=False):
        seen += names(batch)
        before = len(heard)
        with batch:
            if number == LATER:
                sa.event.listen(engine, "before_cursor_execute", lambda *given: heard.append(given[2]))
            batch.done()
        assert not batch.lost
        assert (len(heard) > before) == (number >= LATER)
    assert sorted(seen) == [f"{number:04}" for number in range(20)]
    assert (backend.rows(), claim_rows(backend)) == ([], [])


def test_a_drain_ends_if_the_handler_releases_all_jobs(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pause it would claim them again at once. Some that are released beside others that are done are no
    reason to pause.
    """
    monkeypatch.setattr(consumer, "FIRST_PAUSE", 0.001)
    queue, pauses = backend.queue(), list[float]()
    monkeypatch.setattr(queue, "wait", pauses.append)
    queue.enqueue(jobs(4))

    def handle(batch: Batch) -> None:
        for job in batch:
            if job.d in {"0002", "0003"}:
                batch.release(job)

    with pytest.raises(NothingDone, match=r"5 batches in a row.*handle released all jobs of the batch"):
        consumer.consume(queue, Handler(handle, "handle", "batch"), drain=True)
    assert len(pauses) == VAIN_BATCHES
    assert [(row["d"], row["status"], row["attempts"]) for row in backend.rows()] == [
        ("0002", "unclaimed", 0),
        ("0003", "unclaimed", 0),
    ]
