"""Candidates from a replica: it lags, stops and comes back, and no job is claimed twice or left. Real replication."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, make, tables_for
from claimjobs.contrib import replica as module
from claimjobs.contrib.replica import LEFT, USED, Replica
from claimjobs.errors import CrossedFork
from claimjobs.options import Liveness
from servers.errors import Unavailable
from servers.proxy import Proxy
from servers.replication import Pair, replicated, run
from servers.server import Server
from tests.backends import KeepingQueue, wait_for
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import owner_of
from tests.flavours import FAMILIES, MAY_BE_MISSING

pytestmark = pytest.mark.one_server("contrib: the rest of the suites runs it on every database")

QUICK = Liveness(lease=2.0)
WAYS: dict[str, dict[str, Any]] = {
    "claims per row": {},
    "claims per batch": {"claims": "batches"},
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
    engine = sa.create_engine(members.primary.url, poolclass=sa.NullPool)
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
def queue_at(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Queue]]:
    """Makes Queues on the primary, with candidates from the replica. They are closed at the end."""
    made: list[Queue] = []
    monkeypatch.setattr(module, "LONGEST_READ", 20.0)  # this machine may be slower than a replica may be

    def new(*, candidates: str | sa.URL | None = pair.replica.url, **options: Any) -> Queue:
        locking = None if candidates is None else Replica(candidates)
        made.append(KeepingQueue(pair.primary.url, locking=locking, **{"liveness": QUICK, **options}))
        return made[-1]

    yield new
    for queue in made:
        queue.close()
        queue.engine.dispose()


def replica_of(queue: Queue) -> Replica:
    found = queue.settings.locking
    assert isinstance(found, Replica)
    return found


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


def claimed_and_released(queue: Queue) -> int:
    with queue.claim(1) as batch:
        batch.release()
    return len(batch)


def end_sessions(server: Server) -> None:
    """End all sessions of other clients in the database of the URL."""
    engine = sa.create_engine(server.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            others = "datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            connection.exec_driver_sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
            return
        others = "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()"
        for number in connection.exec_driver_sql(others).scalars().all():
            connection.exec_driver_sql(f"KILL {number}")


@pytest.mark.parametrize("way", WAYS)
def test_candidates_are_found_there_and_claimed_once(pair: Pair, queue_at: Callable[..., Queue], way: str) -> None:
    queue, other = (queue_at(**WAYS[way], liveness=Liveness()) for _ in range(2))
    queue.check()
    queue.enqueue(jobs(60))
    pair.wait_until_it_follows()
    mine, theirs = queue.claim(10), other.claim(10)
    assert replica_of(queue).reads == 1
    assert replica_of(other).reads
    with mine, theirs:
        assert len({*names(mine), *names(theirs)}) == len(mine) + len(theirs)
        mine.done()
        theirs.done()
    seen = [*names(mine), *names(theirs), *done_by(queue), *done_by(other)]
    assert sorted(seen) == [job["d"] for job in jobs(60)]
    assert replica_of(queue).left == replica_of(other).left == 0


def test_what_the_replica_lists_too_late_is_not_claimed_and_what_it_lacks_is(
    pair: Pair, queue_at: Callable[..., Queue]
) -> None:
    queue, direct = queue_at(liveness=Liveness()), queue_at(candidates=None)
    queue.enqueue(jobs(10))
    pair.wait_until_it_follows()
    pair.cut_off()
    assert len(done_by(direct)) == 10
    queue.enqueue([{"d": "late", "e": ""}])
    with queue.claim(5) as batch:
        assert replica_of(queue).reads == 1
        assert names(batch) == ["late"]
        batch.done()
    assert not queue.claim(5).jobs


def test_jobs_of_a_claim_row_that_the_replica_does_not_show_hide_no_others(
    pair: Pair, queue_at: Callable[..., Queue]
) -> None:
    """Nothing is written in their rows: only the claim rows of the primary tell that they are claimed."""
    given: dict[str, Any] = {"claims": "batches", "liveness": Liveness()}  # so soon the replica is not left
    queue, other, direct = (queue_at(**given, **more) for more in ({}, {}, {"candidates": None}))
    queue.enqueue(jobs(30))
    pair.wait_until_it_follows()
    pair.cut_off()
    everything = [job["d"] for job in jobs(30)]
    held = names(direct.claim(12))
    held += names(queue.claim(5))
    assert held == everything[:17], "the replica shows only claimed ones: the primary was searched"
    held += names(other.claim(20))
    assert held == everything[:20], "the replica shows some that are free"
    assert (replica_of(other).reads, other.report.collisions) == (1, 17)
    assert sorted([*held, *names(other.claim(30)), *names(queue.claim(30))]) == everything


def test_a_replica_that_is_too_far_behind_is_left_and_used_again(
    pair: Pair, queue_at: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(module, "MEASURE_EVERY", 0.05)
    queue = queue_at()
    queue.enqueue(jobs(40))
    assert queue.owner_id
    pair.wait_until_it_follows()
    queue.claim(1).release()
    assert (replica_of(queue).reads, replica_of(queue).left, events(caplog)) == (1, 0, [])
    pair.cut_off()

    def claimed() -> int:
        with queue.claim(1) as batch:
            batch.release()
        return len(batch)

    wait_for(lambda: (claimed(), events(caplog))[1] == [LEFT], "it is left")
    assert "s behind" in caplog.records[-1].getMessage()
    reads = replica_of(queue).reads
    assert claimed() == 1
    assert (replica_of(queue).reads, replica_of(queue).left) == (reads, 1)
    pair.reconnect()
    wait_for(lambda: (claimed(), events(caplog))[1] == [LEFT, USED], "it is used again")
    assert replica_of(queue).reads > reads


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
def test_an_error_of_the_primary_is_not_taken_for_one_of_the_replica(
    pair: Pair, queue_at: Callable[..., Queue], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session ends before a claim that measures the lag, which is then the first to notice."""
    monkeypatch.setattr(module, "MEASURE_EVERY", 0.0)
    queue = queue_at(**WAYS[way])
    queue.enqueue(jobs(10))
    pair.wait_until_it_follows()
    with queue.claim(2) as batch:
        batch.done()
    owner = owner_of(queue)
    assert owner is not None
    owner.stop()  # it would notice, too
    end_sessions(pair.primary)
    with queue.claim(2) as batch:
        batch.done()
    assert (len(batch), replica_of(queue).left) == (2, 0)
    assert queue.report.transients["connection lost"] == 1


