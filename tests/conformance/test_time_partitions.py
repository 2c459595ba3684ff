"""A table with partitions by time: every operation works on it, and old partitions of done jobs are dropped whole."""

from __future__ import annotations

import logging
import re
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
from claimjobs.errors import ReservedName, UnfitTable, UniquePartitioned
from claimjobs.table import time_partitions
from claimjobs.table.definitions import article_table
from claimjobs.table.side_car_table import side_car_tables
from tests.backends import Backend, Clock
from tests.conformance.jobs import jobs, names
from tests.conformance.test_primaries import Primaries

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
    log = logging.getLogger("claimjobs")
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
    *_, message = warned
    assert "more than 1 rows" in message
    printed = re.search(r"when the queue may wait, run what (moves|leaves) these rows.*?: (.*TABLE.*)", message)
    assert printed is not None
    for statement in printed[2].split("; "):
        backend.run(statement)
    warned.clear()
    missing = {f"p{clock.now:%Y%m%d}"} if printed[1] == "leaves" else set()
    assert expected(backend, clock.now) - set(partitions(backend)) == missing
    later.purge(100 * DAY)
    assert len(warned) == len(missing)
    assert names(later.claim()) == ["today", "today"]


def test_a_time_whose_jobs_have_another_place_already_is_named(
    later: Queue, backend: Backend, clock: Clock, warned: list[str]
) -> None:
    parts = backend.dialect.partitions
    later.purge(100 * DAY)
    last_but_one, last = (period.name for period in [*coming("day", clock.now)][-2:])
    for name in (last_but_one, last):
        backend.run(parts.removal(JOBS, name))
    later.enqueue({"d": "far", "e": "", "created": (clock.now + 6 * DAY).replace(hour=1), "run_at": clock.now})
    later.purge(100 * DAY)
    assert last in partitions(backend)
    if parts.moves_rows:
        assert (warned, set(partitions(backend)) >= expected(backend, clock.now)) == ([], True)
        return
    [message] = warned
    assert f"there is no partition jobs_{last_but_one}, because rows of that time are in the partition" in message
    with backend.engine.connect() as connection:
        missing = time_partitions.find_missing(connection, backend.dialect, JOBS, clock.sql)
    assert [period.name for period in missing.taken] == [last_but_one]


def test_an_existing_table_is_not_divided(backend: Backend) -> None:
    backend.make("jobs")
    with pytest.raises(UnfitTable, match=r"'jobs' exists with no partitions by time, .*: make another table"):
        backend.make(JOBS)


def test_a_payload_column_has_no_name_of_ours() -> None:
    for name, unit in (("created", "day"), ("run_at", None)):
        with pytest.raises(ReservedName, match=f"column '{name}' of table 'own' has a name that claimjobs uses"):
            job_table("own", sa.MetaData(), sa.Column(name, sa.DateTime), partition_by_time=unit)  # type: ignore[arg-type]
    assert "created" in job_table("own", sa.MetaData(), sa.Column("created", sa.DateTime)).c


def test_jobs_cannot_be_unique_in_partitions() -> None:
    def column() -> sa.Column[str]:
        return sa.Column("d", sa.String(10))

    with pytest.raises(UniquePartitioned, match=r"'once' cannot be unique .*: leave out `unique` or"):
        job_table("once", sa.MetaData(), column(), unique="d", partition_by_time="day")
    with pytest.raises(UniquePartitioned):
        job_table("once", sa.MetaData(), sa.Column("d", sa.String(10), unique=True), partition_by_time="day")
    for one in (sa.UniqueConstraint("d"), sa.Index("once_d", "d", unique=True)):
        with pytest.raises(UniquePartitioned):
            job_table("once", sa.MetaData(), column(), one, partition_by_time="day")
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
    queue = backend.bare_queue("jobs", **options)
    queue.enqueue(jobs(5))
    with queue.claim(2) as batch:
        assert names(batch) == ["0000", "0001"]
        batch.done()
    assert len(queue.claim(10)) == 3
    assert len(backend.rows("jobs")) == 5  # done jobs are kept by default


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


