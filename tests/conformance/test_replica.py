"""Candidates from a replica: it lags, stops and comes back, and no job is claimed twice or left. Real replication."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry

from claimjobs import Queue, make, tables_for
from claimjobs.claim import replica as module
from claimjobs.cli import exits
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from claimjobs.errors import ConnectionFailed, ReplicaUnfit, ServerUnreachable
from claimjobs.explain import replica as explained_replica
from claimjobs.findings import Finding
from claimjobs.log_events import REPLICA_LEFT, REPLICA_TAKES_WRITES, REPLICA_USED
from claimjobs.metrics import QueueCollector
from claimjobs.options import Liveness
from claimjobs.queue import idle_owner
from claimjobs.table.backend import with_owners
from servers.errors import Unavailable
from servers.proxy import Proxy
from servers.replication import Pair, replicated, run
from tests.backends import Backend, wait_for
from tests.cli.command import claimjobs
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import idle_owner_of
from tests.conformance.replicas import claimed_and_released, counts, done_by, end_sessions, events, run_of
from tests.conformance.test_explain import of
from tests.flavours import FAMILIES, MAY_BE_MISSING

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

    def new(**options: Any) -> Queue:
        made.append(Queue(pair.primary.url, **{"candidates": pair.replica.url, "liveness": QUICK, **options}))
        return made[-1]

    yield new
    for queue in made:
        queue.close()
        queue.engine.dispose()


@pytest.mark.parametrize("way", WAYS)
def test_candidates_are_found_there_and_claimed_once(pair: Pair, queue_at: Callable[..., Queue], way: str) -> None:
    queue, other = queue_at(**WAYS[way]), queue_at(**WAYS[way])
    queue.check()
    metrics = CollectorRegistry()
    metrics.register(QueueCollector(queue))
    queue.enqueue(jobs(60))
    pair.wait_until_it_follows()
    mine, theirs = queue.claim(10), other.claim(10)
    assert queue.report.replica_reads == 1
    assert other.report.replica_reads
    assert counts(metrics) == (1, 1, 0)
    with mine, theirs:
        assert len({*names(mine), *names(theirs)}) == len(mine) + len(theirs)
        mine.done()
        theirs.done()
    seen = [*names(mine), *names(theirs), *done_by(queue), *done_by(other)]
    assert sorted(seen) == [job["d"] for job in jobs(60)]
    claims, by_replica, _ = counts(metrics)
    assert 1 <= by_replica < claims == queue.report.claims  # the last, which is empty, searched the primary


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


def test_jobs_of_an_open_batch_that_the_replica_does_not_show_hide_no_others(
    pair: Pair, queue_at: Callable[..., Queue]
) -> None:
    """Nothing is written in their rows: only the open batches of the primary tell that they are claimed."""
    queue, other, direct = (queue_at(claims="batches", **more) for more in ({}, {}, {"candidates": None}))
    queue.enqueue(jobs(30))
    pair.wait_until_it_follows()
    pair.cut_off()
    everything = [job["d"] for job in jobs(30)]
    held = names(direct.claim(12))
    held += names(queue.claim(5))
    assert held == everything[:17], "the replica shows only claimed ones: the primary was searched"
    held += names(other.claim(20))
    assert held == everything[:20], "the replica shows some that are free"
    assert (other.report.replica_reads, other.report.collisions) == (1, 17)
    assert sorted([*held, *names(other.claim(30)), *names(queue.claim(30))]) == everything


@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
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
    assert (queue.report.replica_reads, queue.report.replica_left, events(caplog)) == (1, 0, [])
    pair.cut_off()

    def claimed() -> int:
        with queue.claim(1) as batch:
            batch.release()
        return len(batch)

    wait_for(lambda: (claimed(), events(caplog))[1] == [REPLICA_LEFT], "it is left")
    assert "s behind" in caplog.records[-1].getMessage()
    reads, by_replica = queue.report.replica_reads, queue.report.replica_claims
    assert claimed() == 1
    assert (queue.report.replica_reads, queue.report.replica_claims, queue.report.replica_left) == (
        reads,
        by_replica,
        1,
    )
    pair.reconnect()
    wait_for(lambda: (claimed(), events(caplog))[1] == [REPLICA_LEFT, REPLICA_USED], "it is used again")
    assert queue.report.replica_reads > reads
    assert queue.report.replica_claims > by_replica


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
    owner = idle_owner_of(queue)
    assert owner is not None
    owner.heartbeat.stop()  # it would notice, too
    end_sessions(pair.primary)
    with queue.claim(2) as batch:
        batch.done()
    assert (len(batch), queue.report.replica_left) == (2, 0)
    assert queue.report.transients["connection lost"] == 1


@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
def test_an_idle_owner_that_could_not_register_at_the_start_does_so_between_claims(
    pair: Pair, queue_at: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its heartbeats the lag is not known, and the replica is not used."""

    def breaks(*given: Any) -> Any:
        end_sessions(pair.primary)
        return with_owners(*given)

    queue = queue_at(hold="transaction")
    queue.enqueue(jobs(10))
    pair.wait_until_it_follows()
    with monkeypatch.context() as patched:
        patched.setattr(idle_owner, "with_owners", breaks)
        assert claimed_and_released(queue) == 1
        assert idle_owner_of(queue) is None
    wait_for(lambda: claimed_and_released(queue) and queue.report.replica_claims, "the replica is used")


