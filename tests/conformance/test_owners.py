"""Owners: who holds jobs, from the first claim to the end of the process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from claimjobs.errors import CrossedFork
from claimjobs.table.backend import inspect_table
from claimjobs.table.definitions import FIRST_OWNER, OWNER_TABLE, article_table
from tests.backends import Backend, Clock
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import still, write_owner

JOBS = article_table()


def owners(backend: Backend) -> list[Any]:
    return [row["id"] for row in backend.rows(OWNER_TABLE)]


def test_an_owner_is_registered_once_at_the_first_claim(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(3))
    queue.stats()
    assert owners(backend) == []
    for _ in range(3):
        queue.claim(1).settle()
    assert owners(backend) == [queue.owner_id]
    [row] = backend.rows(OWNER_TABLE)
    assert (row["pid"], row["claims"]) == (os.getpid(), "jobs")


def test_ids_are_above_any_process_id_and_nobodys_twice(backend: Backend) -> None:
    first = [backend.queue().owner_id for _ in range(3)]
    assert min(first) >= FIRST_OWNER == 10_000_000
    assert len(set(first)) == 3
    last = backend.queue()
    gone = last.owner_id
    last.close()
    assert backend.queue().owner_id > gone


@pytest.mark.parametrize("holds", [True, False], ids=["holds a job", "idle"])
def test_a_table_of_owners_that_is_made_again_gives_out_no_id_that_was_anybodys(backend: Backend, holds: bool) -> None:
    """Who lived when it was dropped may come back, and must not take another one's row for its own."""
    queue = still(backend.queue())
    queue.enqueue(jobs(3))
    before = queue.owner_id
    batch = queue.claim(1 if holds else 3)
    if not holds:
        batch.settle()
        made = queue.now()
        backend.wait_for(lambda: queue.now() - made > timedelta(seconds=1), "its first id was that of a second before")
    backend.run(f"DROP TABLE {OWNER_TABLE}")
    backend.make()
    other = backend.queue()
    assert other.owner_id > before
    with queue.claim(1) as again:
        assert queue.owner_id > other.owner_id
        again.done()
    assert again.lost == ()
    if holds:
        batch.settle()


def test_close_hands_back_and_leaves(backend: Backend) -> None:
    queue, other = backend.queue(), backend.queue()
    queue.enqueue(jobs(4))
    taken, theirs = queue.claim(2), other.claim(1)
    queue.close()
    assert [row["status"] for row in backend.rows()] == ["unclaimed", "unclaimed", "claimed", "unclaimed"]
    assert owners(backend) == [other.owner_id]
    theirs.settle()
    assert taken
    queue.close()


def test_a_batch_that_is_settled_after_close_is_refused_and_leaves_nothing(backend: Backend) -> None:
    """No owner that nobody lets beat and nobody closes; the fixture sees the connection that is left open."""
    queue = backend.queue()
    queue.enqueue(jobs(2))
    with queue.claim(2) as batch:
        batch.done()
        queue.close()
    assert batch.lost == batch.jobs
    assert owners(backend) == []
    assert {row["status"] for row in backend.rows()} == {"unclaimed"}


def test_a_closed_queue_can_be_used_again_as_another_owner(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(1))
    before = queue.owner_id
    queue.close()
    with queue.claim() as batch:
        assert names(batch) == ["0000"]
        assert queue.owner_id != before
        batch.done()
    assert backend.rows() == []


def test_a_with_block_closes(backend: Backend) -> None:
    with backend.queue() as queue:
        assert [queue.owner_id] == owners(backend)
    assert owners(backend) == []


def test_a_queue_that_is_forgotten_leaves(backend: Backend) -> None:
    backend.make()
    backend.queue().enqueue(jobs(2))
    backend.forgets_batches = True
    queue = backend.queue()
    queue.claim(1)
    backend._queues.remove(queue)
    del queue
    gc.collect()
    assert owners(backend) == []
    assert {row["status"] for row in backend.rows()} == {"unclaimed"}