@pytest.mark.usefixtures("later")
def test_where_a_lock_does_not_hold_for_all_primaries_jobs_are_deleted_without_their_partition(
    backend: Backend, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "claimjobs.purge")
    old(backend, clock, 0, "done", "done", "dead")
    one_of_several = Primaries().dialect(backend.dialect)
    queue = backend.queue(JOBS, now=clock.sql, on_done="keep", dialect=one_of_several)
    before = set(partitions(backend))
    assert queue.purge(DAY, dry_run=True) == queue.purge(DAY) == 2
    assert before <= set(partitions(backend))
    assert [row["d"] for row in backend.rows(JOBS)] == ["0 dead"]
    assert all("a lock of one primary keeps no other one from it" in line for line in caplog.messages)
    assert caplog.messages


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
    parts = backend.dialect.partitions
    assert message.startswith(
        f"partition {parts.shown(JOBS, min({*before} - {parts.rest}))!r} of table 'jobs' was not dropped ("
    )
    assert partitions(backend) == before
    assert later.purge(DAY) == 0
    assert set(partitions(backend)) == expected(backend, clock.now)


def test_deleting_one_by_one_reads_no_partition_of_a_later_time(backend: Backend, later: Queue, clock: Clock) -> None:
    old(backend, clock, 1, "done", "dead")
    old(backend, clock, 5, *["done"] * 50)
    sent: list[tuple[str, Any]] = []

    def remember(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT") and "owner_date" in statement and "LIMIT" in statement:
            sent.append((statement, parameters))

    sa.event.listen(later.engine, "before_cursor_execute", remember)
    assert later.purge(LATER - 3 * DAY) == 1
    sa.event.remove(later.engine, "before_cursor_execute", remember)
    [(page, parameters)] = sent
    with later.engine.connect() as connection:
        how = {"mysql": "FORMAT=TRADITIONAL ", "mariadb": "PARTITIONS "}.get(backend.name, "")
        plan = "\n".join(str(row) for row in connection.exec_driver_sql(f"EXPLAIN {how}{page}", parameters))
    names = [period.name for period in coming("day", clock.now - LATER)]
    assert names[1] in plan
    assert names[5] not in plan


def test_a_description_without_our_column_is_purged_too(backend: Backend, later: Queue, clock: Clock) -> None:
    old(backend, clock, 1, "done", "dead")
    queue = backend.bare_queue(article_table(), now=clock.sql, on_done="keep")
    assert queue.purge(LATER - 3 * DAY) == 1


def test_explain_says_that_no_partition_is_left_for_jobs_of_the_coming_time(backend: Backend) -> None:
    queue = backend.queue(JOBS)
    gone = "DROP TABLE jobs_" if backend.family == "postgres" else "ALTER TABLE jobs DROP PARTITION "
    for name in (max({*partitions(backend)} - {backend.dialect.partitions.rest}), backend.dialect.partitions.rest):
        backend.run(gone + name)
    [found] = [one for one in queue.explain().findings if one.check == "partitions"]
    assert found.verdict == "warning"
    assert "its jobs cannot be inserted, because the partition" in found.says


def test_jobs_of_a_partition_that_is_not_over_stay_for_the_purge_that_drops_it(
    backend: Backend, later: Queue, clock: Clock
) -> None:
    """Deleted one by one today, half of a day would be gone before its partition could be dropped tomorrow."""
    for day in (0, 1):
        old(backend, clock, day, "done", "done")  # at noon
    age = clock.now - (clock.now - LATER + DAY).replace(hour=18)
    assert later.purge(age, dry_run=True) == later.purge(age) == 2
    assert [row["d"] for row in backend.rows()] == ["1 done", "1 done"]
    assert later.purge(age, where=sa.true()) == 2
