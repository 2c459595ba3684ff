"""What cannot work says so, at the first use, with the next step, and without a password."""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import sqlalchemy as sa

from claimjobs import Columns, Queue, job_table
from claimjobs.dialects.mysql.dialect import MariaDB, MySQL
from claimjobs.dialects.postgres.dialect import Postgres
from claimjobs.errors import (
    AccessDenied,
    BadPredicate,
    ClaimjobsError,
    ColumnMissing,
    KeyUnfit,
    ServerUnfit,
    ServerUnreachable,
    TableMissing,
    UnfitTable,
    UnknownDatabase,
)
from claimjobs.explain.adoption import additions
from claimjobs.table.create import make, tables_for
from claimjobs.table.definitions import OWNER_TABLE, QUEUES_TABLE, article_table
from tests.backends import Backend
from tests.conformance.jobs import dead_jobs, jobs, names

JOBS = article_table()
SECRET = "Tr0ub4dor&3"


def failure(use: Callable[[], Any], kind: type[ClaimjobsError]) -> str:
    """The message of what a use raises; no password in it, or in what caused it."""
    with pytest.raises(kind) as raised:
        use()
    error: BaseException | None = raised.value
    while error:
        assert SECRET not in str(error)
        error = error.__cause__ or error.__context__
    return str(raised.value)


def every_use(queue: Queue) -> list[Callable[[], Any]]:
    return [
        lambda: queue.enqueue(jobs(1)),
        queue.claim,
        lambda: next(queue.batches()),
        queue.stats,
        queue.check,
        lambda: queue.owner_id,
        lambda: queue.reclaim_owner(1),
    ]


# --- reaching the database ---------------------------------------------------------------------------------


def elsewhere(here: Backend, **parts: Any) -> Queue:
    """A Queue whose URL differs in these parts."""
    return Queue(sa.make_url(here.url).set(**parts))


def test_a_server_that_does_not_answer(database: Backend) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: refused, and nobody else can take it
        queue = elsewhere(database, host="127.0.0.1", port=nobody.getsockname()[1], password=SECRET)
        for use in every_use(queue):
            message = failure(use, ServerUnreachable)
            assert "check host and port, and that the server is running" in message


def test_a_host_that_is_not_there(database: Backend) -> None:
    queue = elsewhere(database, host="no-such-host.invalid", password=SECRET)
    assert "no-such-host.invalid" in failure(queue.check, ServerUnreachable)


def test_a_wrong_password(database: Backend) -> None:
    message = failure(elsewhere(database, password=SECRET).check, AccessDenied)
    assert "check user, password and their rights" in message
    assert "***" in message


def test_an_unknown_user(database: Backend) -> None:
    message = failure(elsewhere(database, username="nobody", password=SECRET).check, AccessDenied)
    assert "check user, password and their rights" in message


@pytest.fixture
def other_account(database: Backend) -> Iterator[tuple[Backend, str]]:
    """The name of another account, whose password is SECRET."""
    name = f"cj_{secrets.token_hex(4)}"
    kind = "ROLE" if database.family == "postgres" else "USER"
    how = "LOGIN PASSWORD" if kind == "ROLE" else "IDENTIFIED BY"
    database.run(f"CREATE {kind} {name} {how} '{SECRET}'")
    if kind == "USER":
        database.run(f"GRANT ALL ON {sa.make_url(database.url).database}.* TO {name}")
    yield database, name
    database.run(f"DROP {kind} {name}")


def test_an_account_that_is_locked_or_whose_password_has_expired(other_account: tuple[Backend, str]) -> None:
    database, name = other_account
    ways = (f"ALTER USER {name} ACCOUNT LOCK", f"ALTER USER {name} ACCOUNT UNLOCK PASSWORD EXPIRE")
    for way in (f"ALTER ROLE {name} NOLOGIN",) if database.family == "postgres" else ways:
        database.run(way)
        message = failure(elsewhere(database, username=name, password=SECRET).check, AccessDenied)
        assert "check user, password and their rights" in message


