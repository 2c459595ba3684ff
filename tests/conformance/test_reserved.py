"""What claimjobs keeps for itself comes in with no row, and a job that is claimed by nobody can be freed."""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Columns, Queue
from claimjobs.errors import BadRow
from tests.backends import Backend
from tests.conformance.jobs import jobs

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"status": "claimed"},
            "'claimed' in column 'status' means that a job is claimed: leave it out, or give 'uncl",
        ),
        ({"status": "done"}, "means that a job is done"),
        ({"status": "dead"}, "means that a job is dead"),
        ({"status": "Claimed "}, "means that a job is claimed"),
        ({"owner_id": 7}, "column 'owner_id' says who holds a job, and only claimjobs writes it: leave it out"),
        ({"owner_id": 0}, "column 'owner_id' says"),
        ({"owner_date": NOW}, "column 'owner_date' says since when"),
        ({"attempts": -1}, "column 'attempts' says how often a job has failed"),
        ({"attempts": 3}, "column 'attempts' says"),
        ({"suspect": 2}, "column 'suspect' says"),
    ],
)
def test_what_claimjobs_keeps_for_itself_is_refused(backend: Backend, given: dict[str, Any], said: str) -> None:
    queue = backend.queue()
    rows = [*jobs(150), {"d": "bad", "e": "", **given}]
    with pytest.raises(BadRow, match=r"^row 151: ") as raised:
        queue.enqueue(rows)
    assert said in raised.value.reason
    assert raised.value.row == rows[-1]
    assert backend.rows() == []


def test_with_on_bad_all_others_come_in(backend: Backend) -> None:
    queue = backend.queue()
    bad: list[BadRow] = []
    fresh = {
        "status": "unclaimed",
        "owner_id": None,
        "owner_date": None,
        "attempts": 0,
        "suspect": 0,
        "last_error": None,
    }
    rows = [{**row, **fresh} for row in jobs(5)]
    rows[1]["attempts"] = 1
    rows[3]["status"] = "claimed"
    assert queue.enqueue(rows, on_bad=bad.append) == 3
    assert [(one.line, one.row["d"]) for one in bad] == [(2, "0001"), (4, "0003")]
    assert {row["status"] for row in backend.rows()} == {"unclaimed"}


def test_a_status_of_ones_own_is_taken_as_it_is(backend: Backend) -> None:
    queue = tasks(backend, sa.Column("phase", sa.String(16)))
    assert queue.enqueue({"phase": "later"} for _ in range(2)) == 2
    assert dict(queue.stats().others) == {"later": 2}


class Phase(enum.Enum):
    NEW = "n"
    BUSY = "b"


@pytest.mark.parametrize(
    ("type_", "states", "values"),
    [
        (sa.Integer(), {"unclaimed": 1, "claimed": 2, "done": 3}, ([2, "2", 3], [1, 7, None])),
        (sa.Enum(Phase), {"unclaimed": "NEW", "claimed": "BUSY"}, ([Phase.BUSY, "BUSY"], [Phase.NEW])),
        (sa.Boolean(), None, ([False, 0], [True])),
    ],
)
def test_by_the_values_of_a_map(backend: Backend, type_: Any, states: Any, values: tuple[Any, Any]) -> None:
    queue = tasks(backend, sa.Column("phase", type_), states)
    bad, good = values
    for value in bad:
        with pytest.raises(BadRow, match="in column 'phase' means that a job is"):
            queue.enqueue({"phase": value})
    with pytest.raises(BadRow, match="column 'worker' says who holds a job"):
        queue.enqueue({"worker": 3})
    assert queue.enqueue({"phase": value} for value in good) == len(good)


def tasks(backend: Backend, phase: sa.Column[Any], states: Any = None) -> Queue:
    """A queue by a map."""
    key, worker = sa.Column("id", sa.Integer, primary_key=True), sa.Column("worker", sa.Integer)
    table = sa.Table("tasks", sa.MetaData(), key, phase, worker, mysql_engine="InnoDB")
    backend.make(table)
    return backend.bare_queue(table, columns=Columns(status="phase", owner_id="worker", states=states))


# --- claimed by nobody -----------------------------------------------------------------------------------------


def test_jobs_that_are_claimed_by_nobody_are_counted_and_freed(backend: Backend) -> None:
    queue = stuck(backend)
    assert (queue.stats().claimed, queue.stats().ownerless) == (5, 3)
    assert queue.reclaim() == 0
    assert queue.stats().ownerless == 3
    assert queue.reclaim_ownerless() == 3
    assert (queue.stats().claimed, queue.stats().ownerless, queue.stats().unclaimed) == (2, 0, 4)
    assert [row["owner_id"] for row in backend.rows()] == [None, None, None, 7, 8, None]
    assert queue.reclaim_ownerless() == 0


def test_what_somebody_has_locked_is_left_alone(backend: Backend) -> None:
    queue = stuck(backend)
    with backend.engine.connect() as connection:
        connection.execute(sa.text("SELECT id FROM jobs ORDER BY id LIMIT 1 FOR UPDATE")).all()
        assert queue.reclaim_ownerless() == 2
        connection.rollback()
    assert queue.reclaim_ownerless() == 1


def test_where_an_owner_tells_the_state_a_row_without_one_is_free(backend: Backend) -> None:
    table = sa.Table(
        "plain", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("worker", sa.Integer)
    )
    backend.make(table)
    queue = backend.bare_queue(table, columns=Columns(owner_id="worker"))
    backend.insert(table, [{"worker": worker} for worker in (None, 0, 7)])
    assert (queue.stats().unclaimed, queue.stats().claimed, queue.stats().ownerless) == (1, 2, 1)
    assert queue.reclaim_ownerless() == 1


def stuck(backend: Backend) -> Queue:
    """Three jobs that are claimed by nobody, two by a stranger, one that waits."""
    queue = backend.queue()
    owners = (None, 0, -3, 7, 8)
    claimed = [{**row, "status": "claimed", "owner_id": owner} for row, owner in zip(jobs(5), owners, strict=True)]
    backend.insert("jobs", [*claimed, *jobs(1)])
    return queue
