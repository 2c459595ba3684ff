"""With `order_by=()` each consumer begins at a random place. A sweep reaches every job, and ends."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, job_table
from claimjobs.claim.strategy import After
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from claimjobs.dialects.inspection import Finding
from claimjobs.statements.find import ends
from tests.backends import Backend
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import JOBS, still, stranger_holds
from tests.conformance.refusals import refusal, refused_before

WAYS: dict[str, dict[str, Any]] = {
    "claims per row": {"claims": "rows"},
    "claims per batch": {"claims": "batches"},
    "transaction": {"hold": "transaction"},
    "advisory": {"hold": "transaction", "locking": AdvisoryLocks()},
}
FREE: dict[str, Any] = {"order_by": ()}


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The values that will be drawn; later ones are the smallest."""
    given: list[int] = []
    monkeypatch.setattr("claimjobs.claim.candidate_range.random.randint", lambda low, _: given.pop(0) if given else low)
    return given


@pytest.fixture
def spread(draws: list[int]) -> None:
    """Each consumer begins at another place."""
    draws += [number for place in (20, 50, 80) for number in (0, place)]


def begun(queue: Queue) -> list[After]:
    """The places after which the claims begin from now on."""
    seen: list[After] = []
    search = queue._consumer.hold._range
    next_request = search.next_request

    def watched(*given: Any) -> Any:
        request = next_request(*given)
        seen.append(request.after)
        return request

    search.next_request = watched  # type: ignore[method-assign,assignment]
    return seen


def has_sweeps(queue: Queue, where: Any = None) -> bool:
    return queue._consumer.plans.plan(where).selection.in_sweeps


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


@pytest.mark.usefixtures("spread")
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
def test_a_lone_consumer_reaches_everything_also_what_came_before_its_place(
    backend: Backend, way: str, draws: list[int]
) -> None:
    draws += [0, 120]
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


def test_a_sweep_goes_from_its_place_to_the_end_and_around(backend: Backend, draws: list[int]) -> None:
    draws += [0, 24, 0, 9]
    queue = still(backend.queue(JOBS, **FREE))
    queue.enqueue(jobs(30))
    assert [taken(queue, 3) for _ in range(2)] == [["0024", "0025", "0026"], ["0027", "0028", "0029"]]
    queue.enqueue(jobs(1, id=90))  # it is for the next sweep
    assert taken(queue, 3) == ["0000", "0001", "0002"]
    assert [taken(queue, 3)[0] for _ in range(7)] == [f"{number:04}" for number in range(3, 24, 3)]
    assert taken(queue, 3) == ["0000"]
    assert taken(queue, 3) == []


@pytest.mark.parametrize("way", ["claims per row", "transaction"])
def test_a_sweep_ends_where_the_server_refuses_a_claim(backend: Backend, draws: list[int], way: str) -> None:
    """Another consumer claims there, too."""
    draws += [0, 24, 0, 9]
    engine = backend.new_engine()
    queue = backend.queue(JOBS, bind=engine, **FREE, **WAYS[way])
    queue.enqueue(jobs(30))
    with refused_before(engine, "FOR ", refusal(backend, "deadlock")):
        assert taken(queue, 3) == ["0024", "0025", "0026"]
    assert taken(queue, 3) == ["0009", "0010", "0011"]


def test_suspects_do_not_end_a_sweep(backend: Backend, draws: list[int]) -> None:
    """A claim of suspects is one of few jobs, though there are many more."""
    draws += [0, 3]
    queue = still(backend.queue(JOBS, **FREE))
    queue.enqueue(jobs(40))
    backend.run("UPDATE jobs SET suspect = 2 WHERE id IN (4, 5)")
    assert [taken(queue, 4) for _ in range(3)] == [["0003"], ["0004"], ["0005", "0006", "0007", "0008"]]


def test_a_job_that_failed_is_found_behind_the_consumer(backend: Backend, draws: list[int]) -> None:
    draws += [0, 5]
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
    """41 jobs are 11 batches of 4, in two parts, at the end of which a claim can find too few."""
    queue, other = backend.queue(JOBS, **FREE, **WAYS[way]), backend.queue()
    other.enqueue({"id": 100 + n, **job} for n, job in enumerate(jobs(40)))
    taken(queue, 4)
    other.enqueue({"id": 1, "d": "late", "e": ""})
    claims = 1
    while "late" not in taken(queue, 4):
        other.enqueue({"id": 1_000 + 4 * claims + n, **job} for n, job in enumerate(jobs(4)))
        claims += 1
        assert claims <= 2 * (11 + 2)


def test_the_jobs_of_a_dead_consumer_are_done_by_the_others(backend: Backend) -> None:
    dead, other = (still(backend.queue(JOBS, bind=backend.new_engine(), **FREE)) for _ in range(2))
    dead.enqueue(jobs(40))
    held = dead.claim(4)  # fewer, if its random place is among the last three
    assert len(drained(other, 4)) == 40 - len(held)
    assert other.reclaim_owner(dead.owner_id) == len(held)
    assert sorted(drained(other, 4)) == sorted(names(held))
    assert backend.rows() == []


