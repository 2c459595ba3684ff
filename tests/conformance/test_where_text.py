"""Predicates given as a piece of SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import quoted_name

from claimjobs import Queue
from claimjobs.dialects import Lexis
from claimjobs.errors import BadPredicate
from tests.backends import Backend
from tests.conformance.jobs import dead_jobs, jobs, names

ESCAPE = "1=1) or (1=1"


def test_a_predicate_may_be_a_piece_of_sql(backend: Backend) -> None:
    queue = backend.queue(where="d like '%2' or d like '%4'")
    queue.enqueue(jobs(6))
    with queue.claim() as batch:
        assert names(batch) == ["0002", "0004"]


def test_a_piece_of_sql_with_or_does_not_reach_claimed_jobs(backend: Backend) -> None:
    queue = backend.queue(where=sa.text("d = '0000' or d = '0001'"))
    queue.enqueue(jobs(2))
    with queue.claim(1) as first, queue.claim() as second:
        assert names(first) == ["0000"]
        assert names(second) == ["0001"]
        assert not queue.claim()


@pytest.mark.parametrize("written", [str, sa.text, sa.literal_column, lambda text: lambda: text])
@pytest.mark.parametrize("text", [ESCAPE, "1=1; delete from jobs", "1=1 /*", "1=1 -- all", "d = 'a", "(1=1"])
def test_a_text_that_is_not_one_expression_is_refused(
    backend: Backend, written: Callable[[str], Any], text: str
) -> None:
    queue = mixed(backend)
    where = written(text)
    uses: list[Callable[[], Any]] = [
        lambda: backend.bare_queue(where=where).claim(),
        lambda: queue.claim(where=where),
        lambda: queue.purge(0, where=where),
        lambda: queue.purge(0, where=where, dry_run=True),
        lambda: queue.jobs.drop(where=where),
        lambda: queue.jobs.retry(where=where),
        lambda: queue.jobs.count(where, state="dead"),
        lambda: list(dead_jobs(queue, where)),
    ]
    for use in uses:
        with pytest.raises(BadPredicate, match="the predicate is not one whole expression"):
            use()
    assert states(backend) == MIXED


@pytest.mark.parametrize("text", [ESCAPE, "id limit 1; --", "id /*"])
@pytest.mark.parametrize("written", [str, sa.text, sa.literal_column])
def test_an_order_that_is_not_one_expression_is_refused(
    backend: Backend, written: Callable[[str], Any], text: str
) -> None:
    mixed(backend)
    with pytest.raises(BadPredicate, match="the order is not one whole expression"):
        backend.bare_queue(order_by=written(text)).claim()
    assert states(backend) == MIXED


def test_a_piece_of_sql_within_an_expression_stands_in_parentheses(backend: Backend) -> None:
    mixed(backend)
    with backend.bare_queue(where=sa.literal_column("1=1 or 1=1", sa.Boolean)).claim() as batch:
        assert len(batch) == MIXED["unclaimed"]
        batch.release()
    assert states(backend) == MIXED


def test_what_is_neither_text_nor_an_expression_is_named(anywhere: Backend) -> None:
    with pytest.raises(BadPredicate, match="7 is no expression: give SQL as text"):
        anywhere.queue(where=7).claim()
    with pytest.raises(BadPredicate, match="7 is no expression: give the name of a column"):
        anywhere.queue(order_by=[7]).claim()


@pytest.mark.parametrize(
    "escaping",
    [
        sa.column("d").op("<> '') or ('' <>")(sa.literal_column("'x'")),
        sa.not_(sa.column("d").bool_op("<> '') or ('' <>")(sa.literal_column("'x'"))),
    ],
)
def test_an_operator_that_reaches_beyond_itself_is_refused(backend: Backend, escaping: Any) -> None:
    mixed(backend)
    with pytest.raises(BadPredicate, match="the predicate is not one whole expression"):
        backend.bare_queue(where=escaping).claim()
    assert states(backend) == MIXED


def test_an_operator_of_ones_own_is_taken(backend: Backend) -> None:
    mixed(backend)
    operator = "~" if backend.family == "postgres" else "REGEXP"
    with backend.bare_queue(where=sa.column("d").op(operator)(".")).claim() as batch:
        assert len(batch) == MIXED["unclaimed"]
        batch.release()


# --- SQL that no element shows --------------------------------------------------------------------------------


def escaping() -> Any:
    """A predicate that closes the parenthesis around it, and holds for every row."""
    return sa.column(quoted_name("d <> '') or ('' <> 'x'", quote=False), sa.Integer).is_not(None)


class Escaping(sa.ColumnElement[bool]):
    """A construct of a user's own, which does the same; or ends the query that it orders."""

    inherit_cache = True
    type = sa.Boolean()

    def __init__(self, text: str) -> None:
        self.text = text


