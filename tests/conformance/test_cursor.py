"""Where claims begin: beyond what the last one took, and back at the head in time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.claim.candidate_range import HEAD_PAUSE_FACTOR, LONGEST_HEAD_PAUSE_SECONDS, Cursor
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, ClaimStrategy
from claimjobs.statements.find import Selection, keyset_order_of
from tests.backends import Backend
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import JOBS, still


def begins(queue: Queue) -> list[bool]:
    """Whether each claim from now on begins at the head."""
    seen: list[bool] = []
    search = queue._consumer.hold._range
    next_request = search.next_request

    def watched(size: int, strategy: ClaimStrategy) -> ClaimRequest:
        found = next_request(size, strategy)
        seen.append(found.after is None)
        return found

    search.next_request = watched  # type: ignore[method-assign]
    return seen


def never_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the last look from the head had taken for ever."""
    monkeypatch.setattr("claimjobs.claim.candidate_range.HEAD_PAUSE_FACTOR", 1e9)
    monkeypatch.setattr("claimjobs.claim.candidate_range.LONGEST_HEAD_PAUSE_SECONDS", 1e9)


def taken(queue: Queue, size: int) -> list[str]:
    with queue.claim(size) as batch:
        batch.done()
    return names(batch)


def test_claims_go_on_where_the_last_one_ended(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    never_back(monkeypatch)
    queue = still(backend.queue())
    queue.enqueue(jobs(10))
    seen = begins(queue)
    assert [taken(queue, 3) for _ in range(3)] == [
        ["0000", "0001", "0002"],
        ["0003", "0004", "0005"],
        ["0006", "0007", "0008"],
    ]
    assert seen == [True, False, False]


@pytest.mark.parametrize("hold", ["lease", "transaction"])
def test_claims_go_on_after_jobs_with_results_and_after_dead_ones(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, hold: Literal["lease", "transaction"]
) -> None:
    never_back(monkeypatch)
    queue = backend.queue(on_done="keep", hold=hold)
    queue.enqueue(jobs(10))
    seen = begins(queue)
    with queue.claim(2) as batch:
        batch.done(d="again")
    with queue.claim(2) as batch:
        batch.fail(batch[0], "broken", retry=False)
        batch.done()
    with queue.claim(2) as batch:
        assert names(batch) == ["0004", "0005"]
        batch.release()
    assert names(queue.claim(2)) == ["0004", "0005"]
    assert seen == [True, False, False, True]


def test_what_stands_before_is_found_when_a_claim_falls_short(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_back(monkeypatch)
    queue, other = still(backend.queue()), backend.queue()
    queue.enqueue(jobs(6))
    assert taken(queue, 4) == ["0000", "0001", "0002", "0003"]
    other.enqueue({"d": "urgent", "e": "", "priority": -1})
    assert taken(queue, 4) == ["0004", "0005"]
    assert taken(queue, 4) == ["urgent"]


def test_an_empty_queue_is_called_so_by_a_look_from_the_head(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    never_back(monkeypatch)
    queue, other = still(backend.queue()), backend.queue()
    queue.enqueue(jobs(3))
    assert taken(queue, 3) == ["0000", "0001", "0002"]
    other.enqueue({"d": "urgent", "e": "", "priority": -1})
    assert taken(queue, 3) == ["urgent"]
    assert taken(queue, 3) == []


@pytest.mark.parametrize("kind", ["a smaller key", "a higher priority", "due at last", "handed back"])
def test_a_busy_consumer_finds_what_stands_before_within_its_bound(backend: Backend, kind: str) -> None:
    """The bound is 2 s: here it is shown that the look comes by itself, while there is enough to do elsewhere."""
    queue, other = backend.queue(), backend.queue()
    other.enqueue([{"id": 100 + n, **job} for n, job in enumerate(jobs(50))])
    if kind == "due at last":
        backend.run("UPDATE jobs SET run_at = '2100-01-01' WHERE id = 100")
    if kind == "handed back":
        backend.run("UPDATE jobs SET status = 'claimed', owner_id = 42 WHERE id = 100")
    assert taken(queue, 2)
    late: dict[str, Any] = {"d": "late", "e": ""}
    if kind == "a smaller key":
        other.enqueue({"id": 1, **late})
    elif kind == "a higher priority":
        other.enqueue({"priority": -1, **late})
    else:
        backend.run(
            "UPDATE jobs SET d = 'late', status = 'unclaimed', owner_id = NULL, run_at = '2020-01-01' WHERE id = 100"
        )

    more = itertools.count(1_000)

    def comes() -> bool:
        found = taken(queue, 1)
        if found != ["late"]:
            other.enqueue({"id": next(more), **jobs(1)[0]})  # so that the queue never runs dry
        return found == ["late"]

    backend.wait_for(comes, "what stands before is found")


@pytest.mark.parametrize("knows", ["enqueue", "release", "retry"])
def test_what_this_process_put_before_is_found_at_once(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, knows: str
) -> None:
    never_back(monkeypatch)
    queue = still(backend.queue())
    queue.enqueue(jobs(9))
    if knows == "enqueue":
        assert taken(queue, 3) == ["0000", "0001", "0002"]
        queue.enqueue({"d": "0000", "e": "", "priority": -1})
    else:
        with queue.claim(3) as batch:
            batch.done(*batch.jobs[1:])
            if knows == "release":
                batch.release(batch[0])
            else:
                batch.fail(batch[0], "again", retry_in=0)
    assert taken(queue, 1) == ["0000"]


def test_another_predicate_begins_at_the_head(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    never_back(monkeypatch)
    queue = still(backend.queue())
    queue.enqueue(jobs(6))
    with queue.claim(2, where=sa.text("d >= '0002'")) as batch:
        batch.done()
    assert taken(queue, 2) == ["0000", "0001"]


ORDERS = {
    "default": (None, True),
    "falling": (["-priority", sa.desc("id")], False),  # a piece of text is no column
    "all falling": ([JOBS.c.priority.desc(), JOBS.c.id.desc()], None),
    "mixed": ("-priority", True),
    "mixed twice": (["priority", "-d", "e"], True),
    "may be NULL": ("owner_date", False),
    "an expression": (sa.func.length(JOBS.c.d), False),
    "text": ("d", True),
    "none": ((), None),  # see test_any_order.py
}


@pytest.mark.parametrize("order", ORDERS)
def test_order_is_kept_whether_or_not_it_can_be_entered(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    never_back(monkeypatch)
    order_by, enters = ORDERS[order]
    queue = still(backend.queue(JOBS, order_by=order_by))
    queue.enqueue({**job, "priority": n % 3} for n, job in enumerate(jobs(20)))
    wanted = names_in_order(backend, queue)
    seen = begins(queue)
    claims = 5 if order != "none" else 20  # the last claim before the end of the table may be a small one
    got = [name for _ in range(claims) for name in taken(queue, 4)]
    assert (got == wanted) if order != "none" else (sorted(got) == sorted(wanted))
    if enters is not None:
        assert seen == [True] + [not enters] * 4


@pytest.mark.parametrize("hold", ["lease", "transaction"])
def test_what_stands_before_is_found_in_a_mixed_order_too(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, hold: Literal["lease", "transaction"]
) -> None:
    """Claims cross from one range of the order to the next."""
    never_back(monkeypatch)
    queue, other = backend.queue(JOBS, order_by="-priority", hold=hold), backend.queue()
    if hold == "lease":
        still(queue)
    other.enqueue({**job, "priority": 2 - n // 4} for n, job in enumerate(jobs(12)))
    assert taken(queue, 3) == ["0000", "0001", "0002"]
    assert taken(queue, 3) == ["0003", "0004", "0005"]
    other.enqueue([{"d": name, "e": "", "priority": 1 + (name == "before")} for name in ("before", "after")])
    assert taken(queue, 4) == ["0006", "0007", "after", "0008"]
    assert taken(queue, 4) == ["0009", "0010", "0011"]
    assert taken(queue, 4) == ["before"]
    assert taken(queue, 4) == []


def test_a_column_whose_nulls_are_excluded_is_a_place(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    never_back(monkeypatch)
    queue = still(backend.queue(JOBS, order_by="-last_error", where=JOBS.c.last_error.is_not(None)))
    queue.enqueue({**job, "last_error": job["d"] if n % 2 else None} for n, job in enumerate(jobs(12)))
    seen = begins(queue)
    assert [taken(queue, 3) for _ in range(2)] == [["0011", "0009", "0007"], ["0005", "0003", "0001"]]
    assert seen == [True, False]


@pytest.mark.parametrize("named", [lambda c: c.is_not(None), lambda c: c > 1, lambda c: c <= 1, lambda c: c == 1])
def test_which_predicates_exclude_nulls(named: Callable[[Any], Any]) -> None:
    table = sa.Table("t", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("n", sa.Integer))
    order, id_, n = [table.c.n, table.c.id], table.c.id, table.c.n
    for excluding in (named(n), sa.and_(id_ > 1, sa.and_(sa.text("1 = 0 OR 1 = 1"), named(n)))):
        assert keyset_order_of(Selection(excluding, order)) is not None
    for other in (sa.true(), sa.or_(named(n), id_ > 1), n.is_(None), n.is_not(sa.true()), named(id_)):
        assert keyset_order_of(Selection(other, order)) is None


def names_in_order(backend: Backend, queue: Queue) -> list[str]:
    with backend.engine.connect() as connection:
        order = queue._consumer.plans.selection(None).order
        return list(connection.scalars(sa.select(queue.table.c.d).order_by(*order)))


def test_floats_and_enums_are_no_places() -> None:
    table = sa.Table(
        "t", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("f", sa.Float, nullable=False)
    )
    assert keyset_order_of(Selection(sa.true(), [table.c.id])) is not None
    assert keyset_order_of(Selection(sa.true(), [table.c.f, table.c.id])) is None


def test_the_share_and_the_bound_of_looks_from_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    table = sa.Table("t", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    cursor = Cursor(keyset_order_of(Selection(sa.true(), [table.c.id])))
    job: Any = {"id": 7}
    for took, pause in ((0.01, HEAD_PAUSE_FACTOR * 0.01), (1.0, LONGEST_HEAD_PAUSE_SECONDS), (5.0, 5.0)):
        cursor.learn(ClaimResult([job], 1, 1), ClaimRequest(1, 1), took)
        assert cursor.begin() == {"claimjobs_after_0": 7}
        now += pause - 0.001
        assert cursor.begin() is not None
        now += 0.002
        assert cursor.begin() is None


def test_a_claim_whose_candidates_others_had_goes_on_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    never_back(monkeypatch)
    table = sa.Table("t", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    cursor = Cursor(keyset_order_of(Selection(sa.true(), [table.c.id])))
    job: Any = {"id": 7}
    here = {"claimjobs_after_0": 7}
    cursor.learn(ClaimResult([job] * 2, 2, 2), ClaimRequest(2, 2), 0.1)
    assert cursor.begin() == here
    cursor.learn(ClaimResult([job], 4, 4), ClaimRequest(2, 4, here), 0.1)
    assert cursor.begin() == here
    cursor.learn(ClaimResult([job], 3, 3), ClaimRequest(2, 4, here), 0.1)  # that was all there is
    assert cursor.begin() is None
    cursor.learn(ClaimResult([job] * 2, 2, 2), ClaimRequest(2, 2), 0.1)
    cursor.learn(ClaimResult([], 4, 4), ClaimRequest(2, 4, here), 0.1)  # others had all of it
    assert cursor.begin() is None
