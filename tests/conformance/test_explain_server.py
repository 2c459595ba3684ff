"""What `explain` finds beside the plans: row locks, settings, snapshots, rights, wake-up."""

from __future__ import annotations

import secrets
import threading
from contextlib import closing, suppress
from typing import Any, Final

import pytest
import sqlalchemy as sa

from claimjobs import Liveness, Queue, make, side_car_tables
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from claimjobs.dialects.inspection import Finding
from claimjobs.explain.explainer import Explanation
from claimjobs.explain.plans import CLAIM_SIZE
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.test_explain import filled, of
from tests.conformance.test_rights import account


def warned(explained: Explanation, check: str) -> str:
    """What a warning of this check says."""
    found = of(explained, check)
    assert found.verdict == "warning", found
    return found.says


# --- a claim that is rolled back -----------------------------------------------------------------------------


HELD: Final[dict[str, Any]] = {"hold": "transaction"}


@pytest.mark.parametrize(
    "way", [{}, HELD, {**HELD, "locking": AdvisoryLocks()}], ids=["lease", "transaction", "advisory"]
)
def test_a_claim_of_n_locks_n_rows_and_is_rolled_back(backend: Backend, way: dict[str, Any]) -> None:
    queue = filled(backend, rows=500, **way)
    before = backend.rows()
    explained = queue.explain(analyze=True)
    assert of(explained, "row locks").verdict == "ok", explained.findings
    assert of(explained, "row locks").says.startswith(f"a claim of {CLAIM_SIZE} jobs locks ")
    assert backend.rows() == before
    assert queue.stats().owners == ()
    assert backend.locked() == 0


@pytest.mark.requires("lock of what is found")
def test_a_claim_that_locks_more_than_it_takes_is_a_warning(backend: Backend) -> None:
    """A suspect in front, which is claimed alone: the statement that finds and locks has locked others beside it."""
    queue = filled(backend, rows=500, hold="transaction")
    backend.run("UPDATE jobs SET suspect = 2 WHERE d = '0000'")
    assert "other consumers skip all of them" in warned(queue.explain(analyze=True), "row locks")


@pytest.mark.mariadb("it lists no locks")
def test_the_locks_of_a_transaction_are_counted(backend: Backend) -> None:
    queue = filled(backend, rows=300)
    with backend.engine.connect() as connection:
        connection.execute(sa.text("SELECT id FROM jobs WHERE d >= '0100' FOR UPDATE"))
        assert 200 <= backend.dialect.inspection.row_locks(connection, queue.table) <= 602  # also in an index


def test_without_a_due_job_the_locks_are_not_known(backend: Backend) -> None:
    found = of(backend.queue().explain(analyze=True), "row locks")
    assert (found.verdict, found.says[:24]) == ("not known", "not known, because no jo")


# --- settings ------------------------------------------------------------------------------------------------


def test_sessions_whose_reads_lock_are_a_warning(backend: Backend) -> None:
    if not backend.dialect.reads_that_lock:
        pytest.skip(f"{backend.name} has no isolation at which plain reads lock rows")
    strict = "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"
    backend.make()
    with closing(backend.bare_queue(bind=backend.new_engine(connect_args={"init_command": strict}))) as queue:
        assert "SERIALIZABLE" in warned(queue.explain(), "isolation")


def test_a_binary_log_of_statements_will_not_work(backend: Backend) -> None:
    if not backend.dialect.interrupts:
        pytest.skip(f"{backend.name} has no format of a binary log")
    with backend.engine.connect() as connection:
        if not connection.scalar(sa.text("SELECT @@log_bin")):
            pytest.skip(f"this {backend.name} writes no binary log")
    backend.make()
    engine = backend.new_engine(connect_args={"init_command": "SET SESSION binlog_format = 'STATEMENT'"})
    with closing(backend.bare_queue(bind=engine)) as queue:
        found = of(queue.explain(), "binlog")
    assert (found.verdict, found.fix) == ("will not work", ("SET GLOBAL binlog_format = 'ROW';",))


# --- snapshots -----------------------------------------------------------------------------------------------


