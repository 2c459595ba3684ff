"""A real group and a real Galera cluster, in short. `make cluster` has all settings."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, make, tables_for
from claimjobs.cli import exits
from claimjobs.dialects import DIALECTS, Dialect
from claimjobs.errors import ServerUnfit, SessionsShared
from claimjobs.options import Liveness
from servers.errors import Unavailable
from servers.galera import galera
from servers.group import group
from servers.machine import THIS_MACHINE, Machine
from servers.network import network
from servers.replication import ask, run, url_of, wait_until
from servers.server import Server
from tests.backends import DEADLINE, wait_for
from tests.cli.command import claimjobs
from tests.cluster.settings.primaries import Primaries
from tests.conformance.jobs import jobs, names
from tests.process.command import ROOT, summary

STARTS: dict[str, Callable[[Sequence[Machine]], contextlib.AbstractContextManager[Primaries]]] = {
    "mysql": partial(group, single=False),
    "mariadb": galera,
}
ROUNDS = 40
JOBS = 2_000
END_SECONDS = 15.0
"""From SIGTERM to the end of the command, although its member was killed."""
UNSAFE: dict[str, dict[str, Any]] = {
    "claims='batches'": {"claims": "batches"},
    "hold='transaction'": {"hold": "transaction"},
}

pytestmark = [pytest.mark.timeout(240), pytest.mark.thorough("it starts several servers, poolers or hosts")]


@pytest.fixture(scope="module", params=STARTS)
def primaries(request: pytest.FixtureRequest) -> Iterator[Primaries]:
    """Three servers that all take writes, with the tables of a queue."""
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(STARTS[request.param]([THIS_MACHINE] * 3))
        except Unavailable as error:
            pytest.skip(f"no several primaries of {request.param}: {error}")
        engine = sa.create_engine(found.members[0].url)
        make(engine, tables_for("jobs"))
        engine.dispose()
        yield found


@pytest.fixture
def queue_to(primaries: Primaries) -> Iterator[Callable[..., Queue]]:
    """Makes Queues on members. They are closed at the end, and the jobs are deleted."""
    made: list[Queue] = []

    def new(member: Server, **options: Any) -> Queue:
        made.append(Queue(member.url, **options))
        return made[-1]

    yield new
    for queue in made:
        queue.close()
        queue.engine.dispose()
    run(primaries.members[0], "DELETE FROM jobs")


@pytest.mark.parametrize("way", UNSAFE)
def test_claims_that_only_lock_are_refused_on_every_member(
    primaries: Primaries, queue_to: Callable[..., Queue], way: str
) -> None:
    for member in primaries.members:
        queue = queue_to(member, **UNSAFE[way])
        for begin in (queue.check, queue.claim):
            with pytest.raises(ServerUnfit, match=r"^hold='transaction' and claims='batches' cannot work"):
                begin()
    options = [word for name, value in UNSAFE[way].items() for word in (f"--{name}", value)]
    ended = claimjobs("start-processing", "tests.process.work:fine", *options, "--url", primaries.together.url)
    assert ended.code == exits.CONNECTION
    assert "or let the cluster have a single primary" in ended.err


def test_so_are_session_locks(primaries: Primaries, queue_to: Callable[..., Queue]) -> None:
    with pytest.raises(SessionsShared, match="primaries do not see each other's locks"):
        queue_to(primaries.members[0], liveness=Liveness(session_lock=True)).check()


def test_of_two_claims_of_one_job_one_is_refused_and_finds_others(
    primaries: Primaries, queue_to: Callable[..., Queue]
) -> None:
    """In one order, on every member at the same moment."""
    queues = [queue_to(member) for member in primaries.members]
    queues[0].enqueue(jobs(ROUNDS * 6))
    start, claimed = threading.Barrier(len(queues), timeout=120), list[str]()

    def claim(queue: Queue) -> None:
        for _ in range(ROUNDS):
            start.wait()
            with queue.claim(2) as batch:
                claimed.extend(names(batch))
                batch.done()
            assert not batch.lost

    with ThreadPoolExecutor(len(queues)) as pool:
        list(pool.map(claim, queues))
    assert len(claimed) == len(set(claimed))
    assert sum(sum(queue.report.transients.values()) for queue in queues) > 0


def test_what_locks_alone_would_give_twice(primaries: Primaries, queue_to: Callable[..., Queue]) -> None:
    """Why they are refused: two members record the same jobs in two batches, and no commit is refused."""
    make(sa.create_engine(primaries.members[0].url, poolclass=sa.NullPool), tables_for("emails"))
    queues = [
        queue_to(member, table="emails", claims="batches", dialect=blind(DIALECTS[member.backend]()))
        for member in primaries.members[:2]
    ]
    start, claimed = threading.Barrier(len(queues), timeout=120), list[str]()

    def claim(queue: Queue) -> None:
        start.wait()
        claimed.extend(names(queue.claim(2)))

    ends = time.monotonic() + DEADLINE
    with ThreadPoolExecutor(len(queues)) as pool:
        while len(set(claimed)) == len(claimed) and time.monotonic() < ends:  # until they claim at one moment
            queues[0].enqueue({"d": f"{len(claimed)}-{number}", "e": ""} for number in range(4))
            list(pool.map(claim, queues))
    assert len(set(claimed)) < len(claimed)


def blind(dialect: Dialect) -> Dialect:
    """A dialect that takes each server for the only one."""
    only = {"is_one_of_several_primaries": lambda *_: False}
    sessions = type("Only", (type(dialect.sessions),), only)()
    changed: Dialect = type("Blind", (type(dialect),), {"sessions": sessions})()
    return changed


def test_nobody_is_dead_because_another_member_does_not_see_its_lock(
    primaries: Primaries, queue_to: Callable[..., Queue]
) -> None:
    first, second = (queue_to(member, liveness=Liveness(lease=60)) for member in primaries.members[:2])
    first.enqueue(jobs(1))
    batch = first.claim()
    wait_for(lambda: len(second.stats().owners) == 1, "the other member knows the owner")
    assert second.reclaim() == 0
    batch.done()
    batch.settle()
    assert not batch.lost


def test_explain_says_what_several_primaries_mean(primaries: Primaries, queue_to: Callable[..., Queue]) -> None:
    found = {finding.check: finding for finding in queue_to(primaries.members[0]).explain().findings}
    assert found["wake"].verdict == "warning"


def test_a_key_that_two_members_enqueue_is_there_once(primaries: Primaries, queue_to: Callable[..., Queue]) -> None:
    run(primaries.members[0], "ALTER TABLE jobs ADD UNIQUE INDEX once (d)")
    try:
        queues = [queue_to(member) for member in primaries.members]
        start = threading.Barrier(len(queues), timeout=120)

        def enqueue(queue: Queue) -> int:
            count = 0
            for job in jobs(ROUNDS):
                start.wait()
                count += queue.enqueue([job], unique="d")
            return count

        with ThreadPoolExecutor(len(queues)) as pool:
            assert sum(pool.map(enqueue, queues)) == ROUNDS
    finally:
        run(primaries.members[0], "ALTER TABLE jobs DROP INDEX once")


def test_a_consumer_moves_from_a_member_that_is_killed(primaries: Primaries) -> None:
    """It goes on with its batch, whose claim the other member has before the consumer looks."""
    first, second, third = primaries.members
    with Queue(url_of([second, first, third]), liveness=Liveness(lease=10)) as queue:
        queue.enqueue(jobs(4))
        batch = queue.claim(2)
        id_ = queue.owner_id
        second.kill()
        began = time.monotonic()
        batch.done()
        batch.settle()
        assert not batch.lost
        assert queue.owner_id == id_
        with queue.claim() as rest:
            rest.done()
        assert len(rest) == 2
        assert time.monotonic() - began < 60
    queue.engine.dispose()
    primaries.bring_back(second)


@pytest.mark.parametrize("then", ["it goes on", "it is told to end"])
def test_the_command_leaves_a_member_that_is_killed(
    primaries: Primaries, queue_to: Callable[..., Queue], then: str
) -> None:
    first, second, third = primaries.members
    queue = queue_to(first)
    queue.enqueue(jobs(JOBS))
    with consumers_of(url_of([second, first, third])) as running:
        wait_for(lambda: queue.stats().unclaimed < JOBS, "it works")
        second.kill()
        if then == "it goes on":
            wait_for(lambda: queue.stats().unclaimed == 0, "it does all jobs with another member")
        running.send_signal(signal.SIGTERM)
        began = time.monotonic()
        out, err = running.communicate(timeout=END_SECONDS)
    print(f"{first.backend}, {then}: it ended after {time.monotonic() - began:.1f} s")
    assert running.returncode == 0, err
    found, stats = summary(out), queue.stats()
    assert (found["done"], found["unaccounted"]) == (JOBS - stats.unclaimed, 0), err
    assert (stats.claimed, stats.dead) == (0, 0)
    primaries.bring_back(second)


@contextlib.contextmanager
def consumers_of(url: str, *options: str, prefix: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """The command with two consumers, which is ended with all its processes."""
    command = [sys.executable, "-m", "claimjobs", "start-processing", "tests.process.work:whatever"]
    words = ["--per", "job", "--consumers", "2", "--batch-size", "10", "--on-done", "delete", "--json", *options]
    with subprocess.Popen(
        [*prefix, *command, *words],
        cwd=ROOT,
        env={**os.environ, "CLAIMJOBS_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            yield running
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", STARTS)
def test_a_member_without_the_majority_is_passed_over(kind: str) -> None:
    """It is the first host of the URL, and answers consumers: only the other members do not reach it."""
    try:
        with network("one", "two", "three", "consumers") as hosts:
            *machines, own = hosts.values()
            with STARTS[kind](machines) as primaries:
                first, second, third = primaries.members
                make(sa.create_engine(first.url, poolclass=sa.NullPool), tables_for("jobs"))
                with Queue(first.url) as queue:
                    queue.enqueue(jobs(JOBS))
                    queue.engine.dispose()
                machines[2].cut(*machines[:2])
                wait_until(lambda: primaries.size == 2 and not reaches_others(third), "it sees no majority")
                with consumers_of(url_of([third, second, first]), "--drain", prefix=own.prefix) as running:
                    out, err = running.communicate(timeout=120)
                assert running.returncode == 0, err
                assert summary(out)["done"] == JOBS
                machines[2].heal(*machines[:2])
                wait_until(lambda: primaries.size == 3 and primaries.is_back(third), "it is a member again")
                assert ask(third, "SELECT count(*) FROM jobs") == [0]
    except Unavailable as error:
        pytest.skip(str(error))


def reaches_others(member: Server) -> bool:
    """Whether it sees other members. One of a cluster that sees no majority answers nothing."""
    states = "SELECT count(*) FROM performance_schema.replication_group_members WHERE member_state = 'ONLINE'"
    try:
        [seen] = ask(member, states if member.backend == "mysql" else "SELECT 2")
    except sa.exc.DBAPIError:
        return False
    return int(seen) > 1