def test_after_a_claim_in_vain_a_consumer_by_transaction_goes_on(backend: Backend) -> None:
    """Its transaction is still open then."""
    holder, queue = backend.queue(JOBS, **FREE), backend.queue(JOBS, hold="transaction", **FREE)
    holder.enqueue(jobs(3))
    with stranger_holds(backend, *names_of(3)):
        assert not queue.claim(2)
    assert sorted(drained(queue, 2)) == names_of(3)


def names_of(count: int) -> list[str]:
    return [job["d"] for job in jobs(count)]


@pytest.mark.parametrize("way", ["claims per row", "claims per batch"])
def test_a_claim_ends_though_others_have_locked_more_than_it_reads(
    backend: Backend, way: str, draws: list[int]
) -> None:
    draws += [0, 5]
    queue = still(backend.queue(JOBS, **FREE, **WAYS[way]))
    queue.enqueue(jobs(90))
    with stranger_holds(backend, *(job["d"] for job in jobs(90))):
        assert taken(queue, 1) == []
    with stranger_holds(backend, *(job["d"] for job in jobs(80))):
        backend.wait_for(lambda: taken(queue, 1), "a job that nobody has locked is found")


def test_a_claim_of_few_jobs_goes_on_after_them_though_others_have_locked_more_than_it_reads(
    backend: Backend, draws: list[int]
) -> None:
    draws += [0, 5]
    queue = still(backend.queue(JOBS, **FREE))
    queue.enqueue(jobs(90))
    with stranger_holds(backend, *(f"{number:04}" for number in range(8, 90))):
        with stranger_holds(backend, "0005", "0006"):
            assert taken(queue, 2) == ["0007"]
        assert taken(queue, 2) == ["0000", "0001"]


def test_an_empty_table_and_a_single_job(backend: Backend) -> None:
    queue = still(backend.queue(JOBS, **FREE))
    assert taken(queue, 2) == []
    queue.enqueue(jobs(1))
    assert taken(queue, 2) == ["0000"]
    assert taken(queue, 2) == []
    first = still(backend.queue(JOBS, **FREE))
    queue.enqueue(jobs(1))
    assert taken(first, 1) == ["0000"]


def test_a_place_is_drawn_among_several_priorities_too(backend: Backend) -> None:
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
def test_a_place_is_drawn_among_keys_of_whole_numbers_others_are_claimed_as_before(backend: Backend, kind: str) -> None:
    types, expected = KEYS[kind]
    key = [sa.Column(name, type_, primary_key=True, autoincrement=False) for name, type_ in types.items()]
    table = job_table("others", sa.MetaData(), *key)
    queue = still(backend.queue(table, **FREE))
    rows = [{"a": n % 4, "b": n if kind == "two numbers" else f"b{n:03}"} for n in range(40)]
    queue.enqueue({name: value for name, value in row.items() if name in table.c} for row in rows)
    assert has_sweeps(queue) is expected
    found = [job.key for batch in queue.batches(4, drain=True) for job in all_done(batch)]
    assert len(found) == len(set(found)) == 40


def all_done(batch: Any) -> list[Any]:
    with batch:
        batch.done()
    return list(batch.jobs)


def test_without_the_index_or_with_a_predicate_the_database_chooses_where_to_read(backend: Backend) -> None:
    queue = backend.queue(JOBS, **FREE)
    assert has_sweeps(queue)
    assert not has_sweeps(queue, JOBS.c.d > "")
    assert not has_sweeps(backend.queue(JOBS, where=lambda: JOBS.c.d > "", **FREE))
    assert not has_sweeps(backend.queue(JOBS))
    backend.run("DROP INDEX jobs_claim" + ("" if backend.family == "postgres" else " ON jobs"))
    assert not has_sweeps(backend.bare_queue(JOBS, **FREE))


def test_explain_says_that_any_order_gains_nothing(backend: Backend) -> None:
    queue = backend.queue(JOBS, **FREE)
    queue.enqueue(jobs(30))
    assert index_of(queue) == Finding("index", "ok", "the table has the index that claims read")
    found = index_of(backend.queue(JOBS, where=sa.text("d > ''"), **FREE))
    assert found.verdict == "warning"
    assert "no consumer begins at a random place" in found.says
    assert "leave out --any-order" in found.says


def index_of(queue: Queue) -> Finding:
    return next(finding for finding in queue.explain().findings if finding.check == "index")


def test_the_ends_of_a_sweep_are_read_through_the_index_also_behind_many_jobs_that_are_not_due(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("claimjobs.statements.find.TAIL_JOBS", 50)
    queue = still(backend.queue(JOBS, **FREE))
    queue.enqueue(jobs(100))
    backend.run("UPDATE jobs SET status = 'done'")
    queue.enqueue(jobs(200))
    queue.enqueue(jobs(2_000, run_at=datetime(2100, 1, 1, tzinfo=UTC)))
    backend.analyze()
    statement = ends(queue.roles, queue._consumer.plans.plan(None).selection)
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
