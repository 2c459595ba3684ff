"""A drain does what it says: each contestant empties the table, and a wrong count is found out. No times."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from benchmarks import article, drain, raw, report, tables
from benchmarks.crew import CrewFailed, Worker, gather
from benchmarks.harness import Share, now
from benchmarks.written import SessionsLeft, written
from tests.backends import Backend

pytestmark = pytest.mark.thorough("that the benchmarks measure what they say")

CONTESTANTS = {contestant.name: contestant for contestant in drain.contestants()}
ROWS = list(article.payload(300))
ME = 7


@pytest.mark.parametrize("name", CONTESTANTS)
def test_a_contestant_drains_the_table(database: Backend, name: str) -> None:
    pid = database.server.pid
    run = drain.drain(CONTESTANTS[name], 2, url=database.url, rows=ROWS, pid=pid)
    assert (run.contestant, run.consumers, run.jobs) == (name, 2, len(ROWS))
    assert run.claims > run.empty
    assert run.limit
    assert (run.server_cost is None) == (pid is None)
    assert name in report.table([run])
    assert run.log_bytes
    assert run.log_bytes > len(ROWS)
    assert run.dead_rows
    assert run.dead_rows >= len(ROWS)


def test_what_a_run_writes_is_counted_when_its_sessions_have_ended(database: Backend) -> None:
    _filled(database)
    with written(database.url) as writes:
        engine = database.new_engine()
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE jobs SET priority = 1 WHERE id <= 100")
            connection.exec_driver_sql("DELETE FROM jobs WHERE id <= 30")
        engine.dispose()
    assert writes.dead_rows == 130
    assert writes.log_bytes > 130


def test_a_session_that_does_not_end_is_told(anywhere: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.written.SECONDS_TO_END", 0.1)
    with pytest.raises(SessionsLeft, match="1 sessions"), written(anywhere.url):
        anywhere.run("SELECT 1")


@pytest.mark.parametrize(
    ("done", "message"),
    [
        ([1, 2, 2, 3], "1 jobs twice"),
        ([1, 2], "1 not done"),
        ([1, 2, 3], "1 left"),
    ],
)
def test_a_wrong_count_is_found_out(anywhere: Backend, done: list[int], message: str) -> None:
    article.setup_tables(anywhere.url)
    if "left" in message:
        drain.fill(anywhere.url, ROWS[:1])
    with pytest.raises(drain.WrongCount, match=message):
        drain.verify(anywhere.url, [1, 2, 3], [_share(done)])


def _share(keys: list[int]) -> Share:
    return Share(keys, began=now(), ended=now(), last=0.0, claims=1, empty=0, again=0)


# --- the raw loop is an honest opponent ----------------------------------------------------------------------


@pytest.mark.parametrize("hold", ["lease", "transaction"])
def test_the_raw_loop_takes_jobs_in_order_and_only_when_they_are_due(database: Backend, hold: raw.Hold) -> None:
    _filled(database)
    database.run("UPDATE jobs SET priority = 1 WHERE id <= 100")
    database.run("UPDATE jobs SET run_at = '2100-01-01' WHERE id = 150")
    batches: list[list[int]] = []
    with raw.opened(database.url, ME, size=40, hold=hold) as loop:
        loop(batches.append)
    due = [key for key in range(101, 301) if key != 150]
    assert [key for batch in batches for key in batch] == [*due, *range(1, 101)]
    assert [row.id for row in database.rows("jobs")] == [150]


def test_the_raw_loop_writes_who_has_a_job(database: Backend) -> None:
    _filled(database)
    with raw.opened(database.url, ME, size=40) as loop:
        assert isinstance(loop, raw.Loop)
        taken = loop.turn(loop.db, ME, [], 40)
        claimed = [row for row in database.rows("jobs") if row.status == "claimed"]
        assert {row.id for row in claimed} == {job[0] for job in taken} == set(range(1, 41))
        assert {row.owner_id for row in claimed} == {ME}
        assert all(row.owner_date for row in claimed)


def test_the_raw_loop_settles_only_what_it_holds(database: Backend) -> None:
    _filled(database)
    with raw.opened(database.url, ME, size=40) as loop:
        assert isinstance(loop, raw.Loop)
        taken = [job[0] for job in loop.turn(loop.db, ME, [], 40)]
        database.run("UPDATE jobs SET owner_id = 8 WHERE id = 3")
        with pytest.raises(raw.Lost, match="40 jobs were to be settled, 39 were still ours"):
            loop.turn(loop.db, ME, taken, 40)


def test_the_raw_loop_settles_and_claims_in_one_statement_where_it_can(anywhere: Backend) -> None:
    """Else a consumer's settle waits for locks that its own claim is yet to let go of: the DELETE must run first."""
    _filled(anywhere)
    with anywhere.engine.connect() as connection:
        asked = sa.text("EXPLAIN " + _bound(raw.SETTLE_AND_CLAIM))
        plan = "\n".join(connection.execute(asked, {"done": [1, 2], "me": ME, "size": 100}).scalars())
    candidate = plan.partition("CTE candidate")[2].partition("CTE claimed")[0]
    assert "One-Time Filter: ((InitPlan" in candidate, plan
    assert "Index Scan using jobs_claim" in candidate, plan
    assert "Sort" not in candidate, plan


def _bound(statement: str) -> str:
    for name in ("done", "me", "size"):
        statement = statement.replace(f"%({name})s::int[]", f"cast(:{name} as int[])").replace(
            f"%({name})s", f":{name}"
        )
    return statement


def _filled(backend: Backend) -> None:
    tables.setup_claimjobs(backend.url)
    tables.fill(backend.url, ROWS)


# --- workers -------------------------------------------------------------------------------------------------


def test_a_worker_that_fails_ends_the_others() -> None:
    with pytest.raises(CrewFailed, match="ZeroDivisionError"):
        gather([Worker(_for_ever), Worker(_fail)])


def _for_ever() -> None:
    import threading

    threading.Event().wait()


def _fail() -> None:
    raise ZeroDivisionError