def test_an_account_that_has_as_many_connections_as_it_may(other_account: tuple[Backend, str]) -> None:
    database, name = other_account
    limit = f"ALTER ROLE {name} CONNECTION LIMIT 1"
    database.run(limit if database.family == "postgres" else f"ALTER USER {name} WITH MAX_USER_CONNECTIONS 1")
    url = sa.make_url(database.url).set(username=name, password=SECRET)
    first = sa.create_engine(url)
    with first.connect():
        message = failure(elsewhere(database, username=name, password=SECRET).check, ServerUnreachable)
    assert "raise that limit, or start fewer consumers" in message
    assert "check host" not in message
    first.dispose()


def test_a_database_without_an_encoding(anywhere: Backend) -> None:
    """As old ones are: with an engine of claimjobs all is as elsewhere, and a user's engine is told what it lacks."""
    name = f"{sa.make_url(anywhere.url).database}_plain"
    outside = sa.create_engine(anywhere.url, isolation_level="AUTOCOMMIT")
    with outside.connect() as connection:
        how = "ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        connection.exec_driver_sql(f"CREATE DATABASE {name} {how}")
    url = sa.make_url(anywhere.url).set(database=name)
    users = sa.create_engine(url)
    assert "add client_encoding=utf8 to the URL" in failure(Queue(users).check, UnknownDatabase)
    with Queue(url) as queue:
        make(queue.engine, tables_for("jobs"))
        queue.enqueue({"d": "ä", "e": "€"})
        with queue.claim() as batch:
            assert [(job.d, job.e) for job in batch.jobs] == [("ä", "€")]
            batch.fail(batch[0], "ö", retry=False)
        assert [job.last_error for job in dead_jobs(queue)] == ["ö"]
    queue.engine.dispose()
    users.dispose()
    with outside.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name}")
    outside.dispose()


def test_no_such_database(database: Backend) -> None:
    message = failure(elsewhere(database, database="no_such_database").check, AccessDenied)
    assert "there is no such database" in message
    assert "create it, or correct the URL" in message


