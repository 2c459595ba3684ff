"""A replica takes over: work goes on there, and what an owner holds stays its own. Real servers, real replication."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, make, tables_for
from claimjobs.options import Liveness
from servers.errors import Unavailable
from servers.replication import Pair, ask, replicated
from tests.backends import Backend, KeepingQueue, wait_for
from tests.cli.command import claimjobs
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import end_session, still, write_owner
from tests.flavours import FAMILIES, MAY_BE_MISSING, Family
from tests.process.command import ROOT, summary

SHORT = Liveness(lease=2.0)
PATIENT = Liveness(lease=30.0)
ON_POSTGRES = pytest.mark.parametrize("pair", ["postgres"], indirect=True)
"""For what does not depend on how a server follows another, because two servers take some seconds to start."""
WORKING = "SELECT count(DISTINCT owner_id) FROM jobs WHERE status = 'claimed'"


@pytest.fixture(params=FAMILIES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A primary and its replica, with the tables of a queue."""
    yield from _pair(request.param)


@pytest.fixture
def synchronous(pair: Pair) -> Pair:
    """A commit returns when the replica has it."""
    try:
        pair.be_synchronous()
    except Unavailable as error:
        pytest.skip(str(error))
    return pair


def _pair(family: Family) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        try:
            both = stack.enter_context(replicated(family))
        except Unavailable as error:
            if family in MAY_BE_MISSING:
                pytest.skip(f"no {family} server: {error}")
            pytest.fail(f"no {family} server: {error}", pytrace=False)
        engine = sa.create_engine(both.primary.url)
        make(engine, tables_for("jobs"))
        engine.dispose()
        both.wait_until_it_follows()
        yield both


@pytest.fixture
def queue_to(pair: Pair) -> Iterator[Callable[..., Queue]]:
    """Makes Queues on the URL with both hosts. They are closed at the end."""
    made: list[Queue] = []

    def new(liveness: Liveness = PATIENT) -> Queue:
        made.append(KeepingQueue(pair.url, liveness=liveness))
        return made[-1]

    yield new
    for queue in made:
        queue.close()
        queue.engine.dispose()


