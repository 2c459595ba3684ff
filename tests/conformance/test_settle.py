"""Outcomes are written for jobs that are still held, and for no others, in one statement a kind."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, Retry
from claimjobs.errors import ColumnMissing, SettleFailed, TableMissing
from claimjobs.table.definitions import article_table
from tests.backends import Backend, Clock
from tests.conformance.jobs import counted, jobs, names, way_of_a_claim
from tests.conformance.owners import hold_of, still

JOBS = article_table()


def states(backend: Backend) -> dict[str, Any]:
    return {row["d"]: (row["status"], row["owner_id"]) for row in backend.rows()}


# --- the guard ---------------------------------------------------------------------------------------------


def test_what_another_owner_has_taken_is_lost_and_not_touched(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(4))
    with queue.claim() as batch:
        backend.run("UPDATE jobs SET owner_id = 42 WHERE d = '0001'")
        batch.done()
    assert names(batch.lost) == ["0001"]
    assert states(backend) == {"0001": ("claimed", 42)}
    assert (queue.report.done, queue.report.lost) == (3, 1)


def test_what_was_deleted_is_lost(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        backend.run("DELETE FROM jobs WHERE d = '0002'")
        batch.done()
    assert names(batch.lost) == ["0002"]
    assert states(backend) == {}


def test_what_was_handed_back_behind_our_back_is_lost(backend: Backend) -> None:
    """A supervisor that takes a living consumer for dead: its late word must not count."""
    queue, other = backend.queue(), backend.queue()
    queue.enqueue(jobs(4))
    with queue.claim() as batch:
        assert other.reclaim_owner(queue.owner_id) == 4
        with other.claim() as theirs:  # half as many: one of the four may be why their owner died
            batch.done()
            batch.settle()
            assert names(batch.lost) == ["0000", "0001", "0002", "0003"]
            mine, free = ("claimed", other.owner_id), ("unclaimed", None)
            assert states(backend) == {"0000": mine, "0001": mine, "0002": free, "0003": free}
            theirs.done()
    assert theirs.lost == ()
    assert list(states(backend)) == ["0002", "0003"]


def test_a_status_set_by_hand_is_respected(backend: Backend) -> None:
    """The guard is on the status too: an owner_id alone does not make a job ours."""
    queue = backend.queue()
    queue.enqueue(jobs(2))
    with queue.claim() as batch:
        backend.run("UPDATE jobs SET status = 'dead' WHERE d = '0000'")
        batch.done()
    assert names(batch.lost) == ["0000"]
    assert states(backend) == {"0000": ("dead", queue.owner_id)}
    backend.run("DELETE FROM jobs")


def test_each_kind_of_outcome_is_guarded(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(8))
    with queue.claim() as batch:
        backend.run("UPDATE jobs SET owner_id = 42 WHERE d in ('0000', '0002', '0004', '0006')")
        batch.done(*batch.jobs[0:2])
        batch.release(*batch.jobs[2:4])
        for job in batch.jobs[4:6]:
            batch.fail(job, "again", retry_in=60)
        for job in batch.jobs[6:8]:
            batch.fail(job, "never", retry=False)
    assert names(batch.lost) == ["0000", "0002", "0004", "0006"]
    assert states(backend) == {
        **dict.fromkeys(("0000", "0002", "0004", "0006"), ("claimed", 42)),
        "0003": ("unclaimed", None),
        "0005": ("unclaimed", None),
        "0007": ("dead", None),
    }
    report = queue.report
    assert (report.done, report.released, report.retried, report.dead, report.lost) == (1, 1, 1, 1, 4)


def test_all_lost_is_no_error(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        backend.run("DELETE FROM jobs")
        batch.done()
    assert batch.lost == batch.jobs


def test_a_loop_that_ends_meanwhile_does_not_disturb_a_settle_with_a_lost_job(backend: Backend) -> None:
    """What its own settle has claimed is released, when the database has said already what this owner holds."""
    queue = backend.queue()
    queue.enqueue(jobs(4))
    hold: Any = hold_of(queue)
    loop = queue.batches(1)
    with next(loop) as first:
        first.done()
    batch = queue.claim(1)
    backend.run("DELETE FROM jobs WHERE d = '0002'")
    record, ending = hold._record_settle, threading.Thread(target=loop.close)

    def record_late(*given: Any) -> Any:
        ending.start()
        ending.join(0.5)  # it waits for this settle
        return record(*given)

    hold._record_settle = record_late
    batch.done()
    batch.settle()
    ending.join(120)
    assert names(batch.lost) == ["0002"]
    free = ("unclaimed", None)
    backend.wait_for(lambda: states(backend) == {"0001": free, "0003": free}, "the heartbeat releases it")


# --- done, failed, dead ------------------------------------------------------------------------------------


def test_done_jobs_can_be_kept(backend: Backend) -> None:
    queue = backend.queue(on_done="keep")
    queue.enqueue(jobs(2))
    with queue.claim() as batch:
        batch.done()
    assert states(backend) == dict.fromkeys(("0000", "0001"), ("done", queue.owner_id))
    assert batch.lost == ()
    assert not queue.claim()


def test_a_failed_job_comes_back_when_its_wait_is_over(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(now=clock.sql)
    queue.enqueue(jobs(1, run_at=clock.now))
    with queue.claim() as batch:
        batch.fail(batch[0], ValueError("no such street"), retry_in=2.5)
    [row] = backend.rows(JOBS)
    assert (row["status"], row["owner_id"], row["owner_date"]) == ("unclaimed", None, None)
    assert row["run_at"] == clock.now + timedelta(seconds=2.5)
    assert (row["attempts"], row["last_error"]) == (1, "ValueError: no such street")
    clock.now += timedelta(seconds=2)
    assert not queue.claim()
    clock.now += timedelta(seconds=0.5)
    with queue.claim() as batch:
        assert batch[0].attempts == 1


def test_the_wait_grows_within_the_bounds_of_retry(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql, retry=Retry(attempts=4, base=10, cap=25))
    queue.enqueue(jobs(1, run_at=clock.now))
    for longest in (10, 20, 25):
        with queue.claim() as batch:
            batch.fail(batch[0], "again")
        [row] = backend.rows(JOBS)
        wait = (row["run_at"] - clock.now).total_seconds()
        assert longest / 2 <= wait <= longest
        clock.now += timedelta(seconds=longest)
    with queue.claim() as batch:
        batch.fail(batch[0], "for the last time")
    [row] = backend.rows(JOBS)
    assert (row["status"], row["attempts"], row["last_error"]) == ("dead", 4, "for the last time")
    assert (queue.report.retried, queue.report.dead) == (3, 1)
    clock.now += timedelta(days=1)
    assert not queue.claim()


def test_a_job_is_dead_at_once_where_a_retry_is_of_no_use(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(1))
    with queue.claim() as batch:
        batch.fail(batch[0], "no such address", retry=False)
    [row] = backend.rows()
    assert (row["status"], row["owner_id"], row["attempts"], row["last_error"]) == ("dead", None, 1, "no such address")


def test_each_job_keeps_its_own_error_and_its_own_wait(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql)
    queue.enqueue(jobs(6, run_at=clock.now))
    with queue.claim() as batch:
        for number, job in enumerate(batch.jobs):
            batch.fail(job, f"error {number} 'é☃\\", retry_in=number * 1.25, retry=number < 4)
    found = {row["d"]: (row["status"], row["last_error"], row["run_at"] - clock.now) for row in backend.rows(JOBS)}
    assert found == {
        f"{n:04}": (
            "unclaimed" if n < 4 else "dead",
            f"error {n} 'é☃\\",
            timedelta(seconds=n * 1.25 if n < 4 else 0),
        )
        for n in range(6)
    }


def test_a_long_error_is_cut(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(1))
    with queue.claim() as batch:
        batch.fail(batch[0], "é" * 50_000)
    [row] = backend.rows()
    assert row["last_error"] == "é" * 1_999 + "…"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("a\0b", "a\\0b"),
        ("half \ud800", "half \\ud800"),
        ("", ""),
        ("%s :name %(x)s ::int", "%s :name %(x)s ::int"),
    ],
    ids=["nul", "surrogate", "empty", "percent"],
)
def test_any_text_of_an_error_can_be_written(backend: Backend, said: str, kept: str) -> None:
    """Whatever a handler's exception says, its batch must be settled."""
    queue = backend.queue()
    queue.enqueue(jobs(2))
    with queue.claim() as batch:
        batch.fail(batch[0], said, retry=False)
        batch.done(batch[1])
    [row] = backend.rows()
    assert (row["status"], row["last_error"]) == ("dead", kept)


