"""`setup-tables --grants`: what is printed is enough for each account, and no right could be left out."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from claimjobs import Ledger, Queue
from claimjobs.cli import exits
from claimjobs.errors import ClaimsDiffer
from claimjobs.options import Retry
from claimjobs.table.definitions import BATCHES_TABLE, OWNER_TABLE, article_table, batches_table
from tests.backends import Backend
from tests.cli.accounts import Accounts, accounts
from tests.cli.command import claimjobs
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import still
from tests.conformance.sleepers import PATIENT, Consumer
from tests.docs.commands import shown
from tests.docs.markdown import ROOT

PAST = datetime(2020, 1, 1, tzinfo=UTC)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Fail if a right is missing without which an enqueue goes on, and wakes nobody."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("claimjobs.notifier")
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    assert said == []


def produce(given: Accounts) -> None:
    """Rows with each column that a producer may give, few and many, and in a transaction of the caller."""
    with given.engine("producer") as engine, Queue(engine) as queue, without_warnings():
        assert queue.enqueue(jobs(1, priority=1, run_at=PAST)) == 1
        assert queue.enqueue(jobs(150)) == 150
        with engine.begin() as connection:
            assert queue.enqueue(jobs(1), connection) == 1


def leave_a_job_of_a_dead_owner(backend: Backend, table: str = "jobs", key: str = "d = '0000'") -> None:
    """One job is claimed by an owner that was declared dead."""
    backend.run(f"DELETE FROM {OWNER_TABLE}")
    owner = f"(10000001, '', 1, '{table}', 0, now())"
    backend.run(f"INSERT INTO {OWNER_TABLE} (id, host, pid, claims, lease, died) VALUES {owner}")
    backend.run(f"UPDATE {table} SET status = 'claimed', owner_id = 10000001 WHERE {key}")


@contextlib.contextmanager
def an_owner_with_claims_per_batch(backend: Backend) -> Iterator[None]:
    """Another owner has claims that one with claims in the rows would not see."""
    row = {"owner_id": 10_000_002, "number": 0, "claims": "jobs", "jobs": 0, "keys": [], "since": PAST}
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(batches_table()).values(row))
    try:
        yield
    finally:
        backend.run(f"DELETE FROM {BATCHES_TABLE}")


def refuses(work: Callable[[], object]) -> None:
    """Fails by an Exception, which a missing right may cause."""
    try:
        work()
    except ClaimsDiffer:
        return
    raise AssertionError("the claims of others are not seen")


def consume(given: Accounts) -> None:
    """Each outcome, the jobs of an owner that is dead, and an owner with claims of the other kind."""
    backend = given.backend
    with an_owner_with_claims_per_batch(backend), given.engine("consumer") as engine, Queue(engine) as queue:
        refuses(queue.claim)
    backend.run("DELETE FROM jobs")
    with backend.bare_queue() as other:
        other.enqueue(jobs(5))
    leave_a_job_of_a_dead_owner(backend)
    with given.engine("consumer") as engine:
        with Queue(engine, retry=Retry(attempts=2)) as queue, queue.claim(4) as batch:
            queue.reclaim()
            batch.done(batch[0])
            batch.fail(batch[1], "not now")
            batch.fail(batch[2], "never", retry=False)
            batch.release(batch[3])
        assert queue.report.done == 1
    assert backend.rows(OWNER_TABLE) == []
    assert [row["status"] for row in backend.rows()] == ["unclaimed", "unclaimed", "dead", "unclaimed"]


def operate(given: Accounts) -> None:
    """Each command of an operator, on jobs that give it something to do."""
    backend = given.backend
    backend.run("DELETE FROM jobs")
    with backend.bare_queue() as other:
        other.enqueue(jobs(4))
    backend.run("UPDATE jobs SET status = 'dead', owner_date = :past WHERE d <> '0000'", past=PAST)
    leave_a_job_of_a_dead_owner(backend)
    _, first, second, _ = (str(row["id"]) for row in backend.rows())
    for words in (("pause",), ("pause", "--reason", "again"), ("status", "--json"), ("resume",)):
        _run(given, *words)
    with an_owner_with_claims_per_batch(backend):
        assert claimjobs("reclaim", "--url", given.url("operator")).code == exits.TABLE
    assert _run(given, "reclaim") == "1"
    _run(given, "dead", "list", "--json")
    assert _run(given, "dead", "retry", first) == "1"
    assert _run(given, "dead", "drop", second, "--yes") == "1"
    assert _run(given, "purge", "--status", "dead", "--older-than", "1d") == "1"
    assert backend.rows(OWNER_TABLE) == []


WORK = {"producer": produce, "consumer": consume, "operator": operate}


@pytest.mark.parametrize("kind", WORK)
@pytest.mark.thorough("the whole work is done again without each of the rights")
def test_the_rights_are_enough_and_no_right_could_be_left_out(database: Backend, kind: str) -> None:
    database.make()
    database.may_leave_owners = True
    with accounts(database) as given:
        assert given.spare(kind, WORK[kind]) == []


def leave_a_batch_of_a_dead_owner(backend: Backend) -> None:
    """There are two jobs, in an open batch of an owner that was declared dead."""
    backend.run("DELETE FROM jobs")
    backend.run(f"DELETE FROM {BATCHES_TABLE}")
    with backend.bare_queue() as other:
        other.enqueue(jobs(2))
    leave_a_job_of_a_dead_owner(backend, key="d = 'none'")
    open_a_batch(backend, [row["id"] for row in backend.rows()])


def open_a_batch(backend: Backend, keys: list[int], table: str = "jobs") -> None:
    """The dead owner has these jobs in an open batch."""
    given = {"owner_id": 10_000_001, "claims": table, "since": PAST}
    with backend.engine.begin() as connection:
        for number, held in ((0, []), (1, keys)):
            row = {**given, "number": number, "jobs": len(held), "keys": held}
            connection.execute(sa.insert(batches_table()).values(row))


def reclaim_in_parts(backend: Backend, reclaim: Callable[[], int]) -> None:
    """Reclaim two jobs of a dead owner. One of them is locked by another session meanwhile, and is left for later."""
    with backend.engine.begin() as connection:
        connection.execute(sa.text("SELECT id FROM jobs WHERE d = '0000' FOR UPDATE"))
        assert reclaim() == 1
    assert reclaim() == 1


def consume_per_batch(given: Accounts) -> None:
    """A failed and a done job, one that is released at the end, and those of an owner that is dead."""
    backend = given.backend
    leave_a_batch_of_a_dead_owner(backend)
    with given.engine("consumer") as engine, Queue(engine, claims="batches") as queue:
        still(queue)
        reclaim_in_parts(backend, queue.reclaim)
        with queue.claim(1) as batch:
            batch.done()
        with queue.claim(1) as batch:
            batch.fail(batch[0], "not now")
    assert backend.rows(OWNER_TABLE) == backend.rows(BATCHES_TABLE) == []
    assert [row["last_error"] for row in backend.rows()] == ["not now"]


def operate_per_batch(given: Accounts) -> None:
    """Each command of an operator for which claims per batch are different."""
    backend = given.backend
    leave_a_batch_of_a_dead_owner(backend)
    claims = ("--claims", "batches")
    for words in (("pause",), ("pause", "--reason", "again"), ("status",), ("resume",)):
        _run(given, *words, *claims)
    reclaim_in_parts(backend, lambda: int(_run(given, "reclaim", *claims)))
    assert any(row["last_error"] for row in backend.rows()), "a job that was alone in a dead hand is charged"
    backend.run("UPDATE jobs SET status = 'dead'")
    first, second = (str(row["id"]) for row in backend.rows())
    assert _run(given, "dead", "retry", first, *claims) == "1"
    assert _run(given, "dead", "drop", second, "--yes", *claims) == "1"
    assert backend.rows(OWNER_TABLE) == backend.rows(BATCHES_TABLE) == []


@pytest.mark.parametrize(("kind", "work"), [("consumer", consume_per_batch), ("operator", operate_per_batch)])
@pytest.mark.thorough("the whole work is done again without each of the rights")
def test_the_rights_for_claims_per_batch(database: Backend, kind: str, work: Callable[[Accounts], None]) -> None:
    database.make()
    database.may_leave_owners = True
    with accounts(database, "--claims", "batches") as given:
        assert given.spare(kind, work) == []


def leave_beside(backend: Backend) -> None:
    """A dead owner has two jobs of a table with a side-car, and one whose row is gone."""
    for table in ("orders_claims", OWNER_TABLE, BATCHES_TABLE):
        backend.run(f"DELETE FROM {table}")
    leave_a_job_of_a_dead_owner(backend, "orders_claims", "id = 0")
    backend.run(f"UPDATE {OWNER_TABLE} SET claims = 'orders'")
    open_a_batch(backend, [1, 2, 4], "orders")


def work_beside(given: Accounts) -> None:
    """A consumer of a table that has a side-car."""
    leave_beside(given.backend)
    with given.engine("consumer") as engine, Queue(engine, "orders", side_car=True, retry=Retry(attempts=2)) as queue:
        assert still(queue).reclaim() == 2
        with queue.claim(1) as batch:
            batch.fail(batch[0], "not now")
        with queue.claim(1) as batch:
            batch.done()
        assert queue.report.done == 1
    assert given.backend.rows(OWNER_TABLE) == given.backend.rows(BATCHES_TABLE) == []


def look_beside(given: Accounts) -> None:
    """An operator of a table that has a side-car."""
    leave_beside(given.backend)
    assert _run(given, "reclaim", "--table", "orders", "--side-car") == "2"
    assert given.backend.rows(OWNER_TABLE) == given.backend.rows(BATCHES_TABLE) == []
    given.backend.run("DELETE FROM orders_claims")
    for key, status in ((1, "dead"), (2, "dead"), (3, "done")):
        values = {"key": key, "status": status, "past": PAST}
        insert = "INSERT INTO orders_claims (id, status, owner_date) VALUES (:key, :status, :past)"
        given.backend.run(insert, **values)
    for words in (("pause",), ("status",), ("resume",), ("dead", "retry", "1"), ("dead", "drop", "2", "--yes")):
        _run(given, *words, "--table", "orders", "--side-car")


def _run(given: Accounts, *words: str) -> str:
    ended = claimjobs(*words, "--url", given.url("operator"))
    assert ended.code == 0, f"{words}: {ended.err}"
    return ended.out.strip()


@pytest.mark.parametrize(("kind", "work"), [("consumer", work_beside), ("operator", look_beside)])
@pytest.mark.thorough("the whole work is done again without each of the rights")
def test_the_rights_for_a_side_car(database: Backend, kind: str, work: Callable[[Accounts], None]) -> None:
    database.may_leave_owners = True
    database.run("CREATE TABLE orders (id integer PRIMARY KEY, what varchar(20))")
    database.run("INSERT INTO orders VALUES (1, 'tea'), (2, 'salt'), (3, 'rice')")
    shape = ("--table", "orders", "--side-car")
    assert claimjobs("setup-tables", *shape, "--url", database.url).code == 0
    with accounts(database, *shape) as given:
        assert given.spare(kind, work) == []


@pytest.mark.thorough("the whole work is done again without each of the rights")
def test_the_rights_for_jobs_that_a_transaction_holds(database: Backend, tmp_path: Path) -> None:
    """In a table without a status or a sequence; a key of its own is given by the producer."""
    database.run("CREATE TABLE notes (code varchar(20) PRIMARY KEY, what varchar(20))")
    (tmp_path / "notes.toml").write_text('table = "notes"\nhold = "transaction"\non_done = "delete"\n')

    def work(given: Accounts) -> None:
        database.run("DELETE FROM notes")
        with given.engine("producer") as engine, Queue(engine, "notes", hold="transaction") as queue:
            queue.enqueue({"code": "a", "what": "tea"})
        with database.bare_queue("notes", hold="transaction", on_done="delete") as other:
            other.pause()
            with (
                given.engine("consumer") as engine,
                Queue(engine, "notes", hold="transaction", on_done="delete") as queue,
            ):
                assert not queue.claim(1)
            other.resume()
        with (
            given.engine("consumer") as engine,
            Queue(engine, "notes", hold="transaction", on_done="delete") as queue,
            queue.claim(1) as batch,
        ):
            batch.done()
        assert database.rows("notes") == []

    shape = ("--map", str(tmp_path / "notes.toml"))
    assert claimjobs("setup-tables", *shape, "--url", database.url).code == 0
    with accounts(database, *shape) as given:
        assert [*given.spare("producer", work), *given.spare("consumer", work)] == []


@pytest.mark.thorough("the whole work is done again without each of the rights")
def test_the_rights_for_a_ledger(database: Backend) -> None:
    Ledger.make(database.engine)

    def note(given: Accounts) -> None:
        database.run("DELETE FROM claimjobs_ledger")
        with given.engine("consumer") as engine, engine.begin() as connection:
            assert [Ledger("q").once(connection, 1) for _ in range(2)] == [True, False]

    def clean(given: Accounts) -> None:
        note_all = "INSERT INTO claimjobs_ledger (digest, queue, job, done_at) VALUES ('d', 'q', '1', :past)"
        database.run("DELETE FROM claimjobs_ledger")
        database.run(note_all, past=PAST)
        assert _run(given, "purge", "--ledger", "q", "--older-than", "1d") == "1"

    with accounts(database, "--ledger") as given:
        assert [*given.spare("consumer", note), *given.spare("operator", clean)] == []


def test_names_of_accounts_and_tables_are_quoted(database: Backend) -> None:
    name, table, mark = 'o\'Brien `x` "y"', 'weird `"%s', '"' if database.family == "postgres" else "`"
    database.make(article_table(table))
    given = ("--account", f"producer={name}", "--table", table, "--url", database.url)
    ended = claimjobs("setup-tables", "--grants", *given)
    assert ended.code == 0, ended.err
    quoted, account = (f"{mark}{text.replace(mark, mark * 2)}{mark}" for text in (table, name))
    assert f".{quoted} TO {account};\n" in ended.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--account", "producer=a"), "goes with --grants"),
        (("--grants", "--recreate"), "leave out --add, --recreate and --sql"),
        (("--grants", "--account", "owner=a"), "one of producer, consumer, operator"),
        (("--grants", "--account", "producer=PUBLIC"), "the name of one account"),
        (("--grants", "--account", "producer=a\nb"), "the name of one account"),
    ],
)
def test_options_that_do_not_go_together(words: tuple[str, ...], said: str) -> None:
    ended = claimjobs("setup-tables", *words, "--url", "postgresql://nowhere.invalid/none")
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err


def test_the_tables_must_be_there(anywhere: Backend) -> None:
    ended = claimjobs("setup-tables", "--grants", "--url", anywhere.url)
    assert (ended.code, ended.out) == (4, "")
    assert "run `claimjobs setup-tables`" in ended.err


FORBIDDEN = {
    "producer": (
        "SELECT d FROM jobs",
        "UPDATE jobs SET d = ''",
        "DELETE FROM jobs",
        "INSERT INTO jobs (d, e, status) VALUES ('', '', 'dead')",
        f"DELETE FROM {OWNER_TABLE}",
    ),
    "consumer": ("INSERT INTO jobs (d, e) VALUES ('', '')", "UPDATE jobs SET d = ''", "UPDATE jobs SET id = 1"),
    "operator": (
        "INSERT INTO jobs (d, e) VALUES ('', '')",
        "UPDATE jobs SET d = ''",
        f"INSERT INTO {OWNER_TABLE} (host, pid, claims, lease) VALUES ('', 1, 'jobs', 10)",
    ),
}
DDL = ("CREATE TABLE mine (id integer)", "DROP TABLE jobs", "ALTER TABLE jobs ADD COLUMN more integer", "TRUNCATE jobs")


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_what_is_not_granted_is_refused(database: Backend, kind: str) -> None:
    database.make()
    with accounts(database) as given, given.engine(kind) as engine:
        for statement in (*FORBIDDEN[kind], *DDL):
            with engine.connect() as connection, pytest.raises(sa.exc.DBAPIError) as refused:
                connection.exec_driver_sql(statement)
            assert "denied" in str(refused.value) or "must be owner" in str(refused.value), statement


@pytest.mark.parametrize("kind", ["producer", "operator"])
def test_only_a_consumer_claims(database: Backend, kind: str) -> None:
    database.make()
    with accounts(database) as given, given.engine(kind) as engine, database.bare_queue() as looking:
        looking.enqueue(jobs(1))
        with Queue(engine) as queue, pytest.raises(Exception, match="denied"):
            queue.claim()
        assert looking.stats().claimed == 0


def test_commands_about_claims_say_that_they_need_a_consumers_account(database: Backend) -> None:
    database.make()
    with accounts(database) as given:
        started = claimjobs("start-processing", "shop:send", "--url", given.url("producer"))
        assert (started.code, started.out, started.err.count("\n")) == (exits.CONNECTION, "", 1)
        assert ": give a consumer's account in the URL" in started.err
        for kind, says in (("producer", "as a consumer must"), ("operator", "lacks INSERT on claimjobs_owners, which")):
            explained = claimjobs("explain", "--url", given.url(kind))
            assert explained.code == exits.WILL_NOT_WORK
            [line] = [line for line in explained.out.splitlines() if ": will not work: rights: " in line]
            assert says in line
            assert "a consumer's account" in line


def test_a_killed_consumer_is_replaced_by_another_of_its_account(database: Backend) -> None:
    database.make()
    with accounts(database) as given, given.engine("consumer") as engine, database.bare_queue() as looking:
        looking.enqueue(jobs(3))
        program = f"from claimjobs import Queue; batch = Queue({given.url('consumer')!r}).claim(3); input(len(batch))"
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as killed:
            assert killed.stdout is not None
            assert killed.stdout.read(1) == "3"
            killed.kill()
        with Queue(engine) as queue:
            database.wait_for(lambda: queue.reclaim() or not looking.stats().claimed, "its jobs are reclaimed")
            done = []
            while batch := queue.claim(1):
                with batch:
                    done += names(batch)
                    batch.done()
        assert sorted(done) == ["0000", "0001", "0002"]


def test_an_idle_consumer_of_another_account_is_woken_with_the_optional_right(database: Backend) -> None:
    """Where a wake is an interrupt; elsewhere the rights of a producer suffice."""
    database.make()
    with accounts(database) as given, given.engine("consumer") as engine, given.engine("producer") as producer:
        for line in given.lines("producer", optional=True):
            database.run(line)
        with Queue(engine, liveness=PATIENT) as queue, Consumer(database, queue) as consumer:
            consumer.falls_asleep()
            Queue(producer).enqueue(jobs(1))
            consumer.does("0000")


def test_a_session_of_another_account_is_ended_with_the_optional_right(database: Backend) -> None:
    database.make()
    with accounts(database) as given, given.engine("consumer") as engine:
        for line in given.lines("operator", optional=True):
            database.run(line)
        with Queue(engine, liveness=PATIENT) as queue, database.bare_queue() as looking:
            looking.enqueue(jobs(1))
            batch = still(queue).claim(1)  # its own heartbeat would reclaim the job, too
            before = len(database.sessions())
            database.run(f"UPDATE {OWNER_TABLE} SET died = beat")
            ended = claimjobs("reclaim", "--url", given.url("operator"))
            assert ended.out.strip() == "1", ended.err
            batch.done()
            database.wait_for(lambda: len(database.sessions()) <= before, "those of the command are gone, too")


def test_the_commands_of_the_page_about_security(database: Backend) -> None:
    lines = [line for line in shown() if line.where.startswith("security.md:")]
    assert len(lines) == 4
    for line in lines:
        ended = claimjobs(*line.words, env={"CLAIMJOBS_URL": database.url})
        assert ended.code == 0, f"{line}: {ended.err}"


def test_commands_run_with_these_accounts_and_warn_of_nothing(database: Backend, tmp_path: Path) -> None:
    database.make()
    (tmp_path / "jobs.jsonl").write_text('{"d": "a", "e": ""}\n' * 3)
    (tmp_path / "careful.py").write_text("def work(job): pass\n")
    with accounts(database) as given:
        for kind, words in (
            ("producer", ("enqueue", "jobs.jsonl")),
            ("operator", ("status", "--check", "--max-dead", "0")),
            ("consumer", ("start-processing", "careful:work", "--consumers", "1", "--drain", "--json")),
            ("consumer", ("explain",)),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "claimjobs", *words],
                env={**os.environ, "CLAIMJOBS_URL": given.url(kind), "PYTHONPATH": str(ROOT)},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
            assert "warning" not in done.stderr.lower(), words
            assert "denied" not in done.stderr, words
        assert database.rows() == []