def test_a_replica_may_be_the_only_host_among_the_options(pair: Pair, queue_at: Callable[..., Queue]) -> None:
    """Of several hosts one that takes writes is chosen. Of one there is no choice."""
    url = sa.make_url(pair.replica.url)
    named = url._replace(host=None, port=None).update_query_dict({"host": f"{url.host}:{url.port}"})
    queue = queue_at(candidates=named)
    queue.check()
    queue.enqueue(jobs(2))
    pair.wait_until_it_follows()
    queue.claim(1).release()
    assert replica_of(queue).reads == 1


@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
def test_a_replica_that_answers_too_late_is_left(
    pair: Pair, queue_at: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with Proxy(pair.replica.url) as proxy:
        queue = queue_at(candidates=proxy.url)
        queue.enqueue(jobs(10))
        pair.wait_until_it_follows()
        queue.claim(1).release()
        assert replica_of(queue).reads == 1
        monkeypatch.setattr(module, "LONGEST_READ", 0.2)
        proxy.stall()
        with queue.claim(1) as batch:
            batch.done()
        assert (len(batch), events(caplog)) == (1, [LEFT])
        assert caplog.records[-1].getMessage().endswith("not from the replica: no answer within 0.2 s")


@pytest.fixture
def soon_behind(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It is found out soon that a replica is a lease behind."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(module, "MEASURE_EVERY", 0.05)


@pytest.mark.usefixtures("soon_behind")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
def test_a_replica_that_stopped_before_a_consumer_began_is_left(
    pair: Pair, queue_at: Callable[..., Queue], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = queue_at(**WAYS[way])
    queue.enqueue(jobs(40))
    pair.wait_until_it_follows()
    pair.cut_off()
    wait_for(lambda: (claimed_and_released(queue), events(caplog))[1] == [LEFT], "it is left")
    assert "does not replicate this database, or is far behind" in caplog.records[-1].getMessage()
    reads = replica_of(queue).reads
    queue.enqueue([{"d": "late", "e": ""}])
    assert len(done_by(queue)) == 41
    assert replica_of(queue).reads == reads
    queue.enqueue(jobs(1))
    pair.reconnect()
    wait_for(lambda: (claimed_and_released(queue), events(caplog))[1] == [LEFT, USED], "it is used again", 20)


@pytest.fixture
def another(pair: Pair) -> Iterator[str]:
    """The URL of another database, with tables of its own, on the primary."""
    run(pair.primary, "CREATE DATABASE another")
    try:
        url = sa.make_url(pair.primary.url).set(database="another").render_as_string(hide_password=False)
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        make(engine, tables_for("jobs"))
        yield url
    finally:
        run(pair.primary, "DROP DATABASE another")


@pytest.mark.usefixtures("soon_behind")
def test_another_database_with_live_owners_is_left(
    another: str, queue_at: Callable[..., Queue], caplog: pytest.LogCaptureFixture
) -> None:
    with KeepingQueue(another, "jobs", liveness=QUICK) as other:
        other.enqueue(jobs(40))
        assert other.owner_id
        queue = queue_at(candidates=another)
        queue.check()
        queue.enqueue(jobs(5))
        wait_for(lambda: (claimed_and_released(queue), events(caplog))[1] == [LEFT], "it is left")
        assert "does not replicate this database" in caplog.records[-1].getMessage()
        assert len(done_by(queue)) == 5
    queue.close()
    other.engine.dispose()


def test_a_replica_that_a_fork_took_along_is_its_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child would read from the socket on which the parent waits for its own rows."""
    taken: Any = Replica("postgresql://jobs@127.0.0.1/jobs")
    monkeypatch.setattr("os.getpid", lambda: 1)
    with pytest.raises(CrossedFork):
        taken.rows(None, None, None, {})
    taken.close()


def test_a_replica_that_cannot_be_read_is_left_and_a_transaction_needs_none(
    pair: Pair, queue_at: Callable[..., Queue], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    url = sa.make_url(pair.replica.url)
    for unfit in (url.set(port=1), url.set(database="nowhere")):
        queue = queue_at(candidates=unfit)
        queue.check()
        queue.enqueue(jobs(3))
        assert len(done_by(queue)) == 3
        assert replica_of(queue).left == 1
    with pytest.raises(ValueError, match="locking=Replica needs hold='lease'"):
        queue_at(hold="transaction")


def test_the_parameter_that_was_dropped_names_what_replaces_it(pair: Pair) -> None:
    with pytest.raises(TypeError, match=r"use locking=Replica\(url\) of claimjobs.contrib.replica"):
        Queue(pair.primary.url, candidates=pair.replica.url)  # type: ignore[arg-type]
