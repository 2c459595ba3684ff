"""With `order_by=()` each consumer begins in regions of its own. A sweep reaches every job, and ends."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, job_table
from claimjobs.batch.hold import Hold
from claimjobs.claim.regions import MOST, Region, divided, shuffled
from claimjobs.claim.strategy import After
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from claimjobs.database.connection import Connector
from claimjobs.findings import Finding
from claimjobs.statements.find import ends
from tests.backends import Backend
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import JOBS, still, stranger_holds

WAYS: dict[str, dict[str, Any]] = {
    "claims per row": {"claims": "rows"},
    "claims per batch": {"claims": "batches"},
    "transaction": {"hold": "transaction"},
    "advisory": {"hold": "transaction", "locking": AdvisoryLocks()},
}
FREE: dict[str, Any] = {"order_by": ()}


@pytest.fixture(autouse=True)
def _same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("claimjobs.claim.regions.random", random.Random(7))


def begun(queue: Queue) -> list[After]:
    """The places after which the claims begin from now on."""
    seen: list[After] = []
    search = queue._parts.hold._range
    next_request = search.next_request

    def watched(*given: Any) -> Any:
        request = next_request(*given)
        seen.append(request.after)
        return request

    search.next_request = watched  # type: ignore[method-assign,assignment]
    return seen


def has_regions(queue: Queue, where: Any = None) -> bool:
    return queue._parts.plan(where).selection.in_regions


def taken(queue: Queue, size: int) -> list[str]:
    with queue.claim(size) as batch:
        batch.done()
    return names(batch)


def drained(queue: Queue, size: int) -> list[str]:
    """The jobs of all batches until nothing is due."""
    found: list[str] = []
    for batch in queue.batches(size, drain=True):
        with batch:
            found += names(batch)
            batch.done()
    return found


@pytest.mark.parametrize("way", WAYS)
def test_no_two_consumers_read_the_same_head(backend: Backend, way: str) -> None:
    queues = [backend.queue(JOBS, bind=backend.new_engine(), **FREE, **WAYS[way]) for _ in range(3)]
    queues[0].enqueue(jobs(90))
    places = [begun(queue) for queue in queues]
    batches = [queue.claim(2) for queue in queues]
    assert [queue.report.collisions for queue in queues] == [0, 0, 0]
    begins = [place[0] for place in places]
    assert None not in begins
    assert len({tuple(place.values()) for place in begins if place}) == 3
    found = {name for batch in batches for name in names(batch)}
    assert len(found) == 6
    for batch in batches:
        with batch:
            batch.release()
    assert sorted(name for queue in queues for name in drained(queue, 10)) == [job["d"] for job in jobs(90)]


@pytest.mark.parametrize("way", WAYS)
def test_a_lone_consumer_reaches_everything_also_what_came_before_its_place(backend: Backend, way: str) -> None:
    queue, other = backend.queue(JOBS, **FREE, **WAYS[way]), backend.queue()
    other.enqueue({"id": 100 + n, **job} for n, job in enumerate(jobs(40)))
    places = begun(queue)
    first = taken(queue, 4)
    assert places[0] is not None
    other.enqueue([{"id": n, "d": f"before {n}", "e": ""} for n in (1, 2, 3)])
    rest = drained(queue, 4)
    assert len(rest) == 39
    assert {*first, *rest} == {*(job["d"] for job in jobs(40)), "before 1", "before 2", "before 3"}
    assert None in places


def test_claims_go_on_within_a_region_and_from_the_last_job_to_the_next_region(
    backend: Backend, monkeypatch: Any
) -> None:
    regions = [Region(None, (0, 3)), Region((0, 3), (0, 6)), Region((0, 6), (0, 10))]
    monkeypatch.setattr("claimjobs.claim.regions.shuffled", lambda *_: [*regions])
    queue = still(backend.queue(JOBS, **FREE))
    queue.enqueue(jobs(10))
    assert [taken(queue, 3) for _ in range(4)] == [
        ["0006", "0007", "0008"],
        ["0009"],
        ["0003", "0004", "0005"],
        ["0000", "0001", "0002"],
    ]
    assert taken(queue, 3) == []


def test_regions_that_others_have_done_are_not_visited(backend: Backend, monkeypatch: Any) -> None:
    """Each claim there would begin at the first job that is left, and so would those of all other consumers."""
    ends = [(0, end) for end in range(10, 101, 10)]
    regions = [Region(begin, end) for begin, end in zip([None, *ends], ends, strict=False)]
    monkeypatch.setattr("claimjobs.claim.regions.shuffled", lambda *_: regions[::-1])
    queue = still(backend.queue(JOBS, **FREE))
    queue.enqueue(jobs(100))
    places = begun(queue)
    assert taken(queue, 2) == ["0000", "0001"]
    backend.run("DELETE FROM jobs WHERE id BETWEEN 3 AND 75")
    found = [name for _ in range(12) for name in taken(queue, 2)]
    assert [place["claimjobs_after_1"] if place else None for place in places[:3]] == [None, 2, 70]
    assert sorted(found) == [f"{number:04}" for number in range(75, 99)]


def test_suspects_do_not_hide_the_regions_behind_them(backend: Backend, monkeypatch: Any) -> None:
    """A claim of suspects is one of few jobs, though there are many more."""
    regions = [Region(None, (0, 10)), Region((0, 10), (0, 20)), Region((0, 20), (0, 40))]
    monkeypatch.setattr("claimjobs.claim.regions.shuffled", lambda *_: regions[::-1])
    queue = still(backend.queue(JOBS, **FREE))
    queue.enqueue(jobs(40))
    backend.run("UPDATE jobs SET suspect = 2 WHERE id <= 2")
    places = begun(queue)
    assert taken(queue, 8) == ["0000"]
    assert taken(queue, 8) == ["0001"]
    while taken(queue, 8):
        pass
    assert [place["claimjobs_after_1"] if place else None for place in places[:6]] == [None, None, None, 10, 18, 20]


def test_a_job_that_failed_is_found_behind_the_consumer(backend: Backend) -> None:
    queue = still(backend.queue(JOBS, **FREE))
    queue.enqueue(jobs(40))
    with queue.claim(4) as batch:
        failed = batch[0]
        batch.done(*batch.jobs[1:])
        batch.fail(failed, "again", retry_in=0)
    rest = drained(queue, 4)
    assert failed.d in rest
    assert len(rest) == 37


@pytest.mark.parametrize("way", ["claims per row", "claims per batch"])
def test_no_backlog_however_endless_keeps_a_job_waiting_for_more_than_two_sweeps(backend: Backend, way: str) -> None:
    """41 jobs are 11 batches of 4, in 2 regions at most, at the end of which a claim can find too few."""
    queue, other = backend.queue(JOBS, **FREE, **WAYS[way]), backend.queue()
    other.enqueue({"id": 100 + n, **job} for n, job in enumerate(jobs(40)))
    taken(queue, 4)
    other.enqueue({"id": 1, "d": "late", "e": ""})
    claims = 1
    while "late" not in taken(queue, 4):
        other.enqueue({"id": 1_000 + 4 * claims + n, **job} for n, job in enumerate(jobs(4)))
        claims += 1
        assert claims <= 2 * (11 + 2)


def test_the_regions_of_a_dead_consumer_are_done_by_the_others(backend: Backend) -> None:
    dead, other = (still(backend.queue(JOBS, bind=backend.new_engine(), **FREE)) for _ in range(2))
    dead.enqueue(jobs(40))
    held = dead.claim(4)
    assert len(drained(other, 4)) == 36
    assert other.reclaim_owner(dead.owner_id) == 4
    assert sorted(drained(other, 4)) == sorted(names(held))
    assert backend.rows() == []


def test_after_a_claim_in_vain_a_consumer_by_transaction_chooses_a_region_too(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction is still open then."""
    holder, queue = backend.queue(JOBS, **FREE), backend.queue(JOBS, hold="transaction", **FREE)
    holder.enqueue(jobs(3))
    holder = still(holder)
    steps: list[str] = []
    choose = Hold._choose_region

    def choose_region(*given: Any) -> None:
        steps.append("begun")
        choose(*given)
        steps.append("chosen")

    monkeypatch.setattr(Hold, "_choose_region", choose_region)
    with stranger_holds(backend, *names_of(3)):
        assert not queue.claim(2)
    assert steps.count("begun") > 2
    assert steps == ["begun", "chosen"] * steps.count("begun")