@pytest.mark.parametrize("what", ["use", "make"])
def test_a_server_that_is_too_old(backend: Backend, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """It says which version is needed, and makes nothing there."""
    for dialect in (MySQL, MariaDB, Postgres):
        monkeypatch.setattr(dialect, "oldest", (99, 1))
    queue = backend.bare_queue()
    message = failure(queue.check if what == "use" else lambda: make(backend.engine, tables_for("jobs")), ServerUnfit)
    assert f"upgrade the server to {backend.dialect.title} 99.1 or later" in message
    assert sa.inspect(backend.engine).get_table_names() == []


@pytest.mark.parametrize("rows", [0, 1])
def test_a_server_that_does_not_know_what_a_claim_sends(backend: Backend, rows: int) -> None:
    """The version is new enough, as that of another product may be. `check` says it, before anything is claimed."""
    queue = backend.queue()
    queue.enqueue(jobs(rows)) if rows else None
    sa.event.listen(queue.engine, "before_cursor_execute", without_skip_locked, retval=True)
    message = failure(queue.check, ServerUnfit)
    assert "table 'jobs'" in message
    assert f"choose {backend.dialect.title} " in message


def test_a_server_that_reads_skip_locked_and_locks_nothing(backend: Backend) -> None:
    """Two consumers would claim one job, and no statement would fail."""
    queue = backend.queue()
    queue.enqueue(jobs(1))
    sa.event.listen(queue.engine, "before_cursor_execute", without_lock, retval=True)
    assert "two sessions locked one row at once" in failure(queue.check, ServerUnfit)
    sa.event.remove(queue.engine, "before_cursor_execute", without_lock)
    queue.check()


def without_lock(_connection: Any, _cursor: Any, sql: str, parameters: Any, *_: Any) -> tuple[str, Any]:
    """What the server gets locks no row."""
    return re.sub(r" FOR (NO KEY )?UPDATE( OF \S+)? SKIP LOCKED", "", sql), parameters


def without_skip_locked(_connection: Any, _cursor: Any, sql: str, parameters: Any, *_: Any) -> tuple[str, Any]:
    """What the server gets has a clause that it does not know, in place of SKIP LOCKED."""
    return sql.replace("SKIP LOCKED", "SKIP BOLTED"), parameters


def test_a_server_that_says_the_version_of_another_product(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = backend.bare_queue(bind=backend.new_engine())  # one that has not met its server yet
    unknown = AssertionError("Could not determine version from string 'CockroachDB CCL v26.2.0'")  # SQLAlchemy's words
    monkeypatch.setattr(queue.engine.dialect, "initialize", Mock(side_effect=unknown))
    message = failure(queue.check, ServerUnfit)
    assert "'CockroachDB CCL v26.2.0'" in message
    assert "docs/scaling.md" in message


def test_a_mysql_url_that_leads_to_a_mariadb_is_known_for_what_it_is(database: Backend) -> None:
    queue = database.queue()
    queue.check()
    assert type(queue._access.backend.dialect) is type(database.dialect)


# --- the table ---------------------------------------------------------------------------------------------


def test_the_table_is_missing(backend: Backend) -> None:
    queue = backend.bare_queue()
    for use in every_use(queue):
        assert "table 'jobs' is not in this database: run `claimjobs setup-tables`" in failure(use, TableMissing)


def test_another_table_is_missing(backend: Backend) -> None:
    """A name alone would make the table of the demonstration, with other columns."""
    described = job_table("emails", sa.MetaData())
    for queue in (backend.bare_queue("emails"), backend.bare_queue(described)):
        told = failure(queue.check, TableMissing)
        assert "table 'emails' is not in this database: check the name and the URL; `claimjobs setup-tables" in told
        assert "--table emails" not in told


def test_the_owners_are_missing(backend: Backend) -> None:
    JOBS.create(backend.engine)
    queue = backend.bare_queue()
    assert f"table {OWNER_TABLE!r} is not in this database: run `claimjobs setup-tables`" in failure(
        queue.claim, TableMissing
    )


def test_the_table_of_queues_is_missing(backend: Backend) -> None:
    backend.make()
    backend.run(f"DROP TABLE {QUEUES_TABLE}")
    for use in every_use(backend.bare_queue()):
        assert f"table {QUEUES_TABLE!r} is not in this database: run `claimjobs setup-tables`" in failure(
            use, TableMissing
        )


def test_a_table_that_is_made_after_the_complaint_is_found(backend: Backend) -> None:
    queue = backend.bare_queue()
    failure(queue.check, TableMissing)
    backend.make()
    queue.check()


def test_a_column_is_missing_in_the_database(backend: Backend) -> None:
    backend.make()
    described = job_table("jobs", sa.MetaData(), sa.Column("colour", sa.String(10)))
    message = failure(backend.bare_queue(described).check, ColumnMissing)
    assert "table 'jobs' has no column 'colour'" in message
    assert "ALTER TABLE jobs ADD COLUMN colour" in message


@pytest.mark.parametrize("role", ["status", "owner_id"])
def test_a_column_that_a_claim_needs_is_missing(backend: Backend, role: str) -> None:
    backend.make(sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True)))
    if role == "owner_id":
        backend.run("ALTER TABLE orders ADD COLUMN status VARCHAR(16)")
    message = failure(backend.bare_queue("orders").check, ColumnMissing)
    assert (
        f"table 'orders' has no column {role!r}, which claiming needs: ALTER TABLE orders ADD COLUMN {role} " in message
    )


def test_the_statement_in_the_complaint_mends_it(backend: Backend) -> None:
    backend.make(sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True)))
    queue = backend.bare_queue("orders")
    for _ in range(2):
        backend.run(failure(queue.check, ColumnMissing).partition(": ")[2])
    queue.enqueue([{"id": 1}, {"id": 2}])
    with queue.claim() as batch:
        for role in ("attempts", "run_at", "last_error"):
            if role != "last_error":
                failure(lambda: batch.fail(batch[0], "x"), ColumnMissing)
            for statement in steps_in(str(ColumnMissing("orders", role, "this")), role, backend):
                backend.run(statement)
        batch.done()


