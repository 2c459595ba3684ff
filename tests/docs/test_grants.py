"""The GRANT statements of the page about security: each account can do its work, and nothing else."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
import sqlalchemy as sa

from claimjobs import PerKey, Queue, key_tables, make, side_car_tables
from claimjobs.cli import exits
from claimjobs.errors import AccessDenied
from claimjobs.options import Retry
from claimjobs.table.definitions import OWNER_TABLE
from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import still
from tests.conformance.sleepers import PATIENT, Consumer
from tests.conformance.test_on_duplicate import event, queue_of
from tests.conformance.test_rights import account
from tests.docs.markdown import MONITORING, SECURITY, blocks, prose

Kind = Literal["rows", "batches", "transaction", "side-car"]
TITLES = {"postgres": "Postgres", "mysql": "MySQL", "mariadb": "MariaDB"}
NAMES = ("shop_worker", "shop_ops", "shop")
"""The accounts of the page."""
OPTIONS: dict[Kind, dict[str, Any]] = {
    "rows": {},
    "batches": {"claims": "batches"},
    "transaction": {"hold": "transaction"},
    "side-car": {"side_car": True, "on_done": "keep"},
}


@dataclass(frozen=True)
class Accounts:
    """Accounts with the rights of the page, by the names that they have there."""

    backend: Backend
    names: dict[str, str]
    opened: ExitStack

    def url(self, account: str) -> str:
        """The URL of the test's database for this account."""
        url = sa.make_url(self.backend.url).set(username=self.names[account], password="secret")
        return url.render_as_string(hide_password=False)

    def queue(self, account: str, table: str = "jobs", **options: Any) -> Queue:
        """A queue of this account, until the accounts are dropped."""
        engine = sa.create_engine(self.url(account), poolclass=sa.NullPool)
        self.opened.callback(engine.dispose)
        return self.opened.enter_context(Queue(engine, table, **options))

    def run(self, *words: str) -> str:
        """What a command of the operator printed."""
        ended = claimjobs(*words, "--url", self.url("shop_ops"))
        assert ended.code == exits.OK, f"{words}: {ended.err}"
        return ended.out.strip()


def statements(backend: Backend, what: str) -> list[str]:
    """Those of the page for this database."""
    title = TITLES[backend.family]
    heads = {
        block.text.partition("\n")[0].removeprefix("-- ").rpartition(", "): block for block in blocks(SECURITY, "sql")
    }
    [block] = [block for (titles, _, kind), block in heads.items() if kind == what and title in titles.split(", ")]
    return block.text.partition("\n")[2].strip().removesuffix(";").split(";\n")