def names_of(count: int) -> list[str]:
    return [job["d"] for job in jobs(count)]


def test_a_claim_ends_though_others_have_locked_more_than_it_reads(backend: Backend) -> None:
    queue = still(backend.queue(JOBS, **FREE))
    queue.enqueue(jobs(90))
    with stranger_holds(backend, *(job["d"] for job in jobs(90))):
        assert taken(queue, 1) == []
    with stranger_holds(backend, *(job["d"] for job in jobs(80))):
        backend.wait_for(lambda: taken(queue, 1), "a job that nobody has locked is found")


def test_an_empty_table_and_a_single_job(backend: Backend) -> None:
    queue = still(backend.queue(JOBS, **FREE))
    assert taken(queue, 2) == []
    queue.enqueue(jobs(1))
    assert taken(queue, 2) == ["0000"]
    assert taken(queue, 2) == []
    first = still(backend.queue(JOBS, **FREE))
    queue.enqueue(jobs(1))
    assert taken(first, 1) == ["0000"]


def test_jobs_of_several_priorities_lie_in_regions_too(backend: Backend) -> None:
    queue = still(backend.queue(JOBS, **FREE))
    queue.enqueue({**job, "priority": n % 3} for n, job in enumerate(jobs(60)))
    places = begun(queue)
    assert sorted(drained(queue, 5)) == [job["d"] for job in jobs(60)]
    assert len({place["claimjobs_after_0"] for place in places if place}) > 1