def test_a_replica_may_be_the_only_host_among_the_options(pair: Pair, queue_at: Callable[..., Queue]) -> None:
    """Of several hosts one that takes writes is chosen. Of one there is no choice."""
    url = sa.make_url(pair.replica.url)
    named = url._replace(host=None, port=None).update_query_dict({"host": f"{url.host}:{url.port}"})
    queue = queue_at(candidates=named)
    queue.check()
    queue.enqueue(jobs(2))
    pair.wait_until_it_follows()
    queue.claim(1).release()
    assert queue.report.replica_reads == 1


@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
def test_a_replica_that_answers_too_late_is_left_and_explained_so(
    pair: Pair, queue_at: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with Proxy(pair.replica.url) as proxy:
        queue = queue_at(candidates=proxy.url)
        queue.enqueue(jobs(10))
        pair.wait_until_it_follows()
        queue.claim(1).release()
        assert queue.report.replica_reads == 1
        monkeypatch.setattr(module, "LONGEST_READ", 0.2)
        proxy.stall()
        with queue.claim(1) as batch:
            batch.done()
        assert (len(batch), events(caplog)) == (1, [REPLICA_LEFT])
        assert caplog.records[-1].getMessage().endswith("not from the replica: no answer within 0.2 s")
    monkeypatch.setattr(explained_replica, "LONGEST_READ", 0.2)
    with Proxy(pair.replica.url, delay=0.3) as proxy:
        found = of(queue_at(candidates=proxy.url).explain(), "replica")
    says = "the replica for candidates (--candidates-url): no answer within 0.2 s"
    assert (found.verdict, found.says.partition(";")[0]) == ("will not work", says)


@pytest.fixture
def soon_behind(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Half a second is too far behind."""
    importlib.import_module("claimjobs.explain.replica")  # it would keep the other number if it were imported later
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(module, "MOST_LAG", 0.5)
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
    wait_for(lambda: (claimed_and_released(queue), events(caplog))[1] == [REPLICA_LEFT], "it is left")
    assert "does not replicate this database, or is more than 0.5 s behind" in caplog.records[-1].getMessage()
    reads = queue.report.replica_reads
    queue.enqueue([{"d": "late", "e": ""}])
    assert len(done_by(queue)) == 41
    assert queue.report.replica_reads == reads
    queue.enqueue(jobs(1))
    pair.reconnect()
    wait_for(
        lambda: (claimed_and_released(queue), events(caplog))[1] == [REPLICA_LEFT, REPLICA_USED], "it is used again", 20
    )


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
    with Queue(another, "jobs", liveness=QUICK) as other:
        other.enqueue(jobs(40))
        assert other.owner_id
        queue = queue_at(candidates=another)
        queue.check()
        queue.enqueue(jobs(5))
        expected = [REPLICA_TAKES_WRITES, REPLICA_LEFT]
        wait_for(lambda: (claimed_and_released(queue), events(caplog))[1] == expected, "it is left")
        assert "does not replicate this database" in caplog.records[-1].getMessage()
        assert len(done_by(queue)) == 5
    queue.close()
    other.engine.dispose()


def test_the_primary_as_its_own_replica_is_said_once(
    pair: Pair, queue_at: Callable[..., Queue], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    queue = queue_at(candidates=pair.primary.url)
    queue.check()
    queue.enqueue(jobs(10))
    assert len(done_by(queue)) == 10
    assert events(caplog) == [REPLICA_TAKES_WRITES]


def unfit_urls(pair: Pair) -> dict[str, str]:
    url = sa.make_url(pair.replica.url)
    other, title = ("mysql", "MySQL") if url.get_backend_name() == "postgresql" else ("postgresql", "Postgres")
    return {
        "nonsense": "the database URL cannot be read",
        f"{other}://app@127.0.0.1:1/jobs": f"is a {title} server, and the primary is ",
        url.set(database="nowhere").render_as_string(hide_password=False): ": correct the URL",
    }


def is_of_one_kind(pair: Pair, database: Backend) -> bool:
    return (database.family == "postgres") == pair.primary.url.startswith("postgresql")


def test_what_cannot_be_a_replica_is_refused(pair: Pair, database: Backend, queue_at: Callable[..., Queue]) -> None:
    if is_of_one_kind(pair, database):
        with pytest.raises(ReplicaUnfit, match="SELECT on jobs and claimjobs_owners"):
            queue_at(candidates=database.url).check()
    nowhere = sa.make_url(pair.replica.url).set(port=1)
    queue = queue_at(candidates=nowhere)
    with pytest.raises(ServerUnreachable, match=r"^the replica for candidates \(--candidates-url\): .*no connection"):
        queue.check()
    queue.enqueue(jobs(3))
    assert len(done_by(queue)) == 3
    for url, why in unfit_urls(pair).items():
        with pytest.raises(ConnectionFailed, match=why):
            queue_at(candidates=url).check()
    for options in ({"side_car": True}, {"hold": "transaction", "locking": AdvisoryLocks()}):
        with pytest.raises(ValueError, match="candidates"):
            queue_at(**options)


# --- what explain says of it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_explain_says_that_a_claim_searches_there_and_locks_on_the_primary(
    pair: Pair, queue_at: Callable[..., Queue], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue, direct = queue_at(**WAYS[way]), queue_at(candidates=None)
    queue.enqueue(jobs(10))
    pair.wait_until_it_follows()
    explained = queue.explain()
    assert of(explained, "replica").verdict == "ok"
    assert "locks on the primary and checks again there" in of(explained, "replica").says
    assert of(explained, "plan of find on the replica").verdict == of(explained, "plan of lock").verdict == "ok"
    assert of(explained, "replica lag").says.startswith("not known, because no owner writes heartbeats now")
    assert "find on the replica" in {phase.name for phase in explained.phases}
    assert direct.owner_id
    pair.wait_until_it_follows()
    found = of(queue.explain(), "replica lag")
    assert (found.verdict, found.says[:6], found.says[-9:]) == ("ok", "it is ", "than 10 s")
    assert (events(caplog), queue.report.replica_reads, direct.stats().unclaimed) == ([], 0, 10)


@pytest.mark.usefixtures("soon_behind")
@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
def test_explain_warns_of_a_replica_that_is_too_far_behind(pair: Pair, queue_at: Callable[..., Queue]) -> None:
    queue, direct = queue_at(), queue_at(candidates=None, liveness=Liveness(lease=6.0))
    queue.enqueue(jobs(10))
    assert direct.owner_id
    pair.wait_until_it_follows()
    assert of(queue.explain(), "replica lag").verdict == "ok"
    pair.cut_off()

    def lag() -> Finding:
        claimed_and_released(direct)
        return of(queue.explain(), "replica lag")

    wait_for(lambda: lag().verdict == "warning", "it is behind")
    assert "s behind: consumers search on the primary meanwhile" in lag().says
    pair.reconnect()
    wait_for(lambda: lag().verdict == "ok", "it has caught up")


@pytest.mark.usefixtures("soon_behind")
@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
def test_explain_warns_of_another_database(another: str, queue_at: Callable[..., Queue]) -> None:
    queue, direct = queue_at(candidates=another), queue_at(candidates=None)
    queue.enqueue(jobs(10))
    assert direct.owner_id
    wait_for(lambda: of(queue.explain(), "replica lag").verdict == "warning", "it is none of this database")
    explained = queue.explain()
    assert "does not replicate this database" in of(explained, "replica lag").says
    assert of(explained, "replica") == Finding("replica", "warning", module.TAKES_WRITES)


@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
def test_explain_finds_a_replica_that_cannot_be_read_and_all_about_the_primary(
    pair: Pair, database: Backend, queue_at: Callable[..., Queue]
) -> None:
    nowhere = sa.make_url(pair.replica.url).set(port=1).render_as_string(hide_password=False)
    queue_at().enqueue(jobs(10))
    pair.wait_until_it_follows()
    expected = {finding.check for finding in queue_at().explain().findings if "replica" not in finding.check}
    unfit = [(database.url, "SELECT on jobs and claimjobs_owners")] if is_of_one_kind(pair, database) else []
    for url, why in ((nowhere, "no connection"), *unfit):
        explained = queue_at(candidates=url).explain()
        found = of(explained, "replica")
        assert (found.verdict, why in found.says) == ("will not work", True), found
        assert found.says.endswith("without a replica claims search on the primary")
        assert {finding.check for finding in explained.findings} == {*expected, "replica"}
    for url, code, line in (
        (pair.replica.url, exits.OK, "jobs: ok: plan of find on the replica: it "),
        (nowhere, exits.WILL_NOT_WORK, "jobs: will not work: replica: "),
        *((url, exits.WILL_NOT_WORK, why) for url, why in unfit_urls(pair).items()),
    ):
        ended = claimjobs("explain", "--url", pair.primary.url, "--candidates-url", url)
        assert (ended.code, ended.err, line in ended.out) == (code, "", True), ended
        assert "jobs: ok: index: the table has the index that claims read" in ended.out.splitlines()


# --- the command ---------------------------------------------------------------------------------------------


@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
def test_a_run_that_begins_without_the_replica_is_refused_and_one_that_loses_it_goes_on(
    pair: Pair, queue_at: Callable[..., Queue], caplog: pytest.LogCaptureFixture
) -> None:
    queue = queue_at()
    queue.enqueue(jobs(40))
    pair.wait_until_it_follows()
    ended = run_of(pair)
    assert (ended.returncode, queue.stats().unclaimed) == (0, 0), ended.stderr
    assert "candidates read on the replica" in ended.stdout
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
