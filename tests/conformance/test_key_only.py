"""Tables that have a key and little else: an open transaction can hold their rows all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Columns
from claimjobs.errors import ColumnMissing, StateMissing
from claimjobs.workers.consumer import consume
from claimjobs.workers.handlers import Handler
from tests.backends import Backend
from tests.conformance.effects import EFFECTS, effects, raise_at, write


@contextmanager
def plain(backend: Backend) -> Iterator[sa.Table]:
    table = sa.Table(
        "plain",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("body", sa.String(10)),
        mysql_engine="InnoDB",
    )
    table.create(backend.engine)
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(table), [{"id": n, "body": f"{n}"} for n in range(1, 7)])
    yield table


def test_a_key_is_enough(backend: Backend) -> None:
    """No table of ours, no column of ours: the rows that are there are the jobs."""
    with plain(backend):
        queue = backend.bare_queue("plain", hold="transaction", on_done="delete")
        with queue.claim(2, where=sa.text("body <> '2'")) as batch:
            assert [job.id for job in batch] == [1, 3]
        assert [row["id"] for row in backend.rows("plain")] == [2, 4, 5, 6]
        assert queue.stats().left == 4
        with queue.claim(2) as batch:
            with pytest.raises(ColumnMissing, match="attempts"):
                batch.fail(batch[0], "broken")
            with pytest.raises(ColumnMissing, match="status"):
                batch.fail(batch[0], "broken", retry=False)
        assert len(backend.rows("plain")) == 4


def test_a_job_that_raises_is_undone_and_free_again_where_nothing_can_be_noted(backend: Backend) -> None:
    EFFECTS.create(backend.engine)
    with plain(backend):
        queue = backend.bare_queue("plain", hold="transaction", on_done="delete")
        with pytest.raises(ZeroDivisionError):
            raise_at(queue.claim(), "3", column="body")
    assert effects(backend) == ["1", "2"]
    assert [row["id"] for row in backend.rows("plain")] == [3, 4, 5, 6]


def test_a_failure_that_the_table_cannot_hold_is_told_in_one_line(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """And undone, and free again; what was done before it is done."""
    EFFECTS.create(backend.engine)
    with plain(backend):
        queue = backend.bare_queue("plain", hold="transaction", on_done="delete")

        def work(batch: Batch) -> None:
            for job in batch:
                write(batch, job.body)
                if job.id == 3:
                    queue.stop()
                    batch.fail(job, "broken")

        consume(queue, Handler(work, "work", "batch"))
    assert effects(backend) == ["1", "2"]
    [record] = [record for record in caplog.records if record.name == "claimjobs.consumer"]
    assert "table 'plain' has no column 'attempts'" in record.message
    assert record.exc_info is None


def test_keeping_needs_a_state_for_it(backend: Backend) -> None:
    with plain(backend), pytest.raises(ColumnMissing, match="status"):
        backend.bare_queue("plain", hold="transaction", on_done="keep").claim()


def test_a_boolean_and_nothing_else(backend: Backend) -> None:
    """As in "Queues in SQL": `available` is all there is."""
    items = sa.Table(
        "items",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("available", sa.Boolean, nullable=False, server_default=sa.true()),
        mysql_engine="InnoDB",
    )
    items.create(backend.engine)
    queue = backend.bare_queue("items", columns=Columns(status="available"), hold="transaction", on_done="keep")
    queue.enqueue([{"id": n} for n in range(1, 4)])
    with queue.claim(2) as batch:
        batch.done()
    assert [bool(row["available"]) for row in backend.rows("items")] == [False, False, True]
    assert (queue.stats().unclaimed, queue.stats().done) == (1, 2)
    with queue.claim() as batch:
        with pytest.raises(StateMissing, match=r"'dead'.* name one, as in Columns\(states="):
            batch.fail(batch[0], "broken", retry=False)
        batch.done()
    assert not queue.claim()
