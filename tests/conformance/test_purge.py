"""Jobs that were done, or dead, long ago leave the table; nothing else does."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, job_table
from claimjobs.admin import stored_jobs
from claimjobs.errors import BadPredicate, ColumnMissing
from claimjobs.statements import stored_jobs as statements
from claimjobs.table.definitions import article_table
from tests.backends import Backend, Clock
from tests.conformance.jobs import counted, jobs

JOBS = article_table()
DAY = timedelta(days=1)
STATES = ("unclaimed", "claimed", "done", "dead")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(stored_jobs, "JOBS_PER_TRANSACTION", 3)
    return 3


def left(backend: Backend) -> list[str]:
    return [row["d"] for row in backend.rows()]


def kept(backend: Backend, count: int, clock: Clock, status: str = "done", **columns: Any) -> Queue:
    """So many jobs, the first of which has this status for the longest time: each a day longer than the next one."""
    queue = backend.queue(JOBS, now=clock.sql)
    since = (clock.now - (count - n) * DAY for n in range(count))
    rows = [
        {**job, "status": status, "owner_date": then} for job, then in zip(jobs(count, **columns), since, strict=True)
    ]
    backend.insert(JOBS, rows)
    return queue


# --- since when ----------------------------------------------------------------------------------------------


def test_a_job_that_is_kept_says_when_it_was_done_or_died(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql, on_done="keep")
    queue.enqueue(jobs(3, run_at=clock.now))
    with queue.claim() as batch:
        clock.now += timedelta(hours=5)
        done, dead, again = batch.jobs
        batch.done(done)
        batch.fail(dead, "never", retry=False)
        batch.fail(again, "again", retry_in=0)
    since = {row["status"]: row["owner_date"] for row in backend.rows(JOBS)}
    assert since == {"done": clock.now, "dead": clock.now, "unclaimed": None}


def test_a_job_is_old_by_when_it_was_done_and_not_by_when_it_came(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql, on_done="keep")
    queue.enqueue(jobs(1, run_at=clock.now))
    clock.now += 30 * DAY
    with queue.claim() as batch:
        batch.done()
    clock.now += DAY - timedelta(seconds=1)
    assert queue.purge(DAY) == 0
    clock.now += timedelta(seconds=1)
    assert queue.purge(DAY) == 1
    assert left(backend) == []


# --- which ---------------------------------------------------------------------------------------------------


def test_only_what_is_older_goes(backend: Backend, clock: Clock) -> None:
    queue = kept(backend, 5, clock)
    assert queue.purge(timedelta(days=3)) == 3
    assert left(backend) == ["0003", "0004"]
    assert queue.purge(2 * 86_400) == 1
    assert queue.purge(timedelta.max) == 0
    assert queue.purge(0) == 1
    assert queue.purge(0) == 0


@pytest.mark.parametrize("state", ["done", "dead"])
def test_no_other_state_is_touched(backend: Backend, clock: Clock, state: Any) -> None:
    queue = backend.queue(JOBS, now=clock.sql)
    rows = [{"d": each, "e": "", "status": each, "owner_date": clock.now - 9 * DAY} for each in STATES]
    backend.insert(JOBS, [*rows, {"d": "of unknown age", "e": "", "status": state}])
    assert queue.purge(DAY, state=state) == 1
    assert left(backend) == [*(each for each in STATES if each != state), "of unknown age"]


def test_a_dry_run_counts_and_leaves_everything(backend: Backend, clock: Clock) -> None:
    queue = kept(backend, 5, clock)
    with counted(backend.engine) as sent:
        assert queue.purge(2 * DAY, dry_run=True) == 4
    assert not [sql for sql in sent if sql.startswith("DELETE")]
    assert len(left(backend)) == 5


def test_it_can_be_narrowed_and_the_queues_own_predicate_does_not_count(backend: Backend, clock: Clock) -> None:
    kept(backend, 6, clock)
    queue = backend.queue(JOBS, now=clock.sql, where=JOBS.c.d == "none")
    assert queue.purge(DAY, where=sa.text("d = '0001' OR d = '0003'"), dry_run=True) == 2
    assert queue.purge(DAY, where=sa.text("d = '0001' OR d = '0003'")) == 2
    assert queue.purge(DAY, where=lambda: JOBS.c.d > "0004") == 1
    assert left(backend) == ["0000", "0002", "0004"]
    assert queue.purge(DAY) == 3


def test_a_predicate_that_cannot_be_read_is_told_as_such(backend: Backend, clock: Clock) -> None:
    queue = kept(backend, 2, clock)
    for dry_run in (True, False):
        with pytest.raises(BadPredicate, match="colour"):
            queue.purge(0, where=sa.text("colour = 'red'"), dry_run=dry_run)
    assert len(left(backend)) == 2


@pytest.mark.parametrize("state", ["unclaimed", "claimed", "gone"])
def test_jobs_that_wait_or_are_in_hand_are_never_purged(anywhere: Backend, state: Any) -> None:
    with pytest.raises(ValueError, match="give 'done' or 'dead'"):
        anywhere.queue().purge(0, state=state)


def test_an_age_below_nothing_is_refused(anywhere: Backend) -> None:
    with pytest.raises(ValueError, match="an age of 0 or more"):
        anywhere.queue().purge(timedelta(seconds=-1))


# --- how -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 7])
def test_any_number_goes_in_chunks_that_are_committed(
    backend: Backend, clock: Clock, small_chunks: int, count: int
) -> None:
    queue = kept(backend, count, clock)
    queue.enqueue(jobs(2))
    with counted(backend.engine) as sent:
        assert queue.purge(0) == count
    assert left(backend) == ["0000", "0001"]
    deletes = [place for place, sql in enumerate(sent) if sql.startswith("DELETE")]
    assert len(deletes) == -(-count // small_chunks)
    assert [sent[place + 1] for place in deletes] == ["COMMIT"] * len(deletes)


def test_what_was_deleted_before_an_interruption_stays_so(backend: Backend, clock: Clock, small_chunks: int) -> None:
    queue = kept(backend, 7, clock)
    deletes: list[str] = []

    def interrupt(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE"):
            deletes.append(statement)
            if len(deletes) == 2:
                raise KeyboardInterrupt

    sa.event.listen(backend.engine, "before_cursor_execute", interrupt)
    with pytest.raises(KeyboardInterrupt):
        queue.purge(0)
    sa.event.remove(backend.engine, "before_cursor_execute", interrupt)
    assert len(left(backend)) == 4
    assert queue.purge(0) == 4


def test_a_job_that_is_brought_back_at_the_last_moment_stays(backend: Backend, clock: Clock) -> None:
    queue, other = kept(backend, 4, clock, status="dead"), backend.queue(JOBS, bind=backend.new_engine())
    [first, *_] = [row["id"] for row in backend.rows()]

    def revive(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE"):
            other.jobs.retry([first])

    sa.event.listen(backend.engine, "before_cursor_execute", revive)
    assert queue.purge(0, state="dead") == 3
    sa.event.remove(backend.engine, "before_cursor_execute", revive)
    assert [(row["d"], row["status"]) for row in backend.rows()] == [("0000", "unclaimed")]


def test_jobs_of_several_priorities_all_go(backend: Backend, clock: Clock, small_chunks: int) -> None:
    queue = kept(backend, 4, clock, priority=5)
    kept(backend, 5, clock, priority=-5)
    kept(backend, 2, clock)
    assert queue.purge(2 * DAY) == 8
    assert queue.purge(0) == 3


def test_work_goes_on_beside_it(backend: Backend, clock: Clock) -> None:
    """Rows that others have locked, and that are not old, are not waited for."""
    queue = kept(backend, 3, clock)
    queue.enqueue(jobs(2))
    with backend.engine.connect() as other, other.begin():
        other.execute(sa.select(JOBS).where(JOBS.c.status == "unclaimed").with_for_update()).all()
        assert queue.purge(0) == 3
    assert not queue.report.transients


# --- any table -----------------------------------------------------------------------------------------------

PAIRS = job_table(
    "pairs",
    sa.MetaData(),
    sa.Column("region", sa.String(8), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
)
UUIDS = job_table("uuids", sa.MetaData(), sa.Column("id", sa.Uuid, primary_key=True))


def test_keys_of_several_columns(backend: Backend, small_chunks: int) -> None:
    queue = backend.queue(PAIRS, on_done="keep")
    queue.enqueue([{"region": region, "number": n, "priority": n % 2} for region in ("eu", "us") for n in range(5)])
    with queue.claim(8) as batch:
        batch.done()
    backend.run("UPDATE pairs SET owner_date = '2020-01-01 00:00:00' WHERE status = 'done'")
    assert queue.purge(DAY) == 8
    assert len(backend.rows(PAIRS)) == 2


def test_keys_that_are_uuids(backend: Backend, small_chunks: int) -> None:
    queue = backend.queue(UUIDS, on_done="keep")
    queue.enqueue([{"id": uuid.UUID(int=n << 64 | n)} for n in range(8)])
    with queue.claim(7) as batch:
        batch.done()
    backend.run("UPDATE uuids SET owner_date = '2020-01-01 00:00:00' WHERE status = 'done'")
    assert queue.purge(DAY) == 7


def test_a_priority_that_may_be_null_hides_nothing(backend: Backend, small_chunks: int) -> None:
    backend.run(
        "CREATE TABLE orders (id int primary key, status varchar(16) not null default 'unclaimed', owner_id int, "
        f"owner_date {'timestamptz' if backend.family == 'postgres' else 'datetime'}, priority int)"
    )
    queue = backend.queue("orders")
    queue.enqueue([{"id": n, "priority": n % 2 or None} for n in range(8)])
    backend.run("UPDATE orders SET status = 'done', owner_date = '2020-01-01 00:00:00'")
    assert queue.purge(DAY) == 8


def test_a_table_that_does_not_say_since_when(backend: Backend) -> None:
    backend.make()
    backend.run("ALTER TABLE jobs DROP COLUMN owner_date")
    with pytest.raises(ColumnMissing, match="no column 'owner_date', which telling since when a job is done needs"):
        backend.queue().purge(DAY)


def test_it_reads_the_jobs_of_its_state_in_their_order_and_no_others(backend: Backend, clock: Clock) -> None:
    queue = kept(backend, 2_000, clock)
    queue.enqueue(jobs(2_000))
    backend.analyze()
    roles = queue._access.backend.roles
    chosen = statements.old(roles, "done", clock.now)
    keys = [row["id"] for row in backend.rows()]
    with backend.engine.connect() as connection:
        order, after = statements.purge_order(roles), (0, keys[1_000])
        page = statements.page(roles, backend.dialect, order, chosen, after=after, order=order)
        plan = backend.plan(connection, page, {"claimjobs_limit": 100})
        assert plan.indexes == ("jobs_claim",), plan.text
        assert not plan.sorts, plan.text
        delete = statements.delete(roles, backend.dialect, chosen)
        plan = backend.plan(connection, delete, {"claimjobs_keys": keys[:100]})
        assert plan.indexes == (backend.primary_key_of("jobs"),), plan.text