class Worker:
    """A consumer in a thread, and the jobs that it has settled."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.settled: list[str] = []
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Worker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.queue.stop()
        self._thread.join(120)
        assert not self._thread.is_alive()
        assert self._errors == []

    def _run(self) -> None:
        try:
            for batch in self.queue.batches(5, poll=0.05):
                batch.done()
                batch.settle()
                self.settled += names(batch.jobs)[: len(batch.jobs) - len(batch.lost)]
        except BaseException as error:
            self._errors.append(error)


def left_on(pair: Pair) -> int:
    """Jobs that the replica has."""
    return int(ask(pair.replica, "SELECT count(*) FROM jobs")[0])


@pytest.mark.parametrize(
    ("pair", "how"),
    [("postgres", "kill"), ("postgres", "demote"), ("mysql", "demote"), ("mariadb", "kill")],
    indirect=["pair"],
)
def test_work_goes_on_and_each_job_is_settled_once(synchronous: Pair, queue_to: Callable[..., Queue], how: str) -> None:
    """The primary is killed, or it answers on and refuses writes, as after a switchover."""
    first, second = queue_to(), queue_to()
    first.enqueue(jobs(1_000))
    ids = first.owner_id, second.owner_id
    with Worker(first) as one, Worker(second) as other:
        wait_for(lambda: len(one.settled + other.settled) >= 100, "they work")
        if how == "kill":
            synchronous.primary.kill()
        else:
            synchronous.demote()
        synchronous.promote()
        wait_for(lambda: left_on(synchronous) == 0, "they go on to the end")
        first.enqueue(jobs(1, e="later"))
        wait_for(lambda: left_on(synchronous) == 0, "a producer goes on, too")
    assert sorted(one.settled + other.settled) == sorted([*names_of(1_000), "0000"])
    assert (first.owner_id, second.owner_id) == ids
    assert first.report.lost == second.report.lost == 0


def names_of(count: int) -> list[str]:
    return [row["d"] for row in jobs(count)]


@ON_POSTGRES
@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
def test_an_owner_that_comes_back_late_settles_nothing_that_was_reclaimed(
    synchronous: Pair, queue_to: Callable[..., Queue]
) -> None:
    cut_off = still(queue_to(SHORT))
    cut_off.enqueue(jobs(5))
    batch = cut_off.claim(5)
    synchronous.primary.kill()
    synchronous.promote()
    with Worker(queue_to(SHORT)) as other:
        wait_for(lambda: len(other.settled) == 5, "its jobs are reclaimed after a lease")
    batch.done()
    batch.settle()
    assert batch.lost == batch.jobs
    assert cut_off.report.done == 0


@ON_POSTGRES
@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
def test_nobody_is_dead_because_no_server_took_a_heartbeat(synchronous: Pair, queue_to: Callable[..., Queue]) -> None:
    """The first owner to come back gives the others the time of a lease, however long the failover took."""
    late, first = still(queue_to(SHORT)), queue_to(SHORT)
    late.enqueue(jobs(5))
    batch = late.claim(5)
    assert first.owner_id
    killed = time.monotonic()
    synchronous.primary.kill()
    wait_for(lambda: time.monotonic() - killed > SHORT.lease + 1, "nobody can write a heartbeat")
    synchronous.promote()
    seen = "SELECT max(beat) FROM claimjobs_owners"
    [before] = ask(synchronous.replica, seen)
    wait_for(lambda: ask(synchronous.replica, seen) != [before], "the first comes back")
    first.stats()
    assert first.reclaim() == 0
    batch.done()
    batch.settle()
    assert batch.lost == ()


@pytest.mark.parametrize("pair", ["mysql"], indirect=True)
@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
def test_who_only_reads_leaves_a_demoted_primary_too(pair: Pair, queue_to: Callable[..., Queue]) -> None:
    """Its sessions are kept, and would answer for ever as it was then."""
    reader, producer = queue_to(), queue_to()
    assert reader.stats().unclaimed == 0
    pair.demote()
    pair.promote()
    with contextlib.suppress(sa.exc.DBAPIError):
        producer.enqueue(jobs(1))  # refused if the connection is a moment old
    producer.enqueue(jobs(1))
    wait_for(lambda: reader.stats().unclaimed == left_on(pair), "it sees the new primary")


@pytest.mark.parametrize("pair", ["postgres", "mysql"], indirect=True)
@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
def test_what_an_asynchronous_failover_loses(pair: Pair, queue_to: Callable[..., Queue]) -> None:
    """What was committed in the last moments never happened: new jobs are gone, settled ones are done once more."""
    queue = still(queue_to())
    queue.enqueue(jobs(3))
    settled = queue.claim(1)
    pair.wait_until_it_follows()
    pair.cut_off()
    settled.done()
    settled.settle()
    claimed = queue.claim(1)
    queue.enqueue({"d": "new", "e": ""})
    late = queue_to()
    ids = queue.owner_id, late.owner_id
    pair.primary.kill()
    pair.promote()
    claimed.done()
    claimed.settle()
    with Worker(queue) as worker, Worker(late) as other:
        wait_for(lambda: left_on(pair) == 0, "they do what is left")
    assert names(settled) == ["0000"]
    assert names(claimed) == ["0001"]
    assert sorted(worker.settled + other.settled) == names_of(3)
    assert queue.owner_id == ids[0]


def test_an_owner_whose_id_belongs_to_another_takes_a_new_one(anywhere: Backend) -> None:
    """Its registration was lost by a failover, and the database has counted from there again."""
    queue = still(anywhere.queue())
    queue.enqueue(jobs(1))
    me, batch = queue.owner_id, queue.claim(1)
    write_owner(anywhere, me, pid=1)
    end_session(anywhere, me)
    batch.settle()
    assert queue.owner_id != me
    anywhere.may_leave_owners = True


@ON_POSTGRES
@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
def test_the_command_goes_on(synchronous: Pair) -> None:
    url = {"CLAIMJOBS_URL": synchronous.url}
    assert claimjobs("status", env=url).code == 0
    lines = "".join(f'{{"d": "{name}", "e": ""}}\n' for name in names_of(3_000))
    assert claimjobs("enqueue", "-", stdin=lines.encode(), env=url).code == 0
    command = [sys.executable, "-m", "claimjobs", "start-processing", "tests.process.work:whatever"]
    options = ["--consumers", "2", "--batch-size", "5", "--per", "job", "--drain", "--json", "--on-done", "delete"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, *options], cwd=ROOT, env={**os.environ, **url}, **pipes) as running:
        try:
            wait_for(lambda: ask(synchronous.primary, "SELECT count(*) FROM jobs") < [900], "it works")
            synchronous.primary.kill()
            synchronous.promote()
            out, err = running.communicate(timeout=120)
        finally:
            running.kill()
    found = summary(out)
    assert running.returncode == 0, err
    assert (found["done"], found["left"], found["unaccounted"], found["replaced"]) == (3_000, 0, 0, 0), err
    assert left_on(synchronous) == 0
    for words in ("status", "explain"):
        assert claimjobs(words, env=url).code in (0, 1)


@ON_POSTGRES
@pytest.mark.thorough("it starts a primary and a replica; `make test` has the main ones")
def test_no_member_that_takes_writes_is_told_as_that(pair: Pair) -> None:
    pair.demote()
    ended = claimjobs("status", "--url", pair.url)
    assert ended.code == 3
    assert "no server of this URL takes writes" in ended.err
    assert "wait until one is promoted, or add the primary to the URL" in ended.err
    assert str(sa.make_url(pair.url).password) not in ended.said
