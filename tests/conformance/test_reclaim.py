"""What a dead owner held is reclaimed: by whom, how much of it, and what becomes of the jobs."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Columns, Queue, Retry, make
from claimjobs.errors import ServerUnreachable
from claimjobs.lease.reaper import Reaper
from claimjobs.log_events import OWNER_STUCK
from claimjobs.options import Liveness
from claimjobs.settle.outcomes import Outcomes
from claimjobs.table.definitions import FIRST_OWNER, shared_tables
from tests.backends import Backend
from tests.conformance.consumer_process import consumer
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import age, hold_of, owner_row, session_of, states, still, stranger_holds

QUICK = Liveness(lease=2.0)
PATIENT = Liveness(lease=60.0)
"""Nothing in these tests lasts so long: with it the session lock alone can have told."""

pytestmark = pytest.mark.usefixtures("no_heart_outlives_its_test")


# --- a process dies ----------------------------------------------------------------------------------------


def test_what_a_killed_process_held_is_handed_back_at_once(database: Backend) -> None:
    """By the heart of another consumer, which has nothing else to do; long before any lease is over."""
    queue = database.queue(liveness=PATIENT)
    queue.enqueue(jobs(3))
    with consumer(database, size=2) as (process, owner_id):
        assert queue.owner_id
        assert session_of(database, owner_id) is not None
        process.kill()
        process.wait()
        assert queue._control.woken(120)
    assert queue.report.reclaimed == 2
    assert states(database) == ["unclaimed"] * 3
    assert owner_row(database, owner_id) is None


def test_killed_while_nobody_else_is_there_the_next_consumer_finds_the_jobs(database: Backend) -> None:
    database.queue().enqueue(jobs(2))
    with consumer(database, size=2) as (process, _):
        process.kill()
        process.wait()
    found: list[str] = []
    for batch in database.queue().batches():
        with batch:
            found += [job.d for job in batch]
        if len(found) == 2:
            break
    assert sorted(found) == ["0000", "0001"]


def test_reclaim_owner_does_not_believe_a_session_that_lasts(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process has ended, so what is left of its session is ended too."""
    queue, supervisor = still(backend.queue()), backend.queue()
    queue.enqueue(jobs(2))
    me, batch = queue.owner_id, queue.claim(2)
    assert supervisor.reclaim_owner(me) == 2
    assert f"owner {me} is dead: 2 jobs reclaimed" in caplog.messages
    backend.wait_for(lambda: session_of(backend, me) is None, "its session ends")
    batch.settle()
    assert batch.lost == batch.jobs


# --- each owner once, each job when it can be locked -------------------------------------------------------


