"""A table with partitions by time: every operation works on it, and old partitions of done jobs are dropped whole."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, SideCar, job_table, make, tables_for
from claimjobs.admin import old_partitions
from claimjobs.admin.upgrade import upgrade
from claimjobs.dialects.partitions import coming
from claimjobs.errors import PartitionsNotMade, UnfitTable, UniquePartitioned
from claimjobs.table import time_partitions
from claimjobs.table.definitions import article_table
from claimjobs.table.side_car_table import side_car_tables
from tests.backends import Backend, Clock
from tests.conformance.jobs import jobs, names

JOBS = article_table(partition_by_time="day")
DAY = timedelta(days=1)
LATER = 30 * DAY


def partitions(backend: Backend, table: str = "jobs") -> list[str]:
    """The names of the partitions that the table has now."""
    with backend.engine.connect() as connection:
        return list(backend.dialect.partitions.names(connection, sa.Table(table, sa.MetaData())))


def expected(backend: Backend, now: datetime) -> set[str]:
    return {period.name for period in coming("day", now)} | {backend.dialect.partitions.rest}


def old(backend: Backend, clock: Clock, day: int, *statuses: str) -> None:
    """Jobs that were inserted on the n-th day from now, and have a status since then; by the clock, days ago."""
    at = (clock.now - LATER + day * DAY).replace(hour=12)
    backend.insert(
        JOBS,
        [{"d": f"{day} {status}", "e": "", "status": status, "owner_date": at, "created": at} for status in statuses],
    )


@pytest.fixture
def later(backend: Backend, clock: Clock) -> Queue:
    """A queue on a table whose partitions were all made for a time that is over by its clock."""
    backend.make(JOBS)
    clock.now = datetime.now(UTC) + LATER
    return backend.queue(JOBS, now=clock.sql, on_done="keep")


@pytest.fixture
def warned() -> Iterator[list[str]]:
    """What a purge warns of."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("claimjobs.purge")
    log.addHandler(handler)
    yield found
    log.removeHandler(handler)


@pytest.fixture
def one_is_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_partitions, "MOST_MOVED", 1)


@pytest.fixture
def short_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_partitions, "LOCK_TIMEOUT", 1)


# --- making them ---------------------------------------------------------------------------------------------


def test_a_new_table_has_partitions_for_the_coming_days_and_one_for_other_times(backend: Backend) -> None:
    queue = backend.queue(JOBS)
    assert set(partitions(backend)) == expected(backend, queue.now())
    queue.enqueue([*jobs(1), {"d": "far", "e": "", "created": queue.now() + 1000 * DAY}])
    queue.enqueue({"d": "old", "e": "", "created": queue.now() - 1000 * DAY})
    assert names(queue.claim(10)) == ["0000", "far", "old"]


def test_partitions_of_the_coming_time_are_made_by_setup_and_by_purge(
    later: Queue, backend: Backend, clock: Clock
) -> None:
    first = set(partitions(backend))
    assert later.purge(100 * DAY) == 0
    assert set(partitions(backend)) == first | expected(backend, clock.now)
    clock.now += DAY
    assert later.purge(100 * DAY, status="dead") == 0
    assert len(partitions(backend)) == len(first) + 9
    assert make(backend.engine, tables_for("jobs")).partitions == ()


def test_jobs_of_a_time_without_a_partition_are_no_obstacle(later: Queue, backend: Backend, clock: Clock) -> None:
    later.enqueue({"d": "today", "e": "", "created": clock.now, "run_at": clock.now})
    later.purge(100 * DAY)
    missing = expected(backend, clock.now) - set(partitions(backend))
    assert missing in (set(), {f"p{clock.now:%Y%m%d}"})
    assert names(later.claim()) == ["today"]