KEYS: dict[str, tuple[dict[str, Any], bool]] = {
    "two numbers": ({"a": sa.Integer, "b": sa.BigInteger}, True),
    "a number and a text": ({"a": sa.Integer, "b": sa.String(20)}, False),
    "a text": ({"b": sa.String(20)}, False),
}


@pytest.mark.parametrize("kind", KEYS)
def test_regions_are_for_keys_of_whole_numbers_others_are_claimed_as_before(backend: Backend, kind: str) -> None:
    types, expected = KEYS[kind]
    key = [sa.Column(name, type_, primary_key=True, autoincrement=False) for name, type_ in types.items()]
    table = job_table("others", sa.MetaData(), *key)
    queue = still(backend.queue(table, **FREE))
    rows = [{"a": n % 4, "b": n if kind == "two numbers" else f"b{n:03}"} for n in range(40)]
    queue.enqueue({name: value for name, value in row.items() if name in table.c} for row in rows)
    assert has_regions(queue) is expected
    found = [job.key for batch in queue.batches(4, drain=True) for job in all_done(batch)]
    assert len(found) == len(set(found)) == 40


def all_done(batch: Any) -> list[Any]:
    with batch:
        batch.done()
    return list(batch.jobs)


def test_without_the_index_or_with_a_predicate_the_database_chooses_where_to_read(backend: Backend) -> None:
    queue = backend.queue(JOBS, **FREE)
    assert has_regions(queue)
    assert not has_regions(queue, JOBS.c.d > "")
    assert not has_regions(backend.queue(JOBS, where=lambda: JOBS.c.d > "", **FREE))
    assert not has_regions(backend.queue(JOBS))
    backend.run("DROP INDEX jobs_claim" + ("" if backend.family == "postgres" else " ON jobs"))
    assert not has_regions(backend.bare_queue(JOBS, **FREE))


def test_explain_says_whether_any_order_gains_something(backend: Backend) -> None:
    queue = backend.queue(JOBS, **FREE)
    queue.enqueue(jobs(30))
    found = {finding.check: finding for finding in queue.explain().findings}
    assert (found["regions"].verdict, found["index"].verdict) == ("ok", "ok")
    found = {
        finding.check: finding for finding in backend.queue(JOBS, where=sa.text("d > ''"), **FREE).explain().findings
    }
    assert found["regions"].verdict == "warning"
    assert "leave out --any-order" in found["regions"].says
    assert found["index"] == Finding("index", "ok", "the table has the index that claims read")
    assert "regions" not in {finding.check for finding in backend.queue(JOBS).explain().findings}


def test_the_ends_of_a_sweep_are_read_through_the_index_also_behind_many_jobs_that_are_not_due(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("claimjobs.statements.find.TAIL", 50)
    queue = still(backend.queue(JOBS, **FREE))
    queue.enqueue(jobs(100))
    backend.run("UPDATE jobs SET status = 'done'")
    queue.enqueue(jobs(200))
    queue.enqueue(jobs(2_000, run_at=datetime(2100, 1, 1, tzinfo=UTC)))
    backend.analyze()
    statement = ends(queue.roles, queue._parts.plan(None).selection)
    with backend.engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(statement)]
        assert sorted(rows) == [(0, 101, 1), (0, 2_300, 0)]
        assert backend.rows_read(connection, statement, {}) < 400
    places = begun(queue)
    assert len(drained(queue, 50)) == 200
    assert places[:2] == [None, {"claimjobs_after_0": 0, "claimjobs_after_1": 150}]


