"""`claimjobs reclaim`."""

from __future__ import annotations

import os
import re
import socket

import pytest

from claimjobs import Queue
from claimjobs.cli import exits
from claimjobs.table.definitions import FIRST_OWNER
from tests.backends import Backend
from tests.cli.command import Ended, claimjobs
from tests.conformance.jobs import jobs
from tests.conformance.owners import age, end_session, still

pytestmark = pytest.mark.one_server("a command parses and prints; the reaper is tested beside the Queue")


def reclaim(backend: Backend, *words: str | int) -> Ended:
    return claimjobs("reclaim", *map(str, words), "--url", backend.url)


def holding(backend: Backend, count: int) -> Queue:
    """An owner of this process that holds jobs, and whose heart is still."""
    queue = still(backend.queue())
    queue.enqueue(jobs(count))
    assert len(queue.claim(count)) == count
    return queue


def statuses(backend: Backend) -> list[str]:
    return [row["status"] for row in backend.rows()]


def test_what_dead_owners_held_is_handed_back_and_they_are_named(database: Backend) -> None:
    age(database)  # waits for it, on a server that has just been started; the owner that lives must not grow silent
    silent, cut, alive = holding(database, 2), holding(database, 1), holding(database, 3)
    ids = silent.owner_id, cut.owner_id
    age(database, silent.owner_id)
    end_session(database, cut.owner_id)
    ended = reclaim(database)
    assert (ended.code, ended.out) == (exits.OK, "3\n")
    assert sorted(re.sub(r"in [\d.]+ s", "in N s", ended.err).splitlines()) == [
        f"claimjobs: job 3 failed: owner {ids[1]} died while it held this job; it runs again in N s",
        f"claimjobs: owner {ids[0]} is dead: 2 jobs reclaimed",
        f"claimjobs: owner {ids[1]} is dead: 1 job reclaimed",
    ]
    assert statuses(database) == ["unclaimed"] * 3 + ["claimed"] * 3
    assert [owner.id for owner in alive.stats().owners] == [alive.owner_id]


def test_where_nobody_is_dead_nothing_is_handed_back(anywhere: Backend) -> None:
    holding(anywhere, 2)
    assert reclaim(anywhere) == Ended(exits.OK, "0\n", "")
    assert statuses(anywhere) == ["claimed"] * 2


def test_a_single_dead_owner(database: Backend) -> None:
    one, other = holding(database, 2), holding(database, 1)
    owner = one.owner_id
    for queue in (one, other):
        end_session(database, queue.owner_id)
    ended = reclaim(database, "--owner", owner)
    assert ended == Ended(exits.OK, "2\n", f"claimjobs: owner {owner} is dead: 2 jobs reclaimed\n")
    assert statuses(database) == ["unclaimed", "unclaimed", "claimed"]


def test_a_job_that_was_alone_is_dead_after_as_many_attempts_as_are_said(anywhere: Backend) -> None:
    for attempts, status in ((2, "unclaimed"), (1, "dead")):
        queue = holding(anywhere, 1)
        end_session(anywhere, queue.owner_id)
        assert reclaim(anywhere, "--retry-attempts", attempts).out == "1\n"
        [row] = anywhere.rows()
        assert (row["status"], row["attempts"]) == (status, 1)
        anywhere.run("DELETE FROM jobs")


def test_a_living_owner_is_refused(database: Backend) -> None:
    owner = holding(database, 2).owner_id
    ended = reclaim(database, "--owner", owner)
    assert (ended.code, ended.out) == (exits.USAGE, "")
    assert f"owner {owner} ({socket.gethostname()}:{os.getpid()}) seems to live" in ended.err
    assert "its session lock is held, its last heartbeat was " in " ".join(ended.err.split())
    assert "--force" in ended.err
    assert statuses(database) == ["claimed"] * 2


