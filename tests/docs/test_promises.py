"""What the README says of deaths and refusals, where no other test says it already."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.schema import OWNER_TABLE
from tests.backends import Backend
from tests.docs.shop import Shop

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
def test_a_process_that_ends_by_itself_hands_back(database: Backend, ending: str) -> None:
    queue = database.queue()
    queue.enqueue([{"d": "d", "e": "e"}] * 20)
    with _process(database, ending):
        pass
    assert (queue.stats().unclaimed, queue.stats().owners) == (20, ())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_leaves_its_jobs_until_they_are_given_back(
    database: Backend, number: signal.Signals
) -> None:
    queue = database.queue()
    queue.enqueue([{"d": "d", "e": "e"}] * 20)
    with _process(database, "time.sleep(60)") as process:
        assert process.stdout is not None
        owner = int(process.stdout.readline())
        process.send_signal(number)
    stats = queue.stats()
    assert (stats.unclaimed, stats.claimed) == (15, 5)
    assert [(left.id, left.pid, left.jobs) for left in stats.owners] == [(owner, process.pid, 5)]
    assert queue.give_back(owner) == 5
    assert (queue.stats().unclaimed, queue.stats().owners) == (20, ())


def test_the_demonstration_refuses_a_table_with_a_payload_of_its_own(any_shop: Shop) -> None:
    any_shop.open()
    for options in ("--generators 0", ""):
        done = subprocess.run(
            any_shop.shell(f"claimjobs start-processing --table emails --duration 1 {options}"),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 4
        assert "emails" in done.stderr
    assert len(any_shop.backend.rows("emails")) == 20


# --- what a DBA is told ---------------------------------------------------------------------------------------


@contextmanager
def an_account(backend: Backend) -> Iterator[sa.Engine]:
    """An engine for an account with the rights that the README names, and no others."""
    name, database = f"cj_{secrets.token_hex(4)}", sa.make_url(backend.url).database
    postgres = backend.family == "postgres"
    where = "" if postgres else f"{database}."
    grants = [f"GRANT SELECT, INSERT, UPDATE, DELETE ON {where}{table} TO {name}" for table in ("jobs", OWNER_TABLE)]
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
            most = max(most, len(database.sessions()))
    assert 3 <= most <= 2 + 1 + 3