def test_a_batch_is_settled_though_the_ends_of_the_next_sweep_cannot_be_read(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = still(backend.queue(JOBS, **FREE))
    queue.enqueue(jobs(4))
    refused: Any = sa.select(sa.column("nothing")).select_from(queue.table)
    monkeypatch.setattr("claimjobs.batch.hold.ends", lambda *_: refused)
    assert sorted(drained(queue, 2)) == [job["d"] for job in jobs(4)]
    assert queue.report.done == 4


@pytest.mark.parametrize(
    ("first", "last", "size"),
    [((1,), (1_000_000,), 100), ((0, 5), (0, 900), 10), ((3, 80), (7, 20), 1), ((4,), (4,), 1), ((1,), (50,), 100)],
)
def test_regions_follow_one_another_from_the_head_to_the_last_job(first: Any, last: Any, size: int) -> None:
    regions = divided(first, last, size)
    ordered = sorted(regions, key=lambda region: region.end)
    assert ordered[0].begin is None
    assert ordered[-1].end == last
    assert all(one.end == following.begin for one, following in itertools.pairwise(ordered))
    assert all(first <= region.end <= last for region in regions)
    assert len(regions) <= MOST
    if size == 100 and last == (1_000_000,):
        assert len(regions) == MOST
        assert shuffled(regions) != ordered


def test_a_consumer_on_one_of_several_primaries_begins_with_the_regions_of_its_share() -> None:
    regions = divided((1,), (999_999,), 100, shares=3)
    for number in range(3):
        order = shuffled(regions, number)
        own = [region for region in order if region.share == number]
        assert order[-len(own) :] == own
        assert max(region.end for region in own) == (333_333 * (number + 1),)
        assert set(order) == set(regions)


@pytest.mark.parametrize(
    ("first", "last", "ends"),
    [((1,), (30,), [(10,), (20,), (30,)]), ((1,), (2,), [(1,), (2,)]), ((4,), (4,), [(4,)]), ((0, 1), (2, 9), None)],
)
def test_few_jobs_are_divided_into_shares_as_well(first: Any, last: Any, ends: Any) -> None:
    regions = divided(first, last, 100, shares=3)
    assert [region.end for region in regions] == (ends or [(0, 9), (1, 9), (2, 9)])
    assert len({region.share for region in regions}) == len(regions)


def test_on_several_primaries_a_consumer_does_its_share_first_and_then_helps_where_jobs_are_left(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No claim begins where others have done all: it would go on to jobs that another one claims at this moment."""
    monkeypatch.setattr(Connector, "place_among_primaries", lambda _: (1, 3))
    queue = still(backend.queue(JOBS, **FREE))
    queue.enqueue(jobs(30))
    places = begun(queue)
    assert taken(queue, 5) + taken(queue, 5) == [f"{number:04}" for number in range(10, 20)]
    backend.run("DELETE FROM jobs WHERE id > 20 OR id < 6")
    assert sorted(drained(queue, 3)) == [f"{number:04}" for number in range(5, 10)]
    assert [place["claimjobs_after_1"] if place else None for place in places[:3]] == [10, 15, None]
    assert 20 not in [place["claimjobs_after_1"] for place in places if place]


def test_after_a_refusal_a_claim_is_tried_in_another_region(backend: Backend, monkeypatch: Any) -> None:
    """A consumer on another primary may claim in this one, too. The rest of the region is visited last."""
    regions = [Region(None, (0, 3)), Region((0, 3), (0, 6)), Region((0, 6), (0, 10))]
    monkeypatch.setattr("claimjobs.claim.regions.shuffled", lambda *_: [*regions])
    queue = still(backend.queue(JOBS, **FREE))
    queue.enqueue(jobs(10))
    strategy = queue._parts.plan(None).strategy
    refuse_once(monkeypatch, backend, strategy)
    assert [taken(queue, 3) for _ in range(2)] == [["0003", "0004", "0005"], ["0000", "0001", "0002"]]
    assert sorted(taken(queue, 3) + taken(queue, 3)) == ["0006", "0007", "0008", "0009"]


def refuse_once(monkeypatch: Any, backend: Backend, strategy: Any) -> None:
    """Let the database refuse the next claim, as if its commit met another one."""
    claim = strategy.claim

    def refused(connection: sa.Connection, *given: Any) -> Any:
        monkeypatch.setattr(strategy, "claim", claim)
        code = next(iter(backend.dialect.errors.transient))
        raise sa.exc.OperationalError("", None, Refused(code))

    monkeypatch.setattr(strategy, "claim", refused)


class Refused(Exception):
    """An error of a driver of either family."""

    @property
    def sqlstate(self) -> Any:
        return self.args[0]

    pgcode = sqlstate