@contextmanager
def accounts(backend: Backend, consumer: Kind, *more: str) -> Iterator[Accounts]:
    """A consumer's account for a kind of queue, a producer's and an operator's. `more`: further parts of the page."""
    postgres = backend.family == "postgres"
    database = sa.make_url(backend.url).database
    made = {name: f"cj_{secrets.token_hex(4)}" for name in NAMES}
    if postgres:  # in a new database everybody has it
        backend.run("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    try:
        for name in made.values():
            account = f"ROLE {name} LOGIN PASSWORD 'secret'" if postgres else f"USER {name} IDENTIFIED BY 'secret'"
            backend.run(f"CREATE {account}")
        others = () if consumer == "side-car" else ("producer", "operator")
        for statement in (line for what in (consumer, *others, *more) for line in statements(backend, what)):
            here, _, to = statement.replace("shop.", f"{database}.").rpartition(" TO ")
            backend.run(f"{here} TO {made[to]}")
        with ExitStack() as opened:
            yield Accounts(backend, made, opened)
    finally:
        for name in made.values():
            if postgres:
                backend.run(f"DROP OWNED BY {name}")
            backend.run(f"DROP {'ROLE' if postgres else 'USER'} IF EXISTS {name}")


def test_each_block_is_for_a_database_and_an_account_that_there_are() -> None:
    heads = [re.match(r"-- (.*)\n", block.text) for block in blocks(SECURITY, "sql")]
    assert all(heads)
    assert {word for head in heads if head for word in head[1].split(", ")} == {
        *TITLES.values(),
        *OPTIONS,
        *("producer", "operator", "per key"),
    }


@pytest.mark.parametrize("kind", ["rows", "batches", "transaction"])
def test_a_job_is_worked_through_with_the_rights_of_the_page(backend: Backend, kind: Kind) -> None:
    backend.make()
    options = OPTIONS[kind]
    with accounts(backend, kind) as given:
        assert given.queue("shop", **options).enqueue(jobs(5)) == 5
        if kind == "transaction":
            assert backend.run("DELETE FROM jobs WHERE d = '0000'") == 1
        else:
            assert names(still(backend.queue(**options)).claim(1)) == ["0000"]
            backend.run(f"UPDATE {OWNER_TABLE} SET died = beat")
        queue = given.queue("shop_worker", retry=Retry(attempts=2), **options)
        if kind != "transaction":
            still(queue)  # its heartbeats would reclaim, too
        with queue.claim(4) as batch:
            if kind != "transaction":
                assert queue.reclaim() == 1
            batch.done(batch[0])
            batch.fail(batch[1], "not now")
            batch.fail(batch[2], "never", retry=False)
            batch.release(batch[3])
        found = {row["d"]: row["status"] for row in backend.rows() if row["d"] != "0000"}
        assert found == {"0002": "unclaimed", "0003": "dead", "0004": "unclaimed"}
        map_options = ("--claims", "batches") if kind == "batches" else ()
        for words in (("pause", "--reason", "a drill"), ("status", "--json"), ("resume",)):
            given.run(*words, *map_options)
        [dead] = [str(row["id"]) for row in backend.rows() if row["status"] == "dead"]
        assert given.run("dead", "retry", dead, *map_options) == "1"
        backend.run("UPDATE jobs SET status = 'dead'")
        assert given.run("dead", "drop", dead, "--yes", *map_options) == "1"
        given.run("purge", "--state", "dead", "--older-than", "1d", *map_options)
        backend.may_leave_owners = True


def test_a_job_with_a_side_car_is_worked_through_with_the_rights_of_the_page(backend: Backend) -> None:
    backend.run("CREATE TABLE orders (id integer PRIMARY KEY, what varchar(20))")
    backend.run("INSERT INTO orders VALUES (1, 'tea'), (2, 'salt'), (3, 'rice')")
    make(backend.engine, side_car_tables(backend.engine, "orders"))
    with accounts(backend, "side-car") as given:
        right = "INSERT" if backend.family == "postgres" else "SHOW VIEW, INSERT"
        backend.run(f"GRANT {right} ON orders TO {given.names['shop']}")
        if backend.family == "postgres":
            backend.run(f"GRANT USAGE ON SCHEMA public TO {given.names['shop']}")
        producer = given.queue("shop", "orders", **OPTIONS["side-car"])
        assert producer.enqueue({"id": 4, "what": "oil"}) == 1
        if backend.family != "postgres":  # which lets everybody see a table's columns
            with pytest.raises(AccessDenied, match="may not read orders_claims"):
                producer.claim(1)
        dying = still(backend.bare_queue("orders", **OPTIONS["side-car"]))
        assert len(dying.claim(1)) == 1
        backend.run(f"UPDATE {OWNER_TABLE} SET died = beat")
        queue = still(given.queue("shop_worker", "orders", **OPTIONS["side-car"]))  # its heartbeats would reclaim, too
        with queue.claim(4) as batch:
            assert queue.reclaim() == 1
            batch.done(batch[2])
            batch.done(batch[0])
            batch.fail(batch[1], "never", retry=False)
        assert sorted(row["status"] for row in backend.rows("orders_claims")) == ["dead", "done", "done", "unclaimed"]
    backend.may_leave_owners = True


def test_limits_per_key_are_kept_with_the_rights_of_the_page(backend: Backend) -> None:
    backend.make()
    backend.run("CREATE INDEX jobs_by_d ON jobs (status, d, priority, id, run_at, suspect)")
    make(backend.engine, key_tables(backend.engine, "jobs", ["d"]))
    one = PerKey("d", at_most=1)
    with accounts(backend, "rows", "per key") as given:
        producer = given.queue("shop", per_key=one)
        assert producer.enqueue([{"d": "a", "e": ""}, {"d": "a", "e": ""}, {"d": "b", "e": ""}]) == 3
        assert names(still(backend.queue(per_key=one)).claim(1)) == ["a"]
        queue = still(given.queue("shop_worker", per_key=one))
        with queue.claim(3) as batch:
            assert names(batch) == ["b"]
            batch.done()
        assert [bool(row["held_back"]) for row in backend.rows("jobs_keys") if row["d"] == "a"] == [True]
        backend.run(f"UPDATE {OWNER_TABLE} SET died = beat")
        for words in (("status", "--per-key", "d"), ("watch", "--times", "1", "--per-key", "d")):
            given.run(*words)
        assert given.queue("shop_ops", per_key=one).reclaim() == 1
        assert [bool(row["held_back"]) for row in backend.rows("jobs_keys") if row["d"] == "a"] == [False]
        backend.may_leave_owners = True


@pytest.mark.parametrize("kind", ["rows", "batches"])
def test_a_job_that_is_there_is_changed_with_the_rights_of_the_page(backend: Backend, kind: Kind) -> None:
    options = {"on_done": "keep", **OPTIONS[kind]}
    queue_of(backend, **options)
    added = [("SELECT, UPDATE", "jobs", "shop"), ("UPDATE (e, run_again)", "jobs", "shop_worker")]
    if kind == "batches":
        added.append(("SELECT", "claimjobs_batches", "shop"))
    place = "" if backend.family == "postgres" else f"{sa.make_url(backend.url).database}."
    with accounts(backend, kind) as given:
        for right, table, account in added:
            backend.run(f"GRANT {right} ON {place}{table} TO {given.names[account]}")
        producer, queue = given.queue("shop", **options), given.queue("shop_worker", **options)
        assert event(producer, "a", "b") == 2
        with queue.claim(1) as batch:
            assert event(producer, "a") == 1, "it is claimed"
            batch.done()
        with queue.claim(1) as batch:
            batch.done(batch[0], e="done")
        assert event(producer, "a", "b", how="postpone", run_at=datetime(2001, 1, 1, tzinfo=UTC)) == 1, "one waits"
        assert event(producer, "a", "b", how="replace", e="new") == 1
        assert sorted(row["e"] for row in backend.rows()) == ["done", "new"]
        assert event(producer, "a", "b") == 1, "one is done"


FORBIDDEN = {
    "shop": (
        "SELECT d FROM jobs",
        "UPDATE jobs SET d = ''",
        "DELETE FROM jobs",
        "INSERT INTO jobs (d, e, status) VALUES ('', '', 'dead')",
        f"DELETE FROM {OWNER_TABLE}",
    ),
    "shop_worker": ("INSERT INTO jobs (d, e) VALUES ('', '')", "UPDATE jobs SET d = ''", "UPDATE jobs SET id = 1"),
    "shop_ops": (
        "INSERT INTO jobs (d, e) VALUES ('', '')",
        "UPDATE jobs SET d = ''",
        f"INSERT INTO {OWNER_TABLE} (host, pid, claims, lease) VALUES ('', 1, 'jobs', 10)",
    ),
}
DDL = ("CREATE TABLE mine (id integer)", "DROP TABLE jobs", "ALTER TABLE jobs ADD COLUMN more integer", "TRUNCATE jobs")


@pytest.mark.parametrize("account", FORBIDDEN)
def test_what_is_not_granted_is_refused(database: Backend, account: str) -> None:
    database.make()
    with accounts(database, "rows") as given:
        engine = given.queue(account).engine
        for statement in (*FORBIDDEN[account], *DDL):
            with engine.connect() as connection, pytest.raises(sa.exc.DBAPIError) as refused:
                connection.exec_driver_sql(statement)
            assert "denied" in str(refused.value) or "must be owner" in str(refused.value), statement


def test_commands_about_claims_say_that_they_need_a_consumers_account(database: Backend) -> None:
    database.make()
    with accounts(database, "rows") as given:
        started = claimjobs("start-processing", "shop:send", "--url", given.url("shop"))
        assert (started.code, started.out, started.err.count("\n")) == (exits.CONNECTION, "", 1)
        assert ": give a consumer's account in the URL" in started.err
        for account, says in (("shop", "as a consumer must"), ("shop_ops", "this user may not 'register' (")):
            explained = claimjobs("explain", "--url", given.url(account))
            assert explained.code == exits.WILL_NOT_WORK
            [line] = [line for line in explained.out.splitlines() if re.match("will not work +rights ", line)]
            assert says in line
            assert "a consumer's account" in line
        said = claimjobs("--verbose", "explain", "--url", given.url("shop_worker")).out
        assert re.search("^ok +rights +this user may read and write", said, re.M), said


@pytest.mark.parametrize(
    ("words", "tables"),
    [
        ("--side-car", ["jobs_claims", "claimjobs_batches"]),
        ("--per-key d", ["jobs_keys"]),
        ("--claims batches", ["claimjobs_batches"]),
    ],
)
def test_the_tables_that_are_monitored_are_those_of_the_page(database: Backend, words: str, tables: list[str]) -> None:
    database.make()
    make(database.engine, [*side_car_tables(database.engine, "jobs"), *key_tables(database.engine, "jobs", ["d"])])
    [paragraph] = [text for text in prose(MONITORING).split("\n\n") if text.startswith("Its account")]
    for name in (words.removesuffix(" d"), *(re.sub("^jobs", "<table>", table) for table in tables)):
        assert f"`{name}`" in paragraph
    seen = {"jobs", "claimjobs_owners", "claimjobs_queues", *tables}
    for missing in ("", *tables):
        with account(database, **dict.fromkeys(seen - {missing}, "SELECT")) as engine:
            url = engine.url.render_as_string(hide_password=False)
            ended = claimjobs("watch", "--times", "1", *words.split(), "--url", url)
            assert (ended.code == exits.OK) == (missing == ""), f"without {missing!r}: {ended.err}"


def test_a_killed_consumer_is_replaced_by_another_of_its_account(database: Backend) -> None:
    database.make()
    with accounts(database, "rows") as given, database.bare_queue() as looking:
        looking.enqueue(jobs(3))
        url = given.url("shop_worker")
        program = f"from claimjobs import Queue; batch = Queue({url!r}).claim(3); input(len(batch))"
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as killed:
            assert killed.stdout is not None
            assert killed.stdout.read(1) == "3"
            killed.kill()
        queue = given.queue("shop_worker")
        database.wait_for(lambda: queue.reclaim() or not looking.stats().claimed, "its jobs are reclaimed")
        done = []
        while batch := queue.claim(1):
            with batch:
                done += names(batch)
                batch.done()
        assert sorted(done) == ["0000", "0001", "0002"]


def test_an_idle_consumer_is_woken_by_a_producer_of_another_account(database: Backend) -> None:
    """Where a wake is an interrupt, no right of the page suffices: the consumer polls."""
    if database.dialect.interrupts:
        pytest.skip("a wake is an interrupt, which needs a right over all sessions")
    database.make()
    with accounts(database, "rows") as given:
        producer, queue = given.queue("shop"), given.queue("shop_worker", liveness=PATIENT)
        with Consumer(database, queue) as consumer:
            consumer.falls_asleep()
            producer.enqueue(jobs(1))
            consumer.does("0000")
