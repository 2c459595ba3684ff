"""Candidates from a replica: it lags, stops and comes back, and no job is claimed twice or left. Real replication."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, make, tables_for
from claimjobs.claim import replica as module
from claimjobs.cli import exits
from claimjobs.errors import ReplicaUnfit, ServerUnreachable
from claimjobs.log_events import REPLICA_LEFT, REPLICA_USED
from claimjobs.options import Liveness
from servers.errors import Unavailable
from servers.replication import Pair, replicated
from tests.backends import FAMILIES, MAY_BE_MISSING, Backend, wait_for
from tests.conformance.jobs import jobs, names
from tests.process.command import ROOT

QUICK = Liveness(lease=2.0)
WAYS: dict[str, dict[str, Any]] = {
    "claims per row": {},
    "claims per batch": {"claims": "batches"},
    "transaction": {"hold": "transaction"},
}


@pytest.fixture(params=FAMILIES, scope="module")
def members(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A primary and its replica."""
    try:
        opened = replicated(request.param)
        both = opened.__enter__()
    except Unavailable as error:
        if request.param in MAY_BE_MISSING:
            pytest.skip(f"no {request.param} server: {error}")
        pytest.fail(f"no {request.param} server: {error}", pytrace=False)
    try:
        yield both
    finally:
        opened.__exit__(None, None, None)


@pytest.fixture
def pair(members: Pair) -> Iterator[Pair]:
    """Both, with the tables of a queue."""
    engine = sa.create_engine(members.primary.url)
    make(engine, tables_for("jobs"))
    members.wait_until_it_follows()
    yield members
    members.reconnect()
    with engine.begin() as connection:
        for table in ("jobs", "claimjobs_owners", "claimjobs_queues", "claimjobs_batches"):
            connection.exec_driver_sql(f"DROP TABLE {table}")
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("DROP TYPE jobs_status")
    engine.dispose()


@pytest.fixture
def queue_at(pair: Pair) -> Iterator[Callable[..., Queue]]:
    """Makes Queues on the primary, with candidates from the replica. They are closed at the end."""
    made: list[Queue] = []

    def new(**options: Any) -> Queue:
        made.append(Queue(pair.primary.url, **{"candidates": pair.replica.url, "liveness": QUICK, **options}))
        return made[-1]

    yield new
    for queue in made:
        queue.close()
        queue.engine.dispose()


def done_by(queue: Queue, size: int = 5) -> list[str]:
    """Work until nothing is due."""
    seen = []
    for batch in queue.batches(size, drain=True):
        with batch:
            seen += names(batch)
            batch.done()
        assert not batch.lost
    return seen


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.event for record in caplog.records if record.name == "claimjobs.replica"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", WAYS)
def test_candidates_are_found_there_and_claimed_once(pair: Pair, queue_at: Callable[..., Queue], way: str) -> None:
    queue, other = queue_at(**WAYS[way]), queue_at(**WAYS[way])
    queue.check()
    queue.enqueue(jobs(60))
    pair.wait_until_it_follows()
    mine, theirs = queue.claim(10), other.claim(10)
    assert queue.report.replica_reads == 1
    assert other.report.replica_reads
    with mine, theirs:
        assert len({*names(mine), *names(theirs)}) == len(mine) + len(theirs)
        mine.done()
        theirs.done()
    seen = [*names(mine), *names(theirs), *done_by(queue), *done_by(other)]
    assert sorted(seen) == [job["d"] for job in jobs(60)]


def test_what_the_replica_lists_too_late_is_not_claimed_and_what_it_lacks_is(
    pair: Pair, queue_at: Callable[..., Queue]
) -> None:
    queue, direct = queue_at(), queue_at(candidates=None)
    queue.enqueue(jobs(10))
    pair.wait_until_it_follows()
    pair.cut_off()
    assert len(done_by(direct)) == 10
    queue.enqueue([{"d": "late", "e": ""}])
    with queue.claim(5) as batch:
        assert queue.report.replica_reads == 1
        assert names(batch) == ["late"]
        batch.done()
    assert not queue.claim(5).jobs