def test_who_holds_a_snapshot_is_named(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("claimjobs.explain.server.LONG_SECONDS", 0.0)
    queue = backend.queue()
    queue.enqueue(jobs(1))
    engine = backend.new_engine(isolation_level="REPEATABLE READ")
    with engine.connect() as old:
        old.execute(sa.text("SELECT * FROM jobs"))
        session = old.scalar(
            sa.text("SELECT pg_backend_pid()" if backend.family == "postgres" else "SELECT connection_id()")
        )
        backend.wait_for(
            lambda: of(queue.explain(), "snapshots").verdict == "warning", "the snapshot is old enough to be shown"
        )
        assert f"session {session} of " in of(queue.explain(), "snapshots").says


@pytest.mark.parametrize("way", ["a statement runs", "a row is written"])
def test_who_holds_one_at_read_committed_is_named(backend: Backend, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    is_postgres = backend.family == "postgres"
    if way == "a row is written" and not is_postgres:
        pytest.skip("there such a transaction keeps nothing between its statements")
    monkeypatch.setattr("claimjobs.explain.server.LONG_SECONDS", 0.0)
    queue = backend.queue()
    queue.enqueue(jobs(1))
    with backend.new_engine(isolation_level="READ COMMITTED").connect() as old:
        session = old.scalar(sa.text("SELECT pg_backend_pid()" if is_postgres else "SELECT connection_id()"))
        sleep = sa.text(f"SELECT {'pg_sleep' if is_postgres else 'SLEEP'}(60) FROM jobs")
        insert = sa.text("INSERT INTO jobs (d, e) VALUES ('', '')")

        def use() -> None:
            with suppress(sa.exc.DBAPIError):
                old.execute(sleep if way == "a statement runs" else insert)

        thread = threading.Thread(target=use)
        thread.start()
        try:
            named = f"session {session} of "
            backend.wait_for(lambda: named in of(queue.explain(), "snapshots").says, "the session is named")
        finally:
            with backend.engine.connect() as other:
                other.execute(backend.dialect.sessions.end_session(session))
            thread.join()
            old.invalidate()


@pytest.mark.requires("table collation")
def test_the_age_of_a_snapshot_does_not_depend_on_the_zone_of_the_session(backend: Backend) -> None:
    backend.make()
    engine = backend.new_engine(connect_args={"init_command": "SET time_zone = '+13:00'"})
    with backend.new_engine(isolation_level="REPEATABLE READ").connect() as young:
        young.execute(sa.text("SELECT * FROM jobs"))
        with closing(backend.bare_queue(bind=engine)) as queue:
            assert of(queue.explain(), "snapshots").verdict == "ok"


def test_a_prepared_transaction_without_a_session_is_named(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    if not backend.dialect.interrupts:
        pytest.skip(f"the server of {backend.name} for tests allows no prepared transaction")
    monkeypatch.setattr("claimjobs.explain.server.LONG_SECONDS", 0.0)
    queue = backend.queue()
    queue.enqueue(jobs(1))
    name = f"'{secrets.token_hex(8)}'"
    engine = backend.new_engine(isolation_level="AUTOCOMMIT")
    with engine.connect() as ended:
        for statement in ("XA START {}", "UPDATE jobs SET e = 'x'", "XA END {}", "XA PREPARE {}"):
            ended.execute(sa.text(statement.format(name)))
        ended.invalidate()
    try:
        backend.wait_for(
            lambda: "a prepared XA transaction" in of(queue.explain(), "snapshots").says, "the transaction is named"
        )
    finally:
        with engine.connect() as other:
            other.execute(sa.text(f"XA ROLLBACK {name}"))


# --- rights --------------------------------------------------------------------------------------------------

ALL = "SELECT, INSERT, UPDATE, DELETE"


@pytest.mark.parametrize(
    ("granted", "verdict", "says"),
    [
        ({"jobs": "SELECT, UPDATE, DELETE", "claimjobs_owners": ALL}, "ok", "this user may"),
        ({"jobs": "SELECT, INSERT", "claimjobs_owners": ALL}, "will not work", "jobs"),
        ({"jobs": ALL, "claimjobs_owners": "SELECT"}, "will not work", "'register' ("),
        ({"jobs": ALL}, "will not work", "claimjobs_owners"),
    ],
)
def test_missing_rights_are_named(backend: Backend, granted: dict[str, str], verdict: str, says: str) -> None:
    backend.make()
    with (
        account(backend, **granted, claimjobs_queues="SELECT") as engine,
        closing(backend.bare_queue(bind=engine)) as queue,
    ):
        found = of(queue.explain(), "rights")
    assert (found.verdict, says in found.says) == (verdict, True), found


def test_a_table_of_which_nothing_is_written_needs_the_right_to_lock_its_rows(backend: Backend) -> None:
    backend.run("CREATE TABLE mails (id INT PRIMARY KEY, subject VARCHAR(40))")
    make(backend.engine, side_car_tables(backend.engine, "mails"))
    backend.run("CREATE TABLE jobs (id SERIAL PRIMARY KEY)")  # of which the account has a right to the sequence
    ours = ("mails_claims", "claimjobs_owners", "claimjobs_batches")
    rights = {"mails": "SELECT, INSERT", "claimjobs_queues": "SELECT", **dict.fromkeys(ours, ALL)}
    with account(backend, **rights) as engine:
        locking = "ok"
        with engine.connect() as connection:
            try:
                connection.execute(sa.text("SELECT id FROM mails FOR UPDATE"))
            except sa.exc.DBAPIError:
                locking = "will not work"
        with closing(backend.bare_queue("mails", bind=engine, side_car=True)) as queue:
            assert of(queue.explain(), "rights").verdict == locking


def test_who_may_not_read_the_jobs_is_told_so(backend: Backend) -> None:
    backend.make()
    with (
        account(backend, jobs="INSERT", claimjobs_owners=ALL, claimjobs_queues="SELECT") as engine,
        closing(backend.bare_queue(bind=engine, on_done="delete")) as queue,
    ):
        explained = queue.explain()
    assert explained.verdict == "will not work"
    assert of(explained, "rights").verdict == "will not work"


def test_what_the_server_hides_from_this_user_is_not_known(backend: Backend) -> None:
    """Each with its reason; a claim is not affected."""
    backend.queue().enqueue(jobs(3))
    rights = {"jobs": ALL, "claimjobs_owners": ALL, "claimjobs_queues": "SELECT"}
    with account(backend, **rights) as engine, backend.engine.connect() as another:
        another.execute(sa.text("SELECT 1"))
        with closing(backend.bare_queue(bind=engine, on_done="delete")) as queue:
            explained = queue.explain(analyze=True)
    hidden = [finding for finding in explained.findings if finding.verdict == "not known"]
    assert "snapshots" in {finding.check for finding in hidden}
    assert all(finding.says.startswith("not known, because ") for finding in hidden)
    assert explained.verdict == "not known"


# --- owners --------------------------------------------------------------------------------------------------


def wake(queue: Queue) -> Finding:
    return of(queue.explain(), "wake")


def test_whether_a_pooler_keeps_an_idle_consumer_from_being_woken(backend: Backend) -> None:
    assert wake(backend.queue()).says.startswith("no pooler keeps `enqueue` from waking idle consumers")
    pooled = wake(backend.queue(liveness=Liveness(session_lock=False)))
    assert (pooled.verdict, "session_lock=False says" in pooled.says) == ("warning", True)