ENDS = {
    "falls off its end": ("", 0),
    "exits in the middle of a batch": ("sys.exit(3)", 3),
    "dies of an exception": ("raise RuntimeError", 1),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_process_hands_back_and_leaves_when_it(database: Backend, how: str) -> None:
    last_line, status = ENDS[how]
    backend = database
    backend.queue().enqueue(jobs(3))
    program = f"""
import sys
from claimjobs import Queue
queue = Queue({backend.url!r})
batch = queue.claim(2)
assert len(batch) == 2
print(queue.owner_id)
{last_line}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stderr
    assert int(ended.stdout) >= FIRST_OWNER
    assert owners(backend) == []
    assert {row["status"] for row in backend.rows()} == {"unclaimed"}


def test_what_a_dead_owner_held_is_given_back_in_one_call(backend: Backend) -> None:
    dead, queue = still(backend.queue()), backend.queue()
    queue.enqueue(jobs(5))
    held, mine = dead.claim(3), queue.claim(1)
    assert queue.reclaim_owner(dead.owner_id) == 3
    assert owners(backend) == [queue.owner_id]
    assert [row["status"] for row in backend.rows()] == [*["unclaimed"] * 3, "claimed", "unclaimed"]
    assert queue.reclaim_owner(dead.owner_id) == 0
    mine.settle()
    held.settle()
    assert held.lost == held.jobs


def test_giving_back_ends_no_transaction_of_its_own_owner(backend: Backend) -> None:
    """A supervisor that never claims needs no owner to give back with."""
    dead, supervisor = backend.queue(), backend.queue()
    supervisor.enqueue(jobs(1))
    dead.claim()
    supervisor.reclaim_owner(dead.owner_id)
    assert owners(backend) == []


# --- a fork ------------------------------------------------------------------------------------------------

FORKS = """
import os, sys
from claimjobs import Queue
from claimjobs.errors import CrossedFork
from claimjobs.table.backend import inspect_table

queue = Queue({url!r})
batch = queue.claim(1)
assert len(batch) == 1
loop = queue.batches(1)
with next(loop) as first:
    first.done()  # and the next batch is claimed
child = os.fork()
if not child:
    for use in (queue.claim, queue.stats, queue.check, lambda: queue.enqueue([]), lambda: queue.reclaim_owner(1),
                lambda: queue.owner_id, batch.settle, lambda: batch.__exit__(None, None, None)):
        try:
            use()
        except CrossedFork as error:
            assert "make a Queue in each process" in str(error)
        else:
            os._exit(9)
    loop.close()
    sys.exit(5)  # through the finalizers: what the child inherited is not its own to hand back
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 5, status
assert len(queue.stats().owners) == 1
with batch:
    batch.done()
assert batch.lost == ()
assert queue.stats().claimed == 1
with next(loop) as batch:
    assert len(batch) == 1
    batch.done()
assert batch.lost == ()
assert queue.stats().left == 0
print("unharmed")
"""


def test_a_queue_carried_across_a_fork_is_refused_and_the_parent_goes_on(database: Backend) -> None:
    database.queue().enqueue(jobs(3))
    program = FORKS.format(url=database.url)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert ended.stdout == "unharmed\n", ended.stderr
    assert issubclass(CrossedFork, Exception)


# --- stats -------------------------------------------------------------------------------------------------


def test_stats_count_by_status_and_owner(backend: Backend, clock: Clock) -> None:
    queue, other = backend.queue(JOBS, now=clock.sql, on_done="keep"), backend.queue(JOBS, now=clock.sql)
    queue.enqueue(jobs(10, run_at=clock.now))
    with queue.claim(2) as batch:
        batch.done()
    with queue.claim(1) as batch:
        batch.fail(batch[0], "broken", retry=False)
    mine, theirs = queue.claim(3), other.claim(1)
    clock.now += timedelta(seconds=90)
    stats = queue.stats()
    assert (stats.unclaimed, stats.claimed, stats.done, stats.dead, stats.left) == (3, 4, 2, 1, 7)
    assert stats.oldest == 90
    assert {owner.id: owner.jobs for owner in stats.owners} == {queue.owner_id: 3, other.owner_id: 1}
    assert {owner.pid for owner in stats.owners} == {os.getpid()}
    mine.settle()
    theirs.settle()


def test_stats_of_an_empty_queue(backend: Backend) -> None:
    stats = backend.queue().stats()
    assert (stats.left, stats.done, stats.dead, stats.oldest, stats.owners) == (0, 0, 0, None, ())


def test_a_job_that_is_not_due_has_no_age(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql)
    queue.enqueue(jobs(1, run_at=clock.now + timedelta(hours=1)))
    assert (queue.stats().oldest, queue.stats().due) == (None, 0)
    clock.now += timedelta(hours=2)
    assert (queue.stats().oldest, queue.stats().due) == (3600, 1)


def test_the_age_of_a_job_without_a_time_is_not_known(backend: Backend) -> None:
    type_ = "TIMESTAMPTZ" if backend.family == "postgres" else "DATETIME(6)"
    backend.make()
    backend.run(f"CREATE TABLE tasks (id INT PRIMARY KEY, status VARCHAR(16), owner_id INT, run_at {type_} NULL)")
    backend.run("INSERT INTO tasks VALUES (1, 'unclaimed', NULL, NULL), (2, 'unclaimed', NULL, '2900-01-01')")
    queue = backend.bare_queue("tasks", on_done="keep")
    stats, backlog = queue.stats(), queue.backlog()
    assert (stats.unclaimed, stats.due, stats.oldest) == (2, 1, None)
    assert (backlog.unclaimed, backlog.due, backlog.oldest) == (2, 1, None)


def test_by_the_databases_clock_ages_are_small_and_not_negative(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(1))
    batch = queue.claim(1)
    batch.release()
    batch.settle()
    stats = queue.stats()
    assert stats.oldest is not None
    assert 0 <= stats.oldest < 60
    assert 0 <= stats.owners[0].age < 60


def test_owners_of_another_table_are_not_counted(backend: Backend) -> None:
    queue, elsewhere = backend.queue(), backend.queue("emails")
    assert queue.owner_id != elsewhere.owner_id
    assert [owner.id for owner in queue.stats().owners] == [queue.owner_id]


def test_what_is_written_while_stats_are_read_is_not_of_the_future(backend: Backend) -> None:
    """A heartbeat may be committed after the transaction that reads it has begun."""
    queue = still(backend.queue())
    queue.pause()
    later = queue.now() + timedelta(hours=1)
    write_owner(backend, queue.owner_id, beat=later, started=later)
    backend.run("UPDATE claimjobs_queues SET paused = :later", later=later)
    stats = queue.stats()
    assert (stats.owners[0].silence, stats.owners[0].age, stats.paused) == (0, 0, 0)
    queue.resume()


def test_an_owner_that_may_be_dead_is_told_as_such(backend: Backend) -> None:
    backend.may_leave_owners = True
    queue, other = still(backend.queue()), still(backend.queue())
    alive, dead = queue.owner_id, other.owner_id
    backend.run(f"UPDATE claimjobs_owners SET died = beat WHERE id = {dead}")
    told = {owner.id: (owner.dead, owner.lock) for owner in backend.bare_queue().stats().owners}
    assert told == {alive: (False, "held"), dead: (True, "held")}


def test_giving_back_leaves_the_owners_of_other_tables_alone(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    queue, elsewhere = backend.queue(), backend.queue("emails")
    elsewhere.enqueue(jobs(1))
    batch = elsewhere.claim()
    assert queue.reclaim_owner(elsewhere.owner_id) == 0
    assert f"owner {elsewhere.owner_id} is not reclaimed: it claims jobs from emails" in caplog.text
    batch.done()
    batch.settle()
    assert batch.lost == ()
    assert elsewhere.owner_id in owners(backend)


@pytest.mark.one_server("what a process keeps is kept by Python, whatever the server is")
def test_what_queues_share_is_described_once(backend: Backend) -> None:
    """So a statement about it is compiled once for all Queues of an engine."""
    backend.make()
    first, second = (inspect_table(backend.engine, "jobs", per_batch=True) for _ in range(2))
    assert first.owners is second.owners
    assert first.queues is second.queues
    assert first.roles.claim_rows is not None
    assert second.roles.claim_rows is not None
    assert first.roles.claim_rows.table is second.roles.claim_rows.table