def test_after_two_claims_in_vain_the_replica_is_left_for_a_moment(pair: Pair, queue_at: Callable[..., Queue]) -> None:
    """After one it is not: a claim from the head of the order finds what was just done, as long as it lags.

    Each claim begins at the head here, because an expression gives no cursor.
    """
    queue, direct = queue_at(order_by=sa.text("id + 0")), queue_at(candidates=None)
    queue.enqueue(jobs(2))
    pair.wait_until_it_follows()
    pair.cut_off()
    assert len(done_by(direct)) == 2
    queue.enqueue(jobs(3))
    for reads in (1, 2, 2):
        with queue.claim(1) as batch:
            batch.done()
        assert (len(batch), queue.report.replica_reads) == (1, reads)


def test_a_replica_that_is_too_far_behind_is_left_and_used_again(
    pair: Pair, queue_at: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(module, "MOST_LAG", 0.5)
    monkeypatch.setattr(module, "MEASURE_EVERY", 0.05)
    queue = queue_at()
    queue.enqueue(jobs(40))
    assert queue.owner_id
    pair.wait_until_it_follows()
    queue.claim(1).release()
    assert (queue.report.replica_reads, events(caplog)) == (1, [])
    pair.cut_off()

    def claimed() -> int:
        with queue.claim(1) as batch:
            batch.release()
        return len(batch)

    wait_for(lambda: (claimed(), events(caplog))[1] == [REPLICA_LEFT], "it is left")
    assert "s behind" in caplog.records[-1].getMessage()
    reads = queue.report.replica_reads
    assert claimed() == 1
    assert queue.report.replica_reads == reads
    pair.reconnect()
    wait_for(lambda: (claimed(), events(caplog))[1] == [REPLICA_LEFT, REPLICA_USED], "it is used again", 20)
    assert queue.report.replica_reads > reads


def test_what_cannot_be_a_replica_is_refused(pair: Pair, database: Backend, queue_at: Callable[..., Queue]) -> None:
    with pytest.raises(ReplicaUnfit, match="SELECT on jobs and claimjobs_owners"):
        queue_at(candidates=database.url).check()
    nowhere = sa.make_url(pair.replica.url).set(port=1)
    queue = queue_at(candidates=nowhere)
    with pytest.raises(ServerUnreachable):
        queue.check()
    queue.enqueue(jobs(3))
    assert len(done_by(queue)) == 3
    for options in ({"side_car": True}, {"lock": "advisory"}):
        with pytest.raises(ValueError, match="candidates"):
            queue_at(**options)


def run_of(pair: Pair) -> subprocess.CompletedProcess[str]:
    """`start-processing` until nothing is due."""
    words = ("tests.process.work:whatever", "--consumers", "2", "--per", "job", "--batch-size", "5", "--drain")
    command = [sys.executable, "-m", "claimjobs", "start-processing", *words, "--url", pair.primary.url]
    candidates = {**os.environ, "CLAIMJOBS_CANDIDATES_URL": pair.replica.url}
    return subprocess.run(command, cwd=ROOT, env=candidates, capture_output=True, text=True, timeout=60, check=False)


def test_a_run_that_begins_without_the_replica_is_refused_and_one_that_loses_it_goes_on(
    pair: Pair, queue_at: Callable[..., Queue], caplog: pytest.LogCaptureFixture
) -> None:
    queue = queue_at()
    queue.enqueue(jobs(40))
    pair.wait_until_it_follows()
    ended = run_of(pair)
    assert (ended.returncode, queue.stats().unclaimed) == (0, 0), ended.stderr
    queue.enqueue(jobs(10))
    pair.wait_until_it_follows()
    with queue.claim(3) as batch:
        batch.done()
    assert queue.report.replica_reads
    pair.replica.kill()
    try:
        assert len(done_by(queue)) == 7
        assert events(caplog) == [REPLICA_LEFT]
        ended = run_of(pair)
        assert (ended.returncode, "no connection" in ended.stderr) == (exits.CONNECTION, True), ended.stderr
    finally:
        pair.replica.restart()