@compiles(Escaping)
def _escaping(element: Escaping, _compiler: Any, **_: Any) -> str:
    return element.text


@pytest.mark.parametrize("where", [escaping(), sa.not_(escaping()), Escaping(ESCAPE), sa.and_(Escaping(ESCAPE))])
def test_a_construct_that_reaches_beyond_itself_is_refused(backend: Backend, where: Any) -> None:
    queue = mixed(backend)
    uses: list[Callable[[], Any]] = [
        lambda: backend.bare_queue(where=where).claim(),
        lambda: queue.claim(where=where),
        lambda: queue.purge(0, where=where),
        lambda: queue.jobs.drop(where=where),
        lambda: queue.jobs.retry(where=where),
        lambda: queue.jobs.count(where, state="dead"),
    ]
    for use in uses:
        with pytest.raises(BadPredicate, match="the predicate is not one whole expression"):
            use()
    assert states(backend) == MIXED


def test_an_order_by_a_construct_that_reaches_beyond_itself_is_refused(backend: Backend) -> None:
    mixed(backend)
    with pytest.raises(BadPredicate, match="the order is not one whole expression"):
        backend.bare_queue(order_by=Escaping("id) or (1=1")).claim()
    assert states(backend) == MIXED


def test_a_construct_of_ones_own_is_taken(backend: Backend) -> None:
    mixed(backend)
    with backend.bare_queue(where=Escaping("1=1 or 1=1"), order_by=Escaping("id + 1").desc()).claim() as batch:
        assert len(batch) == MIXED["unclaimed"]
        batch.release()


# --- where the check is off: what each statement keeps by itself ------------------------------------------------


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lexis, "flaw", lambda _self, _text: None)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("write", "reached"),
    [
        (lambda queue: queue.jobs.drop(where=escaping()), "dead"),
        (lambda queue: queue.purge(0, where=escaping()), "done"),
        (lambda queue: queue.purge(0, state="dead", where=escaping()), "dead"),
    ],
)
def test_what_deletes_reaches_no_row_in_another_state(
    backend: Backend, write: Callable[[Queue], int], reached: str
) -> None:
    queue = mixed(backend)
    assert write(queue) == MIXED[reached]
    assert states(backend) == MIXED - Counter({reached: MIXED[reached]})


@pytest.mark.usefixtures("unchecked")
def test_a_retry_of_the_dead_reaches_no_row_in_another_state(backend: Backend) -> None:
    queue = mixed(backend)
    before = {row["id"]: row for row in backend.rows() if row["status"] != "dead"}
    assert queue.jobs.retry(where=escaping()) == MIXED["dead"]
    after = {row["id"]: row for row in backend.rows()}
    assert {key: after[key] for key in before} == before


MIXED = Counter({"unclaimed": 2, "claimed": 3, "done": 4, "dead": 5})


def mixed(backend: Backend) -> Queue:
    """Jobs in every state, those that are claimed in a stranger's hand."""
    queue = backend.queue()
    queue.enqueue(jobs(sum(MIXED.values())))
    keys = iter([row["id"] for row in backend.rows()])
    change = "UPDATE jobs SET status = :state, owner_id = :owner, owner_date = '2020-01-01 00:00:00' WHERE id = :key"
    for state, count in MIXED.items():
        for key in islice(keys, count):
            backend.run(change, state=state, owner=7 if state == "claimed" else None, key=key)
    return queue


def states(backend: Backend) -> Counter[str]:
    """How many rows are in each state."""
    return Counter(row["status"] for row in backend.rows())
