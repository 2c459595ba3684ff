"""Columns of the user's that are written with the outcome of a done job: `batch.done(job, result=...)`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Done, Fail, Job, Queue, SideCar, job_table, make, side_car_tables
from claimjobs.dialects.types import Instant
from claimjobs.errors import BadArgument, BatchMisused, BatchRolledBack, ColumnMissing
from claimjobs.workers.handlers import Handler
from tests.backends import Backend
from tests.conformance.owners import declare_dead

SENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TABLE = job_table(
    "parcels",
    sa.MetaData(),
    sa.Column("d", sa.String(20), nullable=False),
    sa.Column("result", sa.String(20)),
    sa.Column("cents", sa.Integer),
    sa.Column("price", sa.Numeric(8, 2)),
    sa.Column("sent_at", Instant()),
    sa.Column("data", sa.LargeBinary(20)),
    sa.Column("answer", sa.JSON),
)
KINDS = pytest.mark.parametrize(
    "kind",
    [
        {},
        pytest.param({"claims": "batches"}, marks=pytest.mark.pair("a claim is one row for the batch")),
        pytest.param({"hold": "transaction"}, marks=pytest.mark.pair("a transaction holds the jobs")),
    ],
    ids=["rows", "batches", "transaction"],
)


def queue_of(backend: Backend, count: int = 5, **options: Any) -> Queue:
    queue = backend.queue(TABLE, **{"on_done": "keep", **options})
    queue.enqueue({"d": f"{number}"} for number in range(count))
    return queue


def rows(backend: Backend) -> dict[str, Any]:
    return {row["d"]: row for row in backend.rows(TABLE)}


@KINDS
def test_each_job_gets_its_values_in_the_statement_of_its_outcome(backend: Backend, kind: dict[str, Any]) -> None:
    queue = queue_of(backend, **kind)
    with queue.claim() as batch:
        one, two, three, four, five = batch.jobs
        batch.done(one, result="sent", answer={"id": [1, "ü"]}, cents=3, sent_at=SENT, data=b"\x00'", price="1.50")
        batch.done(two, result=None, answer=None, cents=None, sent_at=None, data=None, price=None)
        batch.done(three, four, result="it's", cents=-1)
        batch.done(five)
    found = rows(backend)
    assert {row["status"] for row in found.values()} == {"done"}
    assert (found["0"]["result"], found["0"]["answer"], found["0"]["cents"]) == ("sent", {"id": [1, "ü"]}, 3)
    assert (found["0"]["sent_at"], found["0"]["data"], str(found["0"]["price"])) == (SENT, b"\x00'", "1.50")
    assert {found["1"][name] for name in ("result", "cents", "sent_at", "data", "price")} == {None}
    assert [(found[name]["result"], found[name]["cents"]) for name in "234"] == [
        ("it's", -1),
        ("it's", -1),
        (None, None),
    ]


def test_a_column_with_another_name_in_python_is_named_as_in_the_database(backend: Backend) -> None:
    result = sa.Column("result", sa.String(20), key="answer_of_the_handler")
    table = job_table("letters", sa.MetaData(), sa.Column("d", sa.String(20), nullable=False), result)
    backend.make(table)
    queue = backend.bare_queue(table, on_done="keep")
    queue.enqueue({"d": "0"})
    with queue.claim() as batch:
        batch.done(batch[0], result="sent")
    with queue.engine.connect() as connection:
        assert connection.scalars(sa.select(result)).all() == ["sent"]


@KINDS
def test_many_jobs_have_values_of_their_own(backend: Backend, kind: dict[str, Any]) -> None:
    queue = queue_of(backend, 450, **kind)
    for batch in queue.batches(450, drain=True):
        with batch:
            for job in batch:
                batch.done(job, cents=int(job.d))
    assert all(row["cents"] == int(name) for name, row in rows(backend).items())
    assert queue.report.done == 450


def test_the_last_word_counts_and_a_job_that_fails_after_all_has_no_values(backend: Backend) -> None:
    queue = queue_of(backend, 3)
    with queue.claim() as batch:
        batch.done(cents=1)
        batch.done(batch[0], cents=2)
        batch.done(batch[1])
        batch.fail(batch[2], "wrong", retry=False)
    found = rows(backend)
    assert [(found[name]["status"], found[name]["cents"]) for name in "012"] == [
        ("done", 2),
        ("done", None),
        ("dead", None),
    ]


@KINDS
def test_a_value_that_the_database_refuses_fails_its_job_alone(backend: Backend, kind: dict[str, Any]) -> None:
    queue = queue_of(backend, 3, **kind)
    batch = queue.claim()
    for job in batch:
        batch.done(job, result="much too long for it" * (2 if job.d == "1" else 1))
    if "hold" in kind:  # nobody knows which row it was
        with pytest.raises(BatchRolledBack, match="too long"):
            batch.settle()
        assert {(row["status"], row["suspect"]) for row in rows(backend).values()} == {("unclaimed", 3)}
        return
    batch.settle()
    found = rows(backend)
    assert [found[name]["status"] for name in "012"] == ["done", "unclaimed", "done"]
    assert "its outcome cannot be written" in found["1"]["last_error"]
    assert (found["1"]["attempts"], found["1"]["result"]) == (1, None)


def test_a_value_that_cannot_be_sent_fails_its_job_alone(backend: Backend) -> None:
    """SQLAlchemy or the driver finds it out. An expression is no value."""
    queue = queue_of(backend, 3)
    with queue.claim() as batch:
        for job in batch:
            batch.done(job, answer={"at": datetime.now(UTC) if job.d == "1" else None})
        with pytest.raises(BadArgument, match="`done` was given SQL for column 'sent_at'"):
            batch.done(batch[0], sent_at=sa.func.now())
    found = rows(backend)
    assert [found[name]["status"] for name in "012"] == ["done", "unclaimed", "done"]
    assert "its outcome cannot be written" in found["1"]["last_error"]


def test_values_of_a_job_that_was_lost_are_not_written(backend: Backend) -> None:
    queue = queue_of(backend, 2)
    batch = queue.claim()
    declare_dead(backend, queue.owner_id)
    backend.queue(TABLE, on_done="keep").reclaim()
    batch.done(cents=1)
    batch.settle()
    assert len(batch.lost) == 2
    assert {row["cents"] for row in rows(backend).values()} == {None}


@pytest.mark.parametrize(
    "way", ["batch", pytest.param("threads", marks=pytest.mark.pair("a pool writes the columns itself")), "tasks"]
)
def test_a_handler_of_a_job_returns_them(backend: Backend, way: str) -> None:
    def handle(job: Job) -> Done | None:
        if job.d == "3":
            raise Fail("no", retry=False)
        return {"0": Done(result="sent"), "1": Done(nothing=1)}.get(job.d)

    async def ahandle(job: Job) -> Done | None:
        return handle(job)

    queue = queue_of(backend, 4)
    if way == "batch":
        with queue.claim() as batch:
            Handler(handle, "handle", "job").handle(batch)
    else:
        queue.work(handle if way == "threads" else ahandle, concurrency=2, drain=True)
    found = rows(backend)
    assert [found[name]["status"] for name in "0123"] == ["done", "unclaimed", "done", "dead"]
    assert [found[name]["result"] for name in "02"] == ["sent", None]
    assert "column 'nothing' of table 'parcels' is not there: choose one of d, result" in found["1"]["last_error"]


def test_what_cannot_be_written_is_refused_before_anything_is_decided(backend: Backend) -> None:
    queue = queue_of(backend, 2)
    with queue.claim(1) as batch:
        for name, says in (
            ("nothing", "is not there: choose one of d, result"),
            ("status", "has a role"),
            ("id", "role"),
        ):
            with pytest.raises(BadArgument, match=says):
                batch.done(**{name: 1})
        assert len(batch.undecided) == 1
    with pytest.raises(BatchMisused):
        batch.done(cents=1)
    functions: dict[str, Any] = {"they are not kept there": "delete", "on_done is a function": lambda *_: "keep"}
    for why, on_done in functions.items():
        queue = queue_of(backend, 0, on_done=on_done)
        with queue.claim(1) as batch, pytest.raises(BadArgument, match=f"because {why}"):
            batch.done(cents=1)


ORDERS = sa.Table(
    "orders",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("state", sa.String(8)),
    sa.Column("cents", sa.Integer),
)


@pytest.fixture
def orders(backend: Backend) -> Backend:
    ORDERS.create(backend.engine)
    make(backend.engine, side_car_tables(backend.engine, "orders"))
    backend.insert(ORDERS, [{"id": number, "state": "new"} for number in range(1, 5)])
    return backend


def test_a_side_car_writes_into_the_table_what_it_was_told_to_and_nothing_else(orders: Backend) -> None:
    queue = orders.bare_queue("orders", side_car=SideCar(also_writes=("state", "cents")))
    batch = queue.claim()
    one, two, three, four = batch.jobs
    batch.done(one, state="shipped", cents=3)
    batch.done(two, state="shipped")
    batch.fail(three, "wrong", retry=False)
    for name in ("id", "status", "nothing"):
        with pytest.raises(BadArgument, match=f"'{name}'.*choose one of state, cents"):
            batch.done(four, **{name: 1})
    batch.done(four)
    orders.run("DELETE FROM orders WHERE id = 2")
    batch.settle()
    assert len(batch.lost) == 0
    assert [(row["id"], row["state"], row["cents"]) for row in orders.rows(ORDERS)] == [
        (1, "shipped", 3),
        (3, "new", None),
        (4, "new", None),
    ]
    assert {row["id"]: row["status"] for row in orders.rows("orders_claims")} == {1: "done", 3: "dead", 4: "done"}


def test_a_value_that_the_table_refuses_fails_its_job_alone_beside_a_side_car(orders: Backend) -> None:
    queue = orders.bare_queue("orders", side_car=SideCar(also_writes="state"))
    with queue.claim(2) as batch:
        batch.done(batch[0], state="much too long")
        batch.done(batch[1], state="ok")
    assert [row["state"] for row in orders.rows(ORDERS)][:2] == ["new", "ok"]
    assert {row["id"]: row["status"] for row in orders.rows("orders_claims")} == {1: "unclaimed", 2: "done"}


def test_a_side_car_that_names_no_columns_writes_none(orders: Backend) -> None:
    with orders.bare_queue("orders", side_car=True).claim(1) as batch:
        with pytest.raises(BadArgument, match="names none: leave out the columns"):
            batch.done(state="shipped")
        batch.done()
    with pytest.raises(ColumnMissing, match="'nothing'"):
        orders.bare_queue("orders", side_car=SideCar(also_writes=("nothing",))).claim()
    with pytest.raises(BadArgument, match="part of its key"):
        orders.bare_queue("orders", side_car=SideCar(also_writes=("id",))).claim()
