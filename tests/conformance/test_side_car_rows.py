"""A side-car: which rows are jobs, and by which keys they are named."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from claimjobs import Columns
from claimjobs.dialects.types import Instant
from claimjobs.errors import KeyUnfit
from tests.backends import Backend, Clock
from tests.conformance.jobs import dead_jobs
from tests.conformance.orders import (
    LATER,
    ORDERS,
    beside,
    claims,
    do_all,
    keys,
    orders,
)

# --- which rows -------------------------------------------------------------------------------------------------


def test_a_predicate_names_the_columns_of_the_table_plainly(backend: Backend) -> None:
    queue = orders(backend, where=sa.text("id > 2 AND status = 'new' OR id = 1"))
    assert keys(queue.claim(3)) == [1, 3, 4]
    assert keys(queue.claim(9, where=ORDERS.c.customer == "c0")) == [6, 9]
    queue.check()


def test_rows_come_in_the_order_that_is_asked_for(backend: Backend) -> None:
    queue = orders(backend, 6, order_by=[ORDERS.c.customer.desc(), ORDERS.c.id])
    assert keys(queue.claim(4)) == [2, 5, 1, 4]


def test_what_is_enqueued_is_a_row_of_the_users_table(backend: Backend) -> None:
    queue = orders(backend, 0)
    assert queue.enqueue([{"id": 7, "customer": "new"}, {"id": 8, "customer": "new"}]) == 2
    assert queue.payload == ("customer", "status")
    assert do_all(queue) == [7, 8]


def test_the_counts_are_of_rows_with_a_claim_and_without(backend: Backend) -> None:
    queue = orders(backend, 10)
    with queue.claim(6) as batch:
        batch.done(batch[0])
        batch.fail(batch[1], "no", retry=False)
        batch.fail(batch[2], "later")
    queue.claim(2)
    stats = queue.stats()
    assert (stats.unclaimed, stats.claimed, stats.done, stats.dead) == (6, 2, 1, 1)
    assert (stats.left, stats.owners[0].jobs) == (8, 2)


def test_a_claim_whose_row_is_gone_is_no_work_and_in_nobodys_way(backend: Backend) -> None:
    queue = orders(backend, 4)
    with queue.claim(3) as batch:
        batch.fail(batch[0], "no", retry=False)
        batch.done(batch[1])
    backend.run("DELETE FROM orders WHERE id < 4")
    stats = queue.stats()
    assert (stats.unclaimed, stats.claimed, stats.done, stats.dead) == (1, 0, 0, 0)
    assert queue.backlog().dead == queue.jobs.count(state="dead") == queue.jobs.retry() == queue.jobs.drop([1]) == 0
    assert keys(dead_jobs(queue)) == list(queue.jobs.show([1])) == []
    assert do_all(queue) == [4]
    assert claims(backend) == {1: "dead", 2: "done", 4: "done"}


def test_a_job_whose_row_is_gone_is_counted_while_it_is_held(backend: Backend) -> None:
    queue = orders(backend, 2)
    with queue.claim(2):
        backend.run("DELETE FROM orders WHERE id = 1")
        stats = queue.stats()
        assert (stats.claimed, stats.owners[0].jobs) == (2, 2)


def test_a_failed_job_is_not_due_before_its_next_attempt(backend: Backend) -> None:
    """It waits by the run_at of the side-car."""
    queue = orders(backend, 4)
    with queue.claim(2) as batch:
        batch.fail(batch[0], "later", retry_in=3600)
        batch.fail(batch[1], "at once", retry_in=0)
    stats, backlog = queue.stats(), queue.backlog()
    assert (stats.unclaimed, stats.due, stats.oldest) == (4, 3, None)
    assert (backlog.unclaimed, backlog.due, backlog.oldest) == (4, 3, None)


def test_a_failed_job_that_waits_by_the_side_car_is_not_the_oldest_that_is_due(backend: Backend, clock: Clock) -> None:
    number, due = sa.Column("id", sa.Integer, primary_key=True), sa.Column("due", Instant, nullable=False)
    parcels = sa.Table("parcels", sa.MetaData(), number, due)
    parcels.create(backend.engine)
    backend.insert(parcels, [{"id": 1, "due": clock.now - LATER}, {"id": 2, "due": clock.now + LATER}])
    queue = beside(backend, parcels, Columns(run_at="due"), now=clock.sql)
    with queue.claim(1) as batch:
        batch.fail(batch[0], "later", retry_in=600)
    stats, backlog = queue.stats(), queue.backlog()
    assert (stats.unclaimed, stats.due, stats.oldest) == (2, 0, None)
    assert (backlog.unclaimed, backlog.due, backlog.oldest) == (2, 0, None)
    backend.insert(parcels, [{"id": 3, "due": clock.now - timedelta(seconds=60)}])
    assert (queue.stats().oldest, queue.backlog().oldest) == (60, 60)


# --- keys -------------------------------------------------------------------------------------------------------


def collated(backend: Backend) -> sa.types.TypeEngine[Any]:
    return sa.String(20, collation="C" if backend.family == "postgres" else "utf8mb4_bin")


def microseconds(backend: Backend) -> sa.types.TypeEngine[Any]:
    return sa.DateTime().with_variant(sa.dialects.mysql.DATETIME(fsp=6), "mysql", "mariadb")


def timestamp(backend: Backend) -> sa.types.TypeEngine[Any]:
    return sa.TIMESTAMP()


NOON = datetime(2024, 2, 29, 12, 0, 0, 1000)  # noqa: DTZ001 - a column without a zone
KEYS: dict[str, tuple[Any, list[Any]]] = {
    "uuid": (lambda _: sa.Uuid(), [UUID(int=n) for n in range(5)]),
    "text": (lambda _: sa.String(20), ["Åse", "bo", "it's", "ü 100%", "😀"]),
    "collated": (collated, ["A", "B", "a", "b"]),
    "big": (lambda _: sa.BigInteger(), [2**40 + n for n in range(4)]),
    "number": (lambda _: sa.Numeric(12, 3), [n + 1 for n in range(4)]),
    "microseconds": (microseconds, [NOON + timedelta(microseconds=n) for n in range(4)]),
    "timestamp": (timestamp, [NOON.replace(microsecond=0) + timedelta(seconds=n) for n in range(4)]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_of_any_type(backend: Backend, kind: str) -> None:
    type_, values = KEYS[kind]
    key = sa.Column("name", type_(backend), primary_key=True, autoincrement=False)
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
    things = sa.Table("things", sa.MetaData(), key, sa.Column("what", sa.Integer), **options)
    things.create(backend.engine)
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(things), [{"name": value, "what": 1} for value in values])
    queue = beside(backend, things)
    with queue.claim(100) as batch:
        assert set(keys(batch)) == set(values)
        batch.fail(batch[0], "later", retry_in=0)
        batch.fail(batch[1], "never", retry=False)
    assert len(do_all(queue)) == len(values) - 1
    assert keys(dead_jobs(queue)) == [batch[1].key]
    assert (queue.report.lost, queue.stats().done) == (0, len(values) - 1)


@pytest.mark.requires("table collation")
def test_the_key_of_a_side_car_is_compared_as_the_tables_is(backend: Backend) -> None:
    """Whatever the default of a new table would be."""
    backend.run("CREATE TABLE words (word VARCHAR(20) PRIMARY KEY) CHARACTER SET latin1 COLLATE latin1_german2_ci")
    backend.run("INSERT INTO words VALUES ('Straße'), ('straat')")
    queue = beside(backend, "words")
    [column] = [c for c in sa.inspect(backend.engine).get_columns("words_claims") if c["name"] == "word"]
    assert getattr(column["type"], "collation", None) == "latin1_german2_ci"
    assert do_all(queue) == ["straat", "Straße"]


@pytest.mark.parametrize("on_done", ["keep", "delete"])
def test_a_key_of_several_columns_with_names_of_ours(backend: Backend, on_done: Any) -> None:
    key = [sa.Column(name, sa.Integer, primary_key=True, autoincrement=False) for name in ("owner_id", "status")]
    pets = sa.Table("pets", sa.MetaData(), *key, sa.Column("attempts", sa.String(9)), mysql_engine="InnoDB")
    pets.create(backend.engine)
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(pets), [{"owner_id": n // 3, "status": n % 3, "attempts": "x"} for n in range(9)])
    queue = beside(backend, "pets", on_done=on_done)
    with queue.claim(4) as batch:
        assert keys(batch) == [(0, 0), (0, 1), (0, 2), (1, 0)]
        assert batch[0].attempts == "x"
        batch.fail(batch[0], "later", retry_in=0)
        batch.done(batch[1])
    assert [(row["owner_id"], row["status"], row["claim_status"]) for row in backend.rows("pets_claims")][:1] == [
        (0, 0, "unclaimed")
    ]
    assert do_all(queue) == [(n // 3, n % 3) for n in (0, *range(2, 9))]
    assert queue.stats().left == 0
    assert len(backend.rows("pets")) == (9 if on_done == "keep" else 0)


def test_a_table_without_a_primary_key_is_named_by_a_unique_index(backend: Backend) -> None:
    backend.run("CREATE TABLE codes (code VARCHAR(9) NULL, other INT NOT NULL)")
    backend.run("CREATE INDEX codes_other ON codes (other)")
    backend.run("INSERT INTO codes VALUES ('a', 1), ('b', 1), (NULL, 2)")
    with pytest.raises(KeyUnfit):
        beside(backend, "codes")
    for column in ("code", "other"):
        with pytest.raises(KeyUnfit, match="CREATE UNIQUE INDEX"):
            beside(backend, "codes", Columns(key=column))
    backend.run("CREATE UNIQUE INDEX codes_code ON codes (code)")
    assert do_all(beside(backend, "codes", Columns(key="code"), on_done="delete")) == ["a", "b"]