def test_the_statement_in_the_complaint_can_be_run_whatever_the_names(backend: Backend) -> None:
    """Words of SQL's own, and capitals, which a database has quoted in its own way."""
    backend.make()
    described = sa.Table("Order", sa.MetaData(), sa.Column("group", sa.Integer, nullable=False), mysql_engine="InnoDB")
    described.append_column(sa.Column("Nr", sa.Integer, primary_key=True))
    described.create(backend.engine)

    def mended(use: Callable[[Queue], Any], kind: type[ClaimjobsError], **options: Any) -> None:
        options["on_done"] = "delete"
        queue = backend.bare_queue("Order", **options)
        backend.run(failure(lambda: use(queue), kind).partition(": ")[2])
        use(backend.bare_queue("Order", **options))

    mended(Queue.check, ColumnMissing, columns=Columns(key="Nr"))
    mended(Queue.check, KeyUnfit, columns=Columns(key="group"))
    mended(lambda queue: queue.enqueue([], unique=("Nr", "group")), UnfitTable, columns=Columns())


def steps_in(complaint: str, column: str, backend: Backend) -> list[str]:
    """The statement that a complaint ends in, or those that the command runs which it ends in."""
    step = complaint.partition(": ")[2]
    if not step.startswith(f"run `claimjobs setup-tables --table orders --add {column}`, which adds it"):
        return [step]
    return additions(backend.engine, Queue(backend.engine, "orders").settings, [column])


def test_a_table_without_a_primary_key(backend: Backend) -> None:
    backend.make()
    backend.run("CREATE TABLE heap (status VARCHAR(16), owner_id INTEGER)")
    message = failure(backend.bare_queue("heap").check, KeyUnfit)
    assert "table 'heap' has no primary key to name a job by: add one" in message


# --- predicates --------------------------------------------------------------------------------------------

BAD_PREDICATES = ["colour = 'red'", "d = ", "d = 'x' and and", "no_such_function(d) = 1", "d in (1, )"]


@pytest.mark.parametrize("sql", BAD_PREDICATES)
def test_a_predicate_that_the_database_does_not_understand(backend: Backend, sql: str) -> None:
    queue = backend.queue(where=sa.text(sql))
    queue.enqueue(jobs(1))
    for use in (queue.check, queue.claim, queue.stats):
        message = failure(use, BadPredicate)
        assert message.startswith("the database does not understand the predicate (")
        assert "check its columns and quotes" in message


def test_a_bad_predicate_of_one_claim_does_not_spoil_the_next(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(2))
    failure(lambda: queue.claim(where=sa.text("colour = 1")), BadPredicate)
    with queue.claim(where=sa.text("d = '0001'")) as batch:
        assert names(batch) == ["0001"]


def test_an_order_that_the_database_does_not_understand(backend: Backend) -> None:
    queue = backend.queue(order_by=["-colour"], where=sa.text("d like 'a%'"))
    for use in (queue.check, queue.claim):
        message = failure(use, BadPredicate)
        assert message.startswith("the database does not understand the order (")
        assert "colour" in message
        assert "or SQL as after ORDER BY; check its columns" in message


def test_a_bad_predicate_is_told_before_a_bad_order(backend: Backend) -> None:
    queue = backend.queue(order_by="colour", where=sa.text("color = 1"))
    for use in (queue.check, queue.claim):
        assert "does not understand the predicate" in failure(use, BadPredicate)


def test_a_predicate_over_another_description_of_the_same_table(backend: Backend) -> None:
    """Columns of a `Table` that is not the queue's own would stand for a second table in the statement."""
    queue = backend.queue("jobs", where=JOBS.c.d == "0001")
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        assert names(batch) == ["0001"]
