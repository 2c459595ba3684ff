"""`on_done="leave"`: nothing is written for done jobs, whose handler makes the queue's predicate false itself."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Columns, Queue
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from claimjobs.errors import StillDue
from claimjobs.options import HOLDS
from claimjobs.settle.still_due import MOST_EXCLUDED
from tests.backends import Backend
from tests.conformance.jobs import jobs, names
from tests.conformance.test_contention import GATES, gate_closed, waits_at_the_gate

META = sa.MetaData()
RENTAL = sa.Table(
    "rental",
    META,
    sa.Column("rental_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("return_date", sa.Date),
    sa.Column("worker", sa.Integer),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)
PAYMENT = sa.Table(
    "payment",
    META,
    sa.Column("payment_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("rental_id", sa.Integer, sa.ForeignKey(RENTAL.c.rental_id, ondelete="SET NULL")),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)
COLUMNS = Columns(status=None, owner_id="worker")


@pytest.fixture
def rentals(backend: Backend) -> Backend:
    """As in the Sakila sample: six rentals that are not returned, each with a payment."""
    META.create_all(backend.engine)
    backend.make()
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(RENTAL), [{"rental_id": n} for n in range(1, 7)])
        connection.execute(sa.insert(PAYMENT), [{"payment_id": n, "rental_id": n} for n in range(1, 7)])
    return backend


def queue_of(backend: Backend, hold: Any, **options: Any) -> Queue:
    given = {"columns": COLUMNS, "where": sa.text("return_date IS NULL"), "on_done": "leave", **options}
    return backend.bare_queue("rental", hold=hold, **given)


def returned(backend: Backend, batch: Batch, *keys: int) -> None:
    """Make the predicate false: through the batch's transaction, where it has one."""
    update = sa.update(RENTAL).where(RENTAL.c.rental_id.in_(keys)).values(return_date=sa.func.current_date())
    try:
        batch.connection.execute(update)
    except Exception:
        with backend.engine.begin() as connection:
            connection.execute(update)


@pytest.mark.parametrize(
    ("hold", "locking"), [("lease", None), ("transaction", None), ("transaction", AdvisoryLocks())]
)
def test_the_rentals_of_sakila_are_returned_and_no_payment_loses_its_rental(
    rentals: Backend, hold: Any, locking: Any
) -> None:
    queue = queue_of(rentals, hold, locking=locking)
    for batch in queue.batches(4, drain=True):
        with batch:
            for job in batch:
                returned(rentals, batch, job.rental_id)
    assert queue.done_jobs == "Done jobs of table 'rental' are left as the handler leaves them."
    assert [(row["worker"], row["return_date"] is None) for row in rentals.rows("rental")] == [(None, False)] * 6
    assert [row["rental_id"] for row in rentals.rows("payment")] == [1, 2, 3, 4, 5, 6]
    assert (queue.report.done, queue.report.lost, queue.report.still_due) == (6, 0, 0)


@pytest.mark.parametrize("hold", HOLDS)
def test_what_is_still_due_is_reported_once_and_not_claimed_again(
    rentals: Backend, hold: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue, seen = queue_of(rentals, hold), []
    for batch in queue.batches(2, drain=True):
        with batch:
            seen += [job.rental_id for job in batch.jobs]
            returned(rentals, batch, *(job.rental_id for job in batch.jobs if job.rental_id not in (2, 5)))
            batch.done()
    assert seen == [1, 2, 3, 4, 5, 6]
    assert (queue.report.done, queue.report.still_due) == (6, 2)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.partition(";")[0] for line in told] == [
        f"table rental: the handler returned, and these rows are still due: {key}" for key in (2, 5)
    ]
    assert not queue.claim()
    with queue_of(rentals, hold).claim() as batch:  # another consumer knows nothing of that
        assert [job.rental_id for job in batch.jobs] == [2, 5]
        batch.release()


@pytest.mark.parametrize("hold", HOLDS)
def test_a_failed_batch_reports_nothing(rentals: Backend, hold: Any) -> None:
    queue = queue_of(rentals, hold)
    with pytest.raises(ZeroDivisionError), queue.claim(2):
        raise ZeroDivisionError
    with queue.claim(6) as batch:
        assert len(batch) == 6
        batch.release()
    assert queue.report.still_due == 0


def test_a_handler_that_never_does_its_part_ends(rentals: Backend) -> None:
    with rentals.engine.begin() as connection:
        connection.execute(sa.insert(RENTAL), [{"rental_id": n} for n in range(7, MOST_EXCLUDED + 102)])
    queue = queue_of(rentals, "transaction")

    def drain() -> None:
        for batch in queue.batches(500, drain=True):
            with batch:
                batch.done()

    with pytest.raises(StillDue, match=r"rows of table 'rental' are still due after their handler.* correct the"):
        drain()
    assert queue.report.still_due > MOST_EXCLUDED


def test_it_needs_a_predicate_that_stays_the_same(backend: Backend) -> None:
    for where in (None, sa.true):
        with pytest.raises(ValueError, match="on_done='leave' needs a `where` that stays the same"):
            queue_of(backend, "transaction", where=where)


def test_a_side_car_knows_by_itself_what_is_done(backend: Backend) -> None:
    with pytest.raises(ValueError, match=r"on_done='leave' is not for a side-car.* leave it out"):
        queue_of(backend, "lease", side_car=True)


KINDS: dict[str, dict[str, Any]] = {
    "transaction": {"hold": "transaction"},
    "rows": {"claims": "rows"},
    "batches": {"claims": "batches"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_became_false_in_another_table_while_a_claim_ran_is_not_claimed(backend: Backend, kind: str) -> None:
    """A handler makes a predicate over another table false: the rows of its jobs do not change."""
    gate = GATES[backend.family].format(sa.make_url(backend.url).database)
    backend.run("CREATE TABLE todo (job_id INTEGER PRIMARY KEY)")
    where = sa.text(f"EXISTS (SELECT 1 FROM todo WHERE todo.job_id = jobs.id) AND {gate}")
    queue = backend.queue(where=where, on_done="leave", **KINDS[kind])
    queue.enqueue(jobs(3))
    backend.run("INSERT INTO todo SELECT id FROM jobs")
    found: list[list[str]] = []

    def claim() -> None:
        with queue.claim(5) as batch:
            found.append(names(batch))
            batch.release()

    claiming = threading.Thread(target=claim)
    with gate_closed(backend, gate):
        claiming.start()
        backend.wait_for(lambda: waits_at_the_gate(backend), "it has read a candidate", 120)
        backend.run("DELETE FROM todo WHERE job_id = 1")
    claiming.join(120)
    assert found == [["0001", "0002"]]
    assert "check again" in [phase.name for phase in queue.explain().phases]


def test_threads_that_use_a_queue_first_at_once_have_the_same_plans(rentals: Backend) -> None:
    """Otherwise a settle would tell the rows that are left to plans by which nobody claims."""
    queue = queue_of(rentals, "lease")
    assert queue.roles
    other = threading.Thread(target=lambda: queue._consumer.plans)
    with queue._access.preparing:  # as a claim that registers
        other.start()
        other.join(0.5)
        plans = queue._consumer.plans
    other.join(120)
    assert queue._consumer.plans is plans