def test_a_table_that_cannot_hold_a_failure_says_so_when_one_is_told(backend: Backend) -> None:
    plain = sa.Table(
        "plain",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("status", sa.String(16), nullable=False, server_default="unclaimed"),
        sa.Column("owner_id", sa.Integer),
        mysql_engine="InnoDB",
    )
    queue = backend.queue(plain)
    queue.enqueue([{"id": 1}, {"id": 2}])
    with queue.claim() as batch:
        with pytest.raises(ColumnMissing, match="ALTER TABLE plain ADD COLUMN attempts"):
            batch.fail(batch[0], "broken")
        batch.done(batch[0])
    assert [(row["id"], row["status"], row["owner_id"]) for row in backend.rows(plain)] == [(2, "unclaimed", None)]


# --- the cost ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 400])
def test_a_settle_is_one_statement_a_kind_and_one_commit(backend: Backend, size: int) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(size))
    batch = queue.claim(size)
    quarter = size // 4
    with counted(backend.engine) as sent, batch:
        batch.done(*batch.jobs[:quarter])
        batch.release(*batch.jobs[quarter : 2 * quarter])
        for job in batch.jobs[2 * quarter :]:
            batch.fail(job, f"error of {job.d}", retry=job.d < f"{3 * quarter:04}")
    assert [sql.split()[0] for sql in sent] == ["DELETE", "UPDATE", "UPDATE", "UPDATE", "COMMIT"]
    assert len(backend.rows()) == 3 * quarter