@pytest.mark.usefixtures("one_is_many")
def test_many_jobs_of_other_times_are_not_moved_unasked(
    later: Queue, backend: Backend, clock: Clock, warned: list[str]
) -> None:
    later.enqueue([{"d": "today", "e": "", "created": clock.now, "run_at": clock.now}] * 2)
    before = partitions(backend)
    later.purge(100 * DAY)
    assert partitions(backend) == before
    [message] = warned
    assert "more than 1 rows" in message
    with pytest.raises(PartitionsNotMade, match=r"when the queue may wait, run .*TABLE"):
        time_partitions.make_coming(backend.engine, backend.dialect, JOBS, clock.sql)


def test_an_existing_table_is_not_divided(backend: Backend) -> None:
    backend.make("jobs")
    with pytest.raises(UnfitTable, match=r"'jobs' exists with no partitions by time, .*: make another table"):
        backend.make(JOBS)


def test_jobs_cannot_be_unique_in_partitions() -> None:
    def column() -> sa.Column[str]:
        return sa.Column("d", sa.String(10))

    with pytest.raises(UniquePartitioned, match=r"'once' cannot be unique .*: leave out `unique` or"):
        job_table("once", sa.MetaData(), column(), unique="d", partition_by_time="day")
    with pytest.raises(ValueError, match="'hour' is no unit: give one of day, week, month"):
        job_table("once", sa.MetaData(), column(), partition_by_time="hour")  # type: ignore[arg-type]


# --- every operation -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("each_kind_of_claim")
def test_every_outcome_is_written(backend: Backend) -> None:
    queue = backend.queue(JOBS, on_done="keep")
    queue.enqueue(jobs(4))
    queue.enqueue([{"d": f"1{n:03}", "e": ""} for n in range(150)])
    with queue.claim(5) as batch:
        done, again, dead, free, last = batch.jobs
        assert done.key == (done.id, done.created)
        batch.done(done, last)
        batch.fail(again, "again", retry_in=0)
        batch.fail(dead, "never", retry=False)
        batch.release(free)
    found = {row["d"]: row["status"] for row in backend.rows(JOBS)}
    assert [found.pop(d) for d in ("0000", "0001", "0002", "0003", "1000")] == [
        *("done", "unclaimed", "dead", "unclaimed", "done")
    ]
    assert set(found.values()) == {"unclaimed"}
    assert queue.dead.retry() == 1
    other = backend.bare_queue(JOBS)
    held = queue.claim(3)
    assert names(held) == ["0001", "0002", "0003"]
    assert other.reclaim_owner(queue.owner_id) == 3
    drained = 0
    for batch in other.batches(100, drain=True):
        with batch:
            drained += len(batch)
            batch.done()
    assert drained == 152


@pytest.mark.parametrize(
    "options", [{"hold": "transaction"}, {"side_car": SideCar()}, {"lock": "advisory"}, {"order_by": ()}]
)
def test_other_kinds_of_claims_work(backend: Backend, options: dict[str, Any]) -> None:
    backend.make(JOBS)
    if "side_car" in options:
        make(backend.engine, side_car_tables(backend.engine, "jobs"))
    queue = backend.bare_queue("jobs", **options, on_done="keep")
    queue.enqueue(jobs(5))
    with queue.claim(2) as batch:
        assert names(batch) == ["0000", "0001"]
        batch.done()
    assert len(queue.claim(10)) == 3


def test_an_upgrade_makes_a_lost_index_and_else_finds_nothing_to_do(backend: Backend) -> None:
    backend.make(JOBS)
    assert list(upgrade(backend.engine)) == []
    backend.run(f"DROP INDEX jobs_claim{'' if backend.family == 'postgres' else ' ON jobs'}")
    assert [table.table for table in upgrade(backend.engine)] == ["jobs"]
    assert list(upgrade(backend.engine)) == []
    assert "jobs_claim" in {index["name"] for index in sa.inspect(backend.engine).get_indexes("jobs")}
    with backend.engine.connect() as connection:
        assert time_partitions.unit_in_database(connection, JOBS) == "day"


# --- dropping them -------------------------------------------------------------------------------------------


