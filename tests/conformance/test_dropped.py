"""A table of a queue is dropped while consumers and producers are at work: they say which, and what to do."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import side_car_tables
from claimjobs.errors import TableMissing
from claimjobs.table.create import make
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.owners import hold_of

BOTH = pytest.mark.parametrize("table", ["jobs", "claimjobs_owners"])
STEP = "run `claimjobs setup-tables"


@BOTH
@pytest.mark.parametrize("claims", [1, 8], ids=["the first", "one of many"])
def test_a_claim_names_the_table(backend: Backend, table: str, claims: int) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(claims + 1))
    for _ in range(claims):
        with queue.claim(1) as batch:
            batch.done()
    backend.run(f"DROP TABLE {table}")
    with pytest.raises(TableMissing, match=f"'{table}' is not in this database: {STEP}"):
        queue.claim(1)
    backend.make()


@pytest.mark.parametrize("claims", [1, 8], ids=["the first", "one of many"])
def test_a_settle_names_the_table(backend: Backend, claims: int) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(claims + 1))
    batches = queue.batches(1)
    for _ in range(claims):
        with next(batches) as batch:
            batch.done()
    batch = next(batches)
    backend.run("DROP TABLE jobs")
    batch.done()
    with pytest.raises(TableMissing, match=STEP):
        batch.settle()
    backend.make()


def test_a_loop_whose_owners_are_gone_ends_with_the_name_of_their_table(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(5))

    def loop() -> None:
        for batch in queue.batches(1):
            with batch:
                batch.done()
            if len(backend.rows()) == 3:
                backend.run("DROP TABLE claimjobs_owners")

    with pytest.raises(TableMissing, match=f"'claimjobs_owners' is not in this database: {STEP}"):
        loop()
    backend.make()


@BOTH
def test_a_heartbeat_names_the_table_of_owners_alone(backend: Backend, table: str) -> None:
    queue = backend.queue()
    owner = hold_of(queue).owner.row
    backend.run(f"DROP TABLE {table}")
    if table == "jobs":
        owner.beat()
    else:
        with pytest.raises(TableMissing, match=table):
            owner.beat()
    backend.make()


def test_an_open_transaction_names_the_table(backend: Backend) -> None:
    queue = backend.queue(hold="transaction")
    queue.enqueue(jobs(1))
    with queue.claim(1) as batch:
        batch.done()
    backend.run("DROP TABLE jobs")
    with pytest.raises(TableMissing, match=STEP):
        queue.claim(1)
    backend.make()


def test_an_enqueue_names_the_table_and_does_without_owners(backend: Backend) -> None:
    queue: Any = backend.queue()
    queue.enqueue(jobs(1))
    backend.run("DROP TABLE claimjobs_owners")
    assert queue.enqueue(jobs(1)) == 1
    backend.run("DROP TABLE jobs")
    for count in (1, 300):
        with pytest.raises(TableMissing, match=STEP):
            queue.enqueue(jobs(count))
    with pytest.raises(TableMissing, match=STEP):
        queue.stats()
    backend.make()


def test_the_claims_beside_a_table_are_named_as_such(backend: Backend) -> None:
    backend.run("CREATE TABLE things (id INTEGER PRIMARY KEY, name VARCHAR(20))")
    make(backend.engine, side_car_tables(backend.engine, "things"))
    queue = backend.bare_queue("things", side_car=True)
    assert queue.claim(1).jobs == ()
    backend.run("DROP TABLE things_claims")
    with pytest.raises(TableMissing, match="setup-tables --table things --side-car"):
        queue.claim(1)
    make(backend.engine, side_car_tables(backend.engine, "things"))


def test_a_table_that_a_predicate_names_is_the_predicates_affair(backend: Backend) -> None:
    queue = backend.queue(where=sa.text("d IN (SELECT name FROM nowhere)"))
    with pytest.raises(Exception, match="nowhere") as raised:
        queue.claim(1)
    assert not isinstance(raised.value, TableMissing)