@pytest.mark.parametrize("size", [1, 500])
def test_a_claim_is_few_statements_and_one_commit(backend: Backend, size: int) -> None:
    queue = still(backend.queue())  # its heart would look around meanwhile
    queue.enqueue(jobs(size))
    queue.claim(1).settle()
    with counted(backend.engine) as sent, queue.claim(size) as batch:
        assert len(batch) == size
        claim = [sql.split()[0] for sql in sent]
    assert claim == way_of_a_claim(backend)


# --- transactions that are run again -----------------------------------------------------------------------


def settle_beside(queue: Queue, size: int) -> tuple[threading.Thread, list[Any]]:
    """Claim now; settle in a thread, whose batch is the result."""
    batch = queue.claim(size)
    batch.done()
    settled: list[Any] = []

    def settle() -> None:
        batch.settle()
        settled.append(batch)

    return threading.Thread(target=settle), settled


def test_a_deadlock_is_run_again_and_counted(backend: Backend) -> None:
    """A real one: the settle deletes 0000 first and then waits for 0001, whose holder wants 0000."""
    queue = backend.queue(JOBS)
    queue.enqueue(jobs(2))
    settling, settled = settle_beside(queue, 2)
    first, second = 1, 2
    with backend.engine.connect() as other, other.begin():
        if backend.family == "postgres":
            other.exec_driver_sql("SET LOCAL deadlock_timeout = '10s'")  # the settle is to be the victim
        # InnoDB undoes the one that has changed less.
        other.execute(sa.insert(JOBS), [{"id": 1_000 + n, **job} for n, job in enumerate(jobs(100))])
        other.execute(sa.select(JOBS).where(JOBS.c.id == second).with_for_update()).all()
        settling.start()
        backend.wait_for(backend.someone_waits_for_a_lock, "the settle waits for the second job")
        other.execute(sa.select(JOBS).where(JOBS.c.id == first).with_for_update()).all()
        other.rollback()
    settling.join(120)
    assert settled
    assert settled[0].lost == ()
    # How many there are is a matter of who comes first: the settle that is run again, or who waits for the first job.
    assert set(queue.report.transients) == {"deadlock"}
    assert backend.rows() == []


def test_a_lock_timeout_is_run_again_and_counted(backend: Backend) -> None:
    engine = backend.new_engine()
    impatient = {"postgres": "SET lock_timeout = '200ms'"}.get(backend.family, "SET innodb_lock_wait_timeout = 1")

    @sa.event.listens_for(engine, "connect")
    def _(connection: Any, _record: Any) -> None:
        connection.cursor().execute(impatient)
        connection.commit()

    queue = backend.queue(JOBS, bind=engine)
    queue.enqueue(jobs(1))
    settling, settled = settle_beside(queue, 1)
    with backend.engine.connect() as other, other.begin():
        other.execute(sa.select(JOBS).where(JOBS.c.id == 1).with_for_update()).all()
        settling.start()
        backend.wait_for(lambda: queue.report.transients["lock timeout"], "a timeout is counted")
        assert not settled
    settling.join(120)
    assert settled
    assert settled[0].lost == ()
    assert backend.rows() == []


def test_an_error_that_will_not_go_away_is_raised_at_once(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(1))
    batch = queue.claim()
    batch.done()
    backend.run("ALTER TABLE jobs RENAME TO elsewhere")
    with pytest.raises((SettleFailed, TableMissing)):
        batch.settle()
    assert not batch.settled
    assert not queue.report.transients
    backend.run("ALTER TABLE elsewhere RENAME TO jobs")
    batch.settle()
    assert backend.rows() == []