def test_a_living_owner_by_force(database: Backend) -> None:
    queue = holding(database, 2)
    owner = queue.owner_id
    ended = reclaim(database, "--owner", owner, "--force")
    assert (ended.code, ended.out) == (exits.OK, "2\n")
    assert statuses(database) == ["unclaimed"] * 2
    assert len(queue.claim(2)) in (1, 2)  # under a new id, of suspects no more than half
    assert queue.owner_id != owner


def test_an_owner_that_nobody_knows(anywhere: Backend) -> None:
    anywhere.make()
    ended = reclaim(anywhere, "--owner", FIRST_OWNER + 77)
    assert (ended.code, ended.out) == (exits.OK, "0\n")
    assert f"no owner {FIRST_OWNER + 77} of jobs is known, and it holds no job" in ended.err


def test_an_owner_that_is_in_no_table_but_holds_jobs(anywhere: Backend) -> None:
    queue = anywhere.queue()
    queue.enqueue(jobs(3))
    anywhere.run(f"UPDATE jobs SET status = 'claimed', owner_id = {FIRST_OWNER + 77}")
    assert reclaim(anywhere, "--owner", FIRST_OWNER + 77).out == "3\n"
    assert statuses(anywhere) == ["unclaimed"] * 3


def test_another_programs_owner_needs_force(anywhere: Backend) -> None:
    queue = anywhere.queue()
    queue.enqueue(jobs(2))
    anywhere.run("UPDATE jobs SET status = 'claimed', owner_id = 42")
    ended = reclaim(anywhere, "--owner", 42)
    assert (ended.code, ended.out) == (exits.USAGE, "")
    assert "owner 42 is another program's" in ended.err
    assert reclaim(anywhere).out == "0\n"
    assert statuses(anywhere) == ["claimed"] * 2
    assert reclaim(anywhere, "--owner", 42, "--force").out == "2\n"
    assert statuses(anywhere) == ["unclaimed"] * 2


def test_an_owner_of_another_table_is_left_alone(anywhere: Backend) -> None:
    anywhere.make()
    elsewhere = still(anywhere.queue("emails"))
    elsewhere.enqueue(jobs(1))
    batch = elsewhere.claim()
    ended = reclaim(anywhere, "--owner", elsewhere.owner_id, "--force")
    assert (ended.code, ended.out) == (exits.OK, "0\n")
    assert f"owner {elsewhere.owner_id} is not reclaimed: it claims jobs from emails" in ended.err
    batch.done()
    batch.settle()
    assert batch.lost == ()


@pytest.mark.parametrize(
    ("words", "said"), [(("--force",), "--force goes with --owner"), (("--owner", "0"), "0 is not in the range")]
)
def test_a_command_line_that_is_wrong(words: tuple[str, ...], said: str) -> None:
    ended = claimjobs("reclaim", *words)
    assert ended.code == exits.USAGE
    assert said in ended.err


def test_json_is_one_object(anywhere: Backend) -> None:
    queue = holding(anywhere, 2)
    end_session(anywhere, queue.owner_id)
    ended = reclaim(anywhere, "--json")
    assert (ended.code, ended.out) == (exits.OK, '{"handed_back": 2}\n')
    assert reclaim(anywhere, "--json").out == '{"handed_back": 0}\n'


def test_jobs_that_are_claimed_by_nobody_are_told_of_and_freed(database: Backend) -> None:
    database.make()
    database.insert("jobs", jobs(2, status="claimed"))
    told = "claimjobs: 2 jobs claimed without an owner: `claimjobs reclaim --ownerless --url URL` releases them\n"
    assert reclaim(database) == Ended(exits.OK, "0\n", told)
    shown = claimjobs("status", env={"CLAIMJOBS_URL": database.url}).out
    assert "jobs: 2 claimed without an owner: `claimjobs reclaim --ownerless` releases them\n" in shown
    assert statuses(database) == ["claimed"] * 2
    assert reclaim(database, "--ownerless", "--json") == Ended(exits.OK, '{"handed_back": 2}\n', "")
    assert statuses(database) == ["unclaimed"] * 2
    assert reclaim(database, "--ownerless", "--owner", 7).code == exits.USAGE