def test_two_reapers_reclaim_each_owner_once(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    dead = [still(backend.queue()) for _ in range(4)]
    dead[0].enqueue(jobs(12))
    batches = [queue.claim(3) for queue in dead]
    age(backend, *(queue.owner_id for queue in dead))
    together = threading.Barrier(2)
    counts: list[int] = []

    def reclaim(reaper: Queue) -> None:
        together.wait(120)
        counts.append(reaper.reclaim())

    threads = [threading.Thread(target=reclaim, args=[backend.queue()]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sum(counts) == 12
    assert states(backend) == ["unclaimed"] * 12
    assert [row["attempts"] for row in backend.rows()] == [0] * 12
    told = sorted(message for message in caplog.messages if "is dead" in message)
    assert told == [f"owner {queue.owner_id} is dead: 3 jobs reclaimed" for queue in dead]
    for batch in batches:
        batch.settle()
        assert batch.lost == batch.jobs


def test_jobs_that_a_stranger_has_locked_are_left_for_the_next_look(backend: Backend) -> None:
    queue, other = still(backend.queue()), still(backend.queue())
    queue.enqueue(jobs(3))
    me, _ = queue.owner_id, queue.claim(3)
    age(backend, me)
    with stranger_holds(backend, "0001"):
        assert other.reclaim() == 2
        assert states(backend) == ["unclaimed", "claimed", "unclaimed"]
        assert owner_row(backend, me)["died"] is not None
        assert other.reclaim() == 0
    assert other.reclaim() == 1
    assert states(backend) == ["unclaimed"] * 3
    assert owner_row(backend, me) is None


def test_an_owner_that_cannot_be_reclaimed_keeps_no_other_waiting(
    backend: Backend, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, other = [still(backend.queue()) for _ in range(3)], still(backend.queue())
    dead[0].enqueue(jobs(6))
    held = [queue.claim(2) for queue in dead]
    age(backend, *(queue.owner_id for queue in dead))
    reaper, first = hold_of(other)._reaper, dead[0].owner_id
    reclaim_in = reaper._reclaim_in

    def refused(connection: sa.Connection, owner: int, *given: Any, **named: Any) -> Any:
        if owner == first:
            connection.execute(sa.text("SELECT nothing"))
        return reclaim_in(connection, owner, *given, **named)

    with monkeypatch.context() as broken:
        broken.setattr(reaper, "_reclaim_in", refused)
        for _ in range(2):
            with pytest.raises(sa.exc.DBAPIError):
                reaper.reclaim_dead()
        assert Counter(states(backend)) == {"unclaimed": 4, "claimed": 2}
    told = [record for record in caplog.records if getattr(record, "event", "") == OWNER_STUCK]
    assert [(record.owner, record.levelname) for record in told] == [(first, "WARNING")]  # type: ignore[attr-defined]
    assert reaper.reclaim_dead() == 2
    assert states(backend) == ["unclaimed"] * 6
    assert len(held) == 3


def test_what_was_reclaimed_before_an_error_is_reported(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    dead: list[Any] = []
    queue, other = (
        still(backend.queue()),
        still(backend.queue(retry=Retry(attempts=1), on_dead=lambda *job: dead.append(job))),
    )
    queue.enqueue(jobs(1))
    assert queue.claim(1)
    age(backend, queue.owner_id)
    monkeypatch.setattr(Reaper, "unknown", fails)
    with pytest.raises(ServerUnreachable):
        other.reclaim()
    assert len(dead) == 1


@pytest.mark.parametrize(
    ("gone", "again"),
    [
        ("DELETE FROM jobs", "SELECT 1"),
        pytest.param(
            *("ALTER TABLE jobs RENAME TO elsewhere", "ALTER TABLE elsewhere RENAME TO jobs"),
            marks=pytest.mark.pair("the statement itself fails"),
        ),
    ],
    ids=["row", "table"],
)
def test_a_job_whose_row_is_gone_by_then_is_reported_by_its_key(backend: Backend, gone: str, again: str) -> None:
    dead: list[Any] = []
    queue = still(backend.queue())
    other = still(backend.queue(retry=Retry(attempts=1), on_dead=lambda job, error: dead.append((job.key, dict(job)))))
    queue.enqueue(jobs(1))
    key = queue.claim(1)[0].key
    age(backend, queue.owner_id)
    with other._access.reaper() as reaper:
        assert reaper.reclaim_dead() == 1
        backend.run(gone)
    assert dead == [(key, {})]
    backend.run(again)


def test_without_a_column_for_suspects_what_a_dead_owner_held_is_released(backend: Backend) -> None:
    backend.run(
        "CREATE TABLE plain (id INTEGER PRIMARY KEY, status VARCHAR(10) NOT NULL, owner_id BIGINT, "
        "run_at TIMESTAMP NULL, attempts INTEGER NOT NULL)"
    )
    backend.run("INSERT INTO plain VALUES (1, 'unclaimed', NULL, NULL, 0), (2, 'unclaimed', NULL, NULL, 0)")
    make(backend.engine, shared_tables())
    queue, other = (still(backend.bare_queue("plain", columns=Columns(), on_done="delete")) for _ in range(2))
    assert len(queue.claim(2)) == 2
    age(backend, queue.owner_id)
    assert other.reclaim() == 2
    assert [(row["status"], row["attempts"]) for row in backend.rows("plain")] == [("unclaimed", 0)] * 2


def fails(_: Reaper) -> int:
    raise ServerUnreachable("no answer")


def test_of_several_jobs_none_is_charged_though_a_stranger_has_locked_all_but_one(backend: Backend) -> None:
    queue, other = still(backend.queue()), still(backend.queue())
    queue.enqueue(jobs(3))
    queue.claim(3)
    age(backend, queue.owner_id)
    with stranger_holds(backend, "0001", "0002"):
        assert other.reclaim() == 1
    with stranger_holds(backend, "0001"):
        assert other.reclaim() == 1
    assert other.reclaim() == 1
    assert [row["attempts"] for row in backend.rows()] == [0, 0, 0]


# --- unknown owners ----------------------------------------------------------------------------------------


def hold(backend: Backend, name: str, owner_id: int) -> None:
    backend.run("UPDATE jobs SET status = 'claimed', owner_id = :owner WHERE d = :name", owner=owner_id, name=name)


def test_what_unknown_owners_hold_is_handed_back_but_not_what_other_programs_do(backend: Backend) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(3))
    hold(backend, "0000", FIRST_OWNER + 4_711)
    hold(backend, "0001", FIRST_OWNER - 1)
    assert queue.reclaim() == 1
    assert states(backend) == ["unclaimed", "claimed", "unclaimed"]
    assert queue.reclaim() == 0


def test_unknown_owners_are_found_in_a_column_that_is_read_as_decimals(backend: Backend) -> None:
    backend.make()
    backend.run("CREATE TABLE tasks (id INTEGER PRIMARY KEY, status VARCHAR(9), owner_id NUMERIC(12, 0))")
    backend.run("INSERT INTO tasks VALUES (1, 'claimed', :owner)", owner=FIRST_OWNER + 4_711)
    queue = still(backend.bare_queue("tasks", on_done="delete"))
    assert queue.reclaim() == 1
    assert [row["status"] for row in backend.rows("tasks")] == ["unclaimed"]


@pytest.mark.parametrize("liveness", [QUICK, Liveness(lease=2.0, session_lock=False)], ids=["locks", "lease only"])
def test_hearts_find_what_unknown_owners_hold(backend: Backend, liveness: Liveness) -> None:
    queue = backend.queue(liveness=liveness)
    queue.enqueue(jobs(1))
    hold(backend, "0000", FIRST_OWNER + 4_711)
    assert queue.owner_id
    backend.wait_for(lambda: states(backend) == ["unclaimed"], "it is handed back")


# --- what becomes of its jobs ------------------------------------------------------------------------------


def left_behind(backend: Backend, count: int, retry: Retry) -> int:
    """Jobs in the hand of an owner that dies; how many were handed back."""
    queue, other = still(backend.queue(retry=retry)), still(backend.queue(retry=retry))
    queue.claim(count)
    age(backend, queue.owner_id)
    return other.reclaim()


def test_who_knows_how_the_process_ended_says_so_in_the_error(database: Backend) -> None:
    queue = still(database.queue())
    queue.enqueue(jobs(1))
    queue.claim(1)
    assert database.queue().reclaim_owner(queue.owner_id, "process 17 ended by signal 9") == 1
    why = f"owner {queue.owner_id} died while it held this job: process 17 ended by signal 9"
    assert database.rows()[0]["last_error"] == why


def test_a_job_that_was_alone_in_a_dead_hand_is_charged(backend: Backend) -> None:
    retry = Retry(attempts=3, base=600)
    backend.queue().enqueue(jobs(1))
    due = backend.rows()[0]["run_at"]
    assert left_behind(backend, 1, retry) == 1
    [row] = backend.rows()
    assert (row["status"], row["attempts"], row["suspect"], row["owner_id"]) == ("unclaimed", 1, 1, None)
    assert "died while it held this job" in row["last_error"]
    assert len(still(backend.queue()).claim()) == 1, "after the first death it is available at once"
    backend.run("UPDATE jobs SET status = 'unclaimed', owner_id = NULL")
    assert left_behind(backend, 1, retry) == 1
    [row] = backend.rows()
    assert (row["status"], row["attempts"]) == ("unclaimed", 2)
    assert (row["run_at"] - due).total_seconds() >= 300
    backend.run("UPDATE jobs SET run_at = :due", due=due)
    assert left_behind(backend, 1, retry) == 1
    [row] = backend.rows()
    assert (row["status"], row["attempts"], row["owner_id"]) == ("dead", 3, None)


def test_of_several_jobs_in_a_dead_hand_none_is_charged(backend: Backend) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(5))
    assert left_behind(backend, 4, Retry(attempts=1, base=600)) == 4
    assert [(row["status"], row["attempts"], row["suspect"]) for row in backend.rows()] == [
        *[("unclaimed", 0, 4)] * 4,
        ("unclaimed", 0, 0),
    ]
    with queue.claim(5) as batch:
        assert names(batch) == ["0000", "0001"], "half as many as they were, at once"


def test_a_clean_close_charges_nobody(backend: Backend) -> None:
    queue = backend.queue(retry=Retry(attempts=1))
    queue.enqueue(jobs(2))
    queue.claim(1)
    queue.close()
    assert [(row["status"], row["attempts"], row["suspect"]) for row in backend.rows()] == [("unclaimed", 0, 0)] * 2


class TakenMeanwhile(deque[Outcomes]):
    """Another thread takes the last element before this one does."""

    def __bool__(self) -> bool:
        return True


def test_two_threads_may_claim_while_a_failure_is_to_be_reported(
    anywhere: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = anywhere.queue()
    monkeypatch.setattr(hold_of(queue).owner.reaper, "unreported", TakenMeanwhile())
    assert not queue.claim()