def test_partitions_in_which_all_is_done_are_dropped_and_no_others(
    later: Queue, backend: Backend, clock: Clock
) -> None:
    old(backend, clock, 0, "done", "done")
    old(backend, clock, 1, "done", "unclaimed", "done")
    old(backend, clock, 2, "done", "dead")
    kept = [period.name for period in coming("day", clock.now - LATER)][1:3]
    assert later.purge(DAY, dry_run=True) == 5
    assert len(partitions(backend)) == 9
    with later.claim() as batch:
        assert later.purge(DAY) == 5
        batch.fail(batch.jobs[0], "again", retry_in=0)
    assert set(partitions(backend)) == expected(backend, clock.now) | {*kept}
    assert [(row["d"], row["status"]) for row in backend.rows(JOBS)] == [
        *(("1 unclaimed", "unclaimed"), ("2 dead", "dead"))
    ]


def test_a_partition_with_jobs_that_are_done_since_a_short_time_stays(
    later: Queue, backend: Backend, clock: Clock
) -> None:
    old(backend, clock, 0, "done", "unclaimed")
    with later.claim() as batch:
        assert names(batch) == ["0 unclaimed"]
        batch.done()
    assert later.purge(DAY) == 1
    assert f"p{clock.now - LATER:%Y%m%d}" in partitions(backend)
    clock.now += DAY + timedelta(seconds=1)
    assert later.purge(DAY) == 1
    assert backend.rows(JOBS) == []


def test_only_some_jobs_or_dead_ones_are_deleted_without_their_partition(
    later: Queue, backend: Backend, clock: Clock
) -> None:
    old(backend, clock, 0, "done", "done", "dead")
    before = set(partitions(backend))
    assert later.purge(DAY, where=sa.text("d = '0 done'")) == 2
    assert later.purge(DAY, status="dead") == 1
    assert before <= set(partitions(backend))


@pytest.mark.parametrize("status", ["unclaimed", "done"])
def test_a_job_that_comes_before_the_lock_is_not_dropped(
    later: Queue, backend: Backend, clock: Clock, status: str
) -> None:
    old(backend, clock, 0, "done")
    later.purge(100 * DAY)  # it makes the partitions of the coming time
    at = clock.now - LATER
    young = {"d": "new", "e": "", "status": status, "owner_date": clock.now, "created": at.replace(hour=13)}
    with before_locks(backend, lambda: backend.insert(JOBS, [young])) as times:
        assert later.purge(DAY) == 1
    assert len(times) > 1
    assert [row["d"] for row in backend.rows(JOBS)] == ["new"]


@contextmanager
def before_locks(backend: Backend, act: Callable[[], None]) -> Iterator[list[str]]:
    """Act before the first statement that locks a table, as another session could. The statements that lock."""
    sent: list[str] = []

    def look(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("LOCK TABLE"):
            sent.append(statement)
            if len(sent) == 1:
                act()

    sa.event.listen(backend.engine, "before_cursor_execute", look)
    try:
        yield sent
    finally:
        sa.event.remove(backend.engine, "before_cursor_execute", look)


@pytest.mark.usefixtures("short_locks")
def test_a_lock_that_is_not_free_soon_is_given_up_and_jobs_are_deleted(
    later: Queue, backend: Backend, clock: Clock, warned: list[str]
) -> None:
    old(backend, clock, 0, "done", "done")
    old(backend, clock, 1, "done")
    later.purge(100 * DAY)
    before = partitions(backend)
    with backend.new_engine().begin() as other:
        other.execute(sa.select(JOBS).limit(1)).all()
        assert later.purge(DAY) == 3
    [message] = warned
    assert message.startswith(
        f"partition {min({*before} - {backend.dialect.partitions.rest})!r} of table 'jobs' was not dropped ("
    )
    assert partitions(backend) == before
    assert later.purge(DAY) == 0
    assert set(partitions(backend)) == expected(backend, clock.now)
