"""What the pages say of deaths and refusals, where no other test says it already."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.options import Liveness
from claimjobs.table.definitions import OWNER_TABLE, QUEUES_TABLE
from claimjobs.workers.process_main import HUNG
from tests.backends import Backend
from tests.conformance.owners import end_session, still, stranger_holds
from tests.docs.pooler import pooler
from tests.docs.shop import Shop
from tests.process.command import started, summary

HOLDS_FIVE = """
import os, time
from claimjobs import Queue
queue = Queue(os.environ["CLAIMJOBS_URL"])
batch = queue.claim(5)
print(queue.owner_id, flush=True)
"""


def _process(backend: Backend, ending: str) -> subprocess.Popen[str]:
    """A process of its own that holds five jobs; its first line is its owner's id."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDS_FIVE + ending],
        env={**os.environ, "CLAIMJOBS_URL": backend.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(3)", "1 / 0"])
@pytest.mark.thorough("a promise of the pages that a test of the conformance suite shows, too")
def test_a_process_that_ends_by_itself_hands_back(database: Backend, ending: str) -> None:
    queue = database.queue()
    queue.enqueue([{"d": "d", "e": "e"}] * 20)
    with _process(database, ending):
        pass
    assert (queue.stats().unclaimed, queue.stats().owners) == (20, ())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("how", ["by the library", "by the command"])
@pytest.mark.thorough("a promise of the pages that a test of the conformance suite shows, too")
def test_what_a_killed_process_held_can_be_reclaimed_where_no_consumer_runs(
    database: Backend, number: signal.Signals, how: str
) -> None:
    queue = database.queue()
    queue.enqueue([{"d": "d", "e": "e"}] * 20)
    with _process(database, "time.sleep(60)") as process:
        assert process.stdout is not None
        owner = int(process.stdout.readline())
        process.send_signal(number)
    database.wait_for(lambda: [seen.lock for seen in queue.stats().owners] == ["free"], "the server knows it")
    [left] = queue.stats().owners
    assert (left.id, left.pid, left.jobs, left.dead) == (owner, process.pid, 5, True)
    reclaimed = queue.reclaim() if how == "by the library" else int(_command(database, "reclaim"))
    assert reclaimed == 5
    assert (queue.stats().unclaimed, queue.stats().owners) == (20, ())


def _command(backend: Backend, *words: str) -> str:
    """What a command prints."""
    environment = {**os.environ, "CLAIMJOBS_URL": backend.url}
    command = [sys.executable, "-m", "claimjobs", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


@pytest.mark.thorough("a promise of the pages that a test of the conformance suite shows, too")
def test_a_session_that_is_ended_is_a_death_though_its_process_lives(database: Backend) -> None:
    """Another consumer sees it before the one that lost it does; the late outcomes are refused and reported."""
    other = database.queue()
    assert other.owner_id
    queue = still(database.queue())
    queue.enqueue([{"d": "d", "e": "e"}] * 4)
    with queue.claim(2) as batch:
        before = queue.owner_id
        end_session(database, before)
        database.wait_for(lambda: other.stats().claimed == 0, "its jobs are handed back")
        batch.done()
    assert len(batch.lost) == 2
    assert other.stats().unclaimed == 4
    assert queue.owner_id > before


@pytest.mark.thorough("a promise of the pages that a test of the conformance suite shows, too")
def test_a_pooler_is_found_out_and_the_lease_alone_counts(database: Backend) -> None:
    straight = database.queue()
    assert straight.owner_id
    with pooler(database.url) as url, Queue(url) as queue:
        queue.enqueue([{"d": "d", "e": "e"}] * 4)
        with queue.claim(2) as batch:
            signs = {owner.id: (owner.lock, owner.dead) for owner in straight.stats().owners}
            assert signs == {straight.owner_id: ("held", False), queue.owner_id: ("none", False)}
            batch.done()
        assert batch.lost == ()
    queue.engine.dispose()
    with pooler(database.url) as url, Queue(url, liveness=Liveness(session_lock=True)) as queue:
        assert queue.owner_id
        assert [owner.lock for owner in straight.stats().owners] == ["held", "held"]
    queue.engine.dispose()


def test_a_settle_that_fails_can_be_tried_again(database: Backend) -> None:
    """A stranger's lock outlasts the patience: the block is left by the error, and the batch is still open."""
    queue = database.queue(liveness=Liveness(lease=5, patience=0))
    queue.enqueue([{"d": str(number), "e": "e"} for number in range(3)])
    batch = queue.claim(2)
    with stranger_holds(database, "0"), pytest.raises(sa.exc.DBAPIError), batch:
        batch.done()
    assert not batch.settled
    assert queue.report.transients == {"lock timeout": 1}
    assert [job.d for job in queue.claim(3).jobs] == ["2"]
    batch.settle()
    assert batch.lost == ()
    assert [row["d"] for row in database.rows()] == ["2"]


def test_a_hung_handlers_process_is_ended_and_replaced(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue([{"d": "d", "e": "e"}] * 20)
    options = (
        "tests.docs.hangs:once",
        "--consumers",
        "1",
        "--max-batch-time",
        "1",
        "--lease",
        "2",
        "--drain",
        "--json",
    )
    with started(anywhere, tmp_path, *options) as command:
        code, out, err = command.end()
    assert code == 0
    found = summary(out)
    assert (found["done"], found["left"], found["replaced"], found["handed_back"]) == (20, 0, 1, 20)
    assert "the handler hangs" in err
    assert f"with exit code {HUNG}" in err


@pytest.mark.thorough("a promise of the pages that a test of the conformance suite shows, too")
def test_the_demonstration_refuses_a_table_with_a_payload_of_its_own(any_shop: Shop) -> None:
    any_shop.open()
    for options in ("--generators 0", ""):
        done = subprocess.run(
            any_shop.shell(f"claimjobs start-processing --table emails --duration 1 {options}"),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 4
        assert "emails" in done.stderr
    assert len(any_shop.backend.rows("emails")) == 20


# --- what a DBA is told ---------------------------------------------------------------------------------------


@contextmanager
def an_account(backend: Backend) -> Iterator[sa.Engine]:
    """An engine for an account with the rights that docs/dba.md names, and no others."""
    name, database = f"cj_{secrets.token_hex(4)}", sa.make_url(backend.url).database
    postgres = backend.family == "postgres"
    where = "" if postgres else f"{database}."
    grants = [f"GRANT SELECT, INSERT, UPDATE, DELETE ON {where}{table} TO {name}" for table in ("jobs", OWNER_TABLE)]
    grants.append(f"GRANT SELECT ON {where}{QUEUES_TABLE} TO {name}")
    usage = [f"GRANT USAGE ON {what} TO {name}" for what in ("SCHEMA public", "SEQUENCE jobs_id_seq")]
    with backend.new_engine(isolation_level="AUTOCOMMIT").connect() as admin:
        try:
            make = f"ROLE {name} LOGIN PASSWORD" if postgres else f"USER {name} IDENTIFIED BY"
            admin.exec_driver_sql(f"CREATE {make} '{name}'")
        except sa.exc.DBAPIError as refused:
            pytest.skip(f"this server's account may not make others: {refused.orig}")
        engine = sa.create_engine(sa.make_url(backend.url).set(username=name, password=name))
        try:
            for grant in [*grants, *(usage if postgres else [])]:
                admin.exec_driver_sql(grant)
            yield engine
        finally:
            engine.dispose()
            for end in [f"DROP OWNED BY {name}", f"DROP ROLE {name}"] if postgres else [f"DROP USER {name}"]:
                admin.exec_driver_sql(end)


def test_the_rights_that_are_named_are_enough(database: Backend) -> None:
    database.make()
    with an_account(database) as engine, database.bare_queue() as looking:
        with Queue(engine) as queue:
            queue.enqueue([{"d": "d", "e": "e"}] * 4)
            with queue.claim(3) as batch:
                batch.done(batch[0])
                batch.fail(batch[1], "not now")
            assert queue.stats().unclaimed == 3
        assert looking.stats().owners == ()


@pytest.mark.thorough("a promise of the pages that a test of the conformance suite shows, too")
def test_a_run_holds_a_connection_for_each_process_and_three_more_at_most(database: Backend) -> None:
    database.make()
    options = ["--consumers", "2", "--generators", "1", "--rate", "50", "--duration", "2"]
    with subprocess.Popen(
        [sys.executable, "-m", "claimjobs", "start-processing", *options],
        env={**os.environ, "CLAIMJOBS_URL": database.url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        most = 0
        while process.poll() is None:
            most = max(most, _connections(process.pid, database.url))
    assert 3 <= most <= 2 + 1 + 3


def _connections(pid: int, url: str) -> int:
    """The connections to a server that a process and its descendants have open, by the client's own count: a server
    lists a session for a while after its client closed it.
    """
    port = sa.make_url(url).port
    found: set[Any] = set()
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            seen = process.net_connections("tcp")
            found.update(one.laddr for one in seen if one.raddr and one.raddr.port == port)
    return len(found)
