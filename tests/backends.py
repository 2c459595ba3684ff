"""The databases that tests run on: a server of each family for the run, a fresh database for each test.

This is the tests' own eye on a server (sessions, locks, plans), so it may know the families by name; tests ask
`backend.requires(...)` for a capability instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest
import sqlalchemy as sa

from claimjobs import Assignments, Queue, make, tables_for
from claimjobs.dialects import DIALECTS, Dialect, PortablePostgres
from claimjobs.dialects.types import Instant
from claimjobs.table.definitions import OWNER_TABLE

if TYPE_CHECKING:
    from servers import Server

Family = Literal["postgres", "mysql", "mariadb"]
FAMILIES: tuple[Family, ...] = ("postgres", "mysql", "mariadb")
MAY_BE_MISSING = frozenset({"mariadb"})
DEAR = 3
"""So many times longer than a look takes is the pause after it: what is waited for needs the processor, too."""


@dataclass(frozen=True)
class Flavour:
    """A server and the dialect that claimjobs is to use on it (None: the one it finds)."""

    family: Family
    dialect: Dialect | None = None


FLAVOURS: dict[str, Flavour] = {
    "postgres": Flavour("postgres"),
    "postgres-portable": Flavour("postgres", PortablePostgres()),
    "mysql": Flavour("mysql"),
    "mariadb": Flavour("mariadb"),
}

CAPABILITIES: dict[str, tuple[str, frozenset[str]]] = {
    "one statement": ("a claim in one statement", frozenset({"postgres"})),
    "lock in order": ("locks in the order of the rows, as they are found", frozenset({"postgres"})),
    "count of collisions": ("candidates of which it skips some", frozenset({"postgres-portable", "mysql", "mariadb"})),
    "lock of what is found": ("a lock on what a subquery finds", frozenset({"postgres", "mysql"})),
    "locks what it reads": ("locks on rows that are read and then not wanted", frozenset({"mysql", "mariadb"})),
    "planner switches": ("switches for kinds of join", frozenset({"postgres", "postgres-portable"})),
    "named lock table": ("a view of every named lock", frozenset({"postgres", "postgres-portable", "mysql"})),
    "row lock table": ("a view of every row lock", frozenset({"mysql"})),
    "schemas": ("schemas within a database", frozenset({"postgres", "postgres-portable"})),
    "locks that spare keys": ("row locks that foreign keys pass", frozenset({"postgres", "postgres-portable"})),
    "table collation": ("a collation for each table", frozenset({"mysql", "mariadb"})),
    "partial indexes": ("indexes over some rows only", frozenset({"postgres", "postgres-portable"})),
    "skips duplicates": ("an INSERT that leaves duplicates out", frozenset({"postgres"})),
    "current reads": ("locking reads beyond a transaction's snapshot", frozenset({"mysql", "mariadb"})),
    "native uuid": ("a UUID type of its own", frozenset({"postgres", "postgres-portable", "mariadb"})),
    "copies": ("rows sent as data", frozenset({"postgres"})),
    "joined rows": ("an INSERT of many rows", frozenset({"mysql", "mariadb"})),
    "values that Python has not": ("dates beyond Python's", frozenset({"postgres", "postgres-portable"})),
    "swallowing triggers": ("triggers that swallow a write", frozenset({"postgres", "postgres-portable"})),
    "arrays": ("columns of arrays", frozenset({"postgres", "postgres-portable"})),
}
"""What `backend.requires` knows, and the backends that have it."""


class Servers:
    """The servers of a run: each started once, when the first test asks for it."""

    def __init__(self) -> None:
        self._started: dict[Family, Host] = {}
        self._missing: dict[Family, Exception] = {}
        self._open = contextlib.ExitStack()

    def get(self, family: Family) -> Host:
        """The server of a family. Without one a test fails, or is skipped where the family may be missing."""
        if family not in self._started and family not in self._missing:
            self._start(family)
        if family in self._started:
            return self._started[family]
        message = f"no {family} server: {self._missing[family]}"
        if family in MAY_BE_MISSING:
            pytest.skip(message)
        pytest.fail(message, pytrace=False)

    def _start(self, family: Family) -> None:
        import servers  # its containers are slow to import, and a run without a server needs none

        try:
            server = self._open.enter_context(servers.start(family))
            self._started[family] = self._open.enter_context(contextlib.closing(Host(family, server)))
        except servers.Unavailable as error:
            self._missing[family] = error

    def lend(self, name: str) -> Backend:
        """An empty database on the server of a flavour, to be closed by the caller."""
        return Backend(name, self.get(FLAVOURS[name].family))

    def close(self) -> None:
        self._open.close()

    def lines(self) -> list[str]:
        """Which servers were used, for the summary of the run."""
        used = [f"{name} {host.server.version} ({host.server.how})" for name, host in self._started.items()]
        return used + [f"{name} is missing: {error}" for name, error in self._missing.items()]


class Host:
    """A server, what each test leaves for the next one there, and the sessions of those who look at it from outside."""

    def __init__(self, family: Family, server: Server) -> None:
        self.server = server
        self.spare: list[str] = []
        """Databases that are empty again."""
        self.outside = sa.create_engine(server.url, isolation_level="AUTOCOMMIT", max_overflow=-1, pool_pre_ping=True)
        """In no test's database. A server may be started again under it."""
        self._family = family

    def close(self) -> None:
        for database in self.spare:
            _Eye(self._family, self.outside, database).drop()
        self.outside.dispose()


class Clock:
    """An instant to inject: `queue(now=clock.sql)`, then `clock.now += timedelta(seconds=10)`."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        told: sa.BindParameter[datetime] = sa.bindparam("the_clock", callable_=lambda: self.now, type_=Instant())
        self.sql = sa.cast(told, Instant())  # typed, as the database's own clock is


CLAIMS: Final = os.environ.get("CLAIMJOBS_TEST_CLAIMS")
"""How the claims of all Queues of the tests are recorded, where a test does not say it (see `Queue(claims=...)`)."""


class Backend:
    """An empty database of its own for one test. See tests/conftest.py for how to use it."""

    def __init__(self, name: str, host: Host) -> None:
        flavour = FLAVOURS[name]
        self.name = name
        self.family: Family = flavour.family
        self.server = host.server
        self.may_leave_owners = False
        """For a test that kills a process: whether rows may be left in the table of owners."""
        self._override = flavour.dialect
        self._spare = host.spare
        database = self._spare.pop() if self._spare else None
        self._eye = _Eye(flavour.family, host.outside, database or f"cj_{secrets.token_hex(6)}")
        if not database:
            self._eye.create()
        url = host.outside.url.set(database=self._eye.database)
        self.url: str = url.render_as_string(hide_password=False)
        self._engines: list[sa.Engine] = []
        self._queues: list[Queue | Assignments] = []
        self.engine = self.new_engine()

    @property
    def dialect(self) -> Dialect:
        """What claimjobs takes this database for."""
        name = "postgresql" if self.family == "postgres" else self.family
        return self._override or DIALECTS[name]()

    def requires(self, capability: str) -> None:
        """Skip the test on a database that lacks a capability (see CAPABILITIES)."""
        if not self.has(capability):
            pytest.skip(f"{self.name} lacks {CAPABILITIES[capability][0]}")

    def has(self, capability: str) -> bool:
        """Whether this database has a capability (see CAPABILITIES)."""
        return self.name in CAPABILITIES[capability][1]

    # --- queues and engines ----------------------------------------------------------------------------

    def queue(
        self, table: str | sa.Table | type[Any] = "jobs", *, bind: sa.Engine | None = None, **options: Any
    ) -> Queue:
        """A Queue whose tables are made where they are missing. Closed at teardown."""
        self.make(table)
        return self.bare_queue(table, bind=bind, **options)

    def bare_queue(
        self, table: str | sa.Table | type[Any] = "jobs", *, bind: sa.Engine | None = None, **options: Any
    ) -> Queue:
        """A Queue on tables that are there. Closed at teardown."""
        options = {"dialect": self._override, **options}
        if CLAIMS and not {"hold", "lock", "side_car", "claims"} & options.keys():
            options["claims"] = CLAIMS
        queue = Queue(bind or self.engine, table, **options)
        self._queues.append(queue)
        return queue

    def assignments(self, table: str, *, bind: sa.Engine | None = None, **options: Any) -> Assignments:
        """Rows of a table that is there, to be given to workers."""
        given = Assignments(bind or self.engine, table, **{"dialect": self._override, **options})
        self._queues.append(given)
        return given

    def make(self, table: str | sa.Table | type[Any] = "jobs") -> None:
        """Make the tables of a queue where they are missing."""
        make(self.engine, tables_for(table))

    def new_engine(self, **options: Any) -> sa.Engine:
        """Another engine for the same database. Disposed of at teardown."""
        return self.new_engine_to(self.url, **{"max_overflow": 50, **options})

    def new_engine_to(self, url: str, **options: Any) -> sa.Engine:
        """An engine for another URL of this database: through a proxy, as another user. Disposed of at teardown."""
        engine = sa.create_engine(url, **options)
        self._engines.append(engine)
        return engine

    # --- looking at it ---------------------------------------------------------------------------------

    def rows(self, table: str | sa.Table = "jobs") -> list[sa.RowMapping]:
        """All rows of a table, by its key (a reflected one: its instants are as the driver gives them)."""
        with self.engine.connect() as connection:
            if isinstance(table, str):
                table = sa.Table(table, sa.MetaData(), autoload_with=connection)
            return list(connection.execute(sa.select(table).order_by(*table.primary_key)).mappings())

    def run(self, statement: str, **values: Any) -> int:
        """Run one statement of SQL and commit; how many rows it reached."""
        with self.engine.begin() as connection:
            return int(connection.execute(sa.text(statement), values).rowcount)

    def insert(self, table: str | sa.Table, rows: Iterable[Mapping[str, Any]]) -> None:
        """Insert rows as they are, and commit: also such as no queue enqueues."""
        with self.engine.begin() as connection:
            if isinstance(table, str):
                table = sa.Table(table, sa.MetaData(), autoload_with=connection)
            for row in rows:
                connection.execute(sa.insert(table), dict(row))

    def analyze(self, table: str = "jobs") -> None:
        """Let the planner learn how many rows a table has."""
        with self.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.exec_driver_sql(f"ANALYZE {'' if self.family == 'postgres' else 'TABLE '}{table}").close()

    def locked(self, table: str = "jobs") -> int:
        """How many rows are locked now, by anybody: those that another session has to skip."""
        with self.engine.connect() as connection:
            everything = connection.scalar(sa.text(f"SELECT count(*) FROM {table}")) or 0
            free = connection.execute(sa.text(f"SELECT 1 FROM {table} FOR UPDATE SKIP LOCKED")).all()
            connection.rollback()
        return int(everything) - len(free)

    def advisory_locks(self, table: str = "jobs", keys: Sequence[int] = range(1, 1_001)) -> int:
        """How many advisory locks on keys are held now, by anybody. A server that lists none is asked for each key."""
        return self._eye.advisory_locks(
            [self.dialect.key_locks.lock_of(f"{self._eye.database}.{table}", str(k)) for k in keys]
        )

    def lock_table(self) -> list[tuple[str, str]]:
        """Every row lock on jobs in this database as (index, mode). Requires "row lock table".

        Those on owners are left out: a heartbeat may be written at this moment.
        """
        return self._eye.row_locks()

    def plan(self, connection: sa.Connection, statement: Any, values: dict[str, Any]) -> Plan:
        """How the database would run a statement."""
        return _explain(self.family, connection, statement, values)

    def rows_read(self, connection: sa.Connection, statement: Any, values: dict[str, Any]) -> int:
        """How many rows, or entries of an index, the database reads when it runs a statement, which it does."""
        return _rows_read(self.family, connection, statement, values)

    def primary_key_of(self, table: str) -> str:
        """The name of a table's primary key, as plans have it."""
        return f"{table}_pkey" if self.family == "postgres" else "PRIMARY"

    def sessions(self) -> list[str]:
        """The sessions in this database, each described."""
        return self._eye.sessions()

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float = 10.0) -> None:
        """Return when `condition()` is true; fail when it is not within `seconds`."""
        wait_for(condition, what, seconds)

    def end_sessions(self) -> None:
        """End every session of this database, as an administrator would; its own engine makes new ones."""
        self.engine.dispose()
        self._eye.end_sessions()
        self.wait_for(lambda: not self.sessions(), "all sessions end")

    def interrupt(self, session: int) -> None:
        """End the statement that a session runs, not the session, as an administrator would."""
        self._eye.interrupt(session)

    def someone_waits_for_a_lock(self) -> bool:
        """Whether a session of this database is blocked by another one's lock."""
        return self._eye.someone_waits()

    # --- the end ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close and remove everything; then fail if anything had been left behind."""
        try:
            leaks = list(self._leaks())
        finally:
            for engine in self._engines:
                engine.dispose()
            self._eye.end_sessions()
            if self._eye.empty():
                self._spare.append(self._eye.database)
        if leaks:
            pytest.fail(f"left behind on {self.name}: {'; '.join(leaks)}", pytrace=False)

    def _leaks(self) -> Iterator[str]:
        for queue in self._queues:
            queue.close()
        for engine in self._engines:
            if isinstance(engine.pool, sa.QueuePool) and (out := engine.pool.checkedout()):
                yield f"{out} connections not given back to their pool"
        if not self.may_leave_owners and (owners := self._owners()):
            yield f"owners {owners}"
        for engine in self._engines:
            engine.dispose()
        with contextlib.suppress(TimeoutError):
            poll(lambda: not self.sessions(), 10)
        yield from (f"session {session}" for session in self.sessions())

    def _owners(self) -> list[int]:
        with self.engine.connect() as connection:
            if not sa.inspect(connection).has_table(OWNER_TABLE):
                return []
            return list(connection.scalars(sa.text(f"SELECT id FROM {OWNER_TABLE}")))


def poll(condition: Callable[[], Any], seconds: float) -> None:
    """Return when `condition()` is true; raise TimeoutError when it is not within `seconds`."""
    deadline = time.monotonic() + seconds
    began = time.thread_time()
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(max(0.01, DEAR * (time.thread_time() - began)))
        began = time.thread_time()


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 10.0) -> None:
    """Return when `condition()` is true; fail the test when it is not within `seconds`."""
    try:
        poll(condition, seconds)
    except TimeoutError:
        pytest.fail(f"not within {seconds:g} s: {what}")


# --- what only a family can tell -----------------------------------------------------------------------------


_OF_CLIENTS = "datname = :database AND backend_type = 'client backend'"
"""The server's own vacuum comes and goes as it likes."""


class _Eye:
    """Looks at a server from outside the test's database."""

    def __init__(self, family: Family, outside: sa.Engine, database: str) -> None:
        self._family = family
        self._outside = outside
        self.database = database

    def create(self) -> None:
        self._run(f"CREATE DATABASE {self.database}")

    def drop(self) -> None:
        self._run(f"DROP DATABASE {self.database}")

    def end_sessions(self) -> None:
        """End those that a test left behind: they would hold the tables."""
        if self._family == "postgres":
            self._ask(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_OF_CLIENTS}")
            return
        for session in self._ask("SELECT id FROM information_schema.processlist WHERE db = :database"):
            with contextlib.suppress(sa.exc.DBAPIError):
                self._run(f"KILL {session.id}")

    def empty(self) -> bool:
        """Remove everything in the database; whether the database itself is there still, for the next test.

        Postgres takes a tenth of a second and more to make one, the others a thousandth.
        """
        if self._family != "postgres":
            self.drop()
            return False
        ours = "SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'"
        with self._inside() as connection:
            for schema in connection.scalars(sa.text(ours)).all():
                connection.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE").close()
            connection.exec_driver_sql("CREATE SCHEMA public").close()
        return True

    def sessions(self) -> list[str]:
        if self._family == "postgres":
            asked = f"SELECT pid, state, query FROM pg_stat_activity WHERE {_OF_CLIENTS}"
        else:
            asked = "SELECT id, command, info FROM information_schema.processlist WHERE db = :database"
        return [" ".join(str(value) for value in row) for row in self._ask(asked)]

    def interrupt(self, session: int) -> None:
        cancel = "SELECT pg_cancel_backend({})" if self._family == "postgres" else "KILL QUERY {}"
        self._run(cancel.format(session))

    def someone_waits(self) -> bool:
        if self._family == "postgres":
            asked = f"SELECT 1 FROM pg_stat_activity WHERE {_OF_CLIENTS} AND wait_event_type = 'Lock'"
        else:
            time.sleep(0.11)  # InnoDB shows the same again to whoever asks twice within a tenth of a second
            asked = (
                "SELECT 1 FROM information_schema.innodb_trx JOIN information_schema.processlist "
                "ON id = trx_mysql_thread_id WHERE db = :database AND trx_state = 'LOCK WAIT'"
            )
        return bool(self._ask(asked))

    def advisory_locks(self, names: list[Any]) -> int:
        if self._family == "postgres":
            # objsubid is 2 for those of two numbers, as an owner's is.
            asked = (
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 "
                "AND database = (SELECT oid FROM pg_database WHERE datname = :database)"
            )
        elif self._family == "mysql":
            asked = (
                "SELECT count(*) FROM performance_schema.metadata_locks WHERE object_type = 'USER LEVEL LOCK' "
                "AND lock_status = 'GRANTED' AND object_name LIKE concat('cj.', :database, '.%')"
            )
        else:
            listed = "json_table(:names, '$[*]' columns (name varchar(64) path '$')) AS listed"
            asked = f"SELECT count(*) FROM {listed} WHERE is_used_lock(name) IS NOT NULL AND :database <> ''"
        with self._outside.connect() as connection:
            return int(connection.scalar(sa.text(asked), {"database": self.database, "names": json.dumps(names)}) or 0)

    def row_locks(self) -> list[tuple[str, str]]:
        asked = (
            "SELECT index_name, lock_mode FROM performance_schema.data_locks "
            "WHERE object_schema = :database AND lock_type = 'RECORD' AND object_name <> 'claimjobs_owners'"
        )
        return [(row[0], row[1]) for row in self._ask(asked)]

    def _ask(self, statement: str) -> list[Any]:
        with self._outside.connect() as connection:
            return list(connection.execute(sa.text(statement), {"database": self.database}))

    def _run(self, statement: str) -> None:
        with self._outside.connect() as connection:
            connection.exec_driver_sql(statement).close()

    @contextlib.contextmanager
    def _inside(self) -> Iterator[sa.Connection]:
        url = self._outside.url.set(database=self.database)
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            yield connection


@dataclass(frozen=True)
class Plan:
    """How a statement is run: the indexes it goes through, and whether it sorts rows of the table."""

    indexes: tuple[str, ...]
    sorts: bool
    scans: bool
    """Whether it reads a whole table."""
    text: str


def _explain(family: Family, connection: sa.Connection, statement: Any, values: dict[str, Any]) -> Plan:
    sql, parameters = _as_sent(connection, statement, values)
    if family == "postgres":
        explained = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sql}", parameters)
        nodes = list(_nodes(explained.scalar_one()))
        kinds = [node.get("Node Type", "") for node in nodes]
        return Plan(
            indexes=tuple(node["Index Name"] for node in nodes if "Index Name" in node),
            sorts="Sort" in kinds,
            scans="Seq Scan" in kinds,
            text=json.dumps(nodes, indent=1, default=str),
        )
    explain = "EXPLAIN FORMAT=TRADITIONAL" if family == "mysql" else "EXPLAIN"
    rows = connection.exec_driver_sql(f"{explain} {sql}", parameters).mappings().all()
    real = [row for row in rows if row["table"] not in (None, "candidate")]
    return Plan(
        indexes=tuple(row["key"] or "" for row in real),
        sorts=any("filesort" in (row["Extra"] or "") for row in rows),
        scans=any(row["type"] in ("ALL", "index") and not row["key"] for row in real),
        text="\n".join(str(dict(row)) for row in rows),
    )


def _rows_read(family: Family, connection: sa.Connection, statement: Any, values: dict[str, Any]) -> int:
    if family == "postgres":
        sql, parameters = _as_sent(connection, statement, values)
        explained = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", parameters)
        scans = [node for node in _nodes(explained.scalar_one()) if "Scan" in node.get("Node Type", "")]
        leaves = [node for node in scans if node["Node Type"] != "Subquery Scan"]  # it hands on what its child reads
        rows = [node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in leaves]
        return round(sum((count * node["Actual Loops"] for count, node in zip(rows, leaves, strict=True)), 0.0))
    before = _handler_reads(connection)
    connection.execute(statement, values).all()
    return _handler_reads(connection) - before


def _handler_reads(connection: sa.Connection) -> int:
    counts = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'")
    return sum(int(count) for name, count in counts if name != "Handler_read_rnd_next")  # of a temporary table, too


def _as_sent(connection: sa.Connection, statement: Any, values: dict[str, Any]) -> tuple[str, Any]:
    """The text and the parameters with which the driver would be called; it is not."""

    class Sent(Exception):
        pass

    def catch(_c: Any, _cursor: Any, sql: str, parameters: Any, *_: Any) -> None:
        raise Sent(sql, parameters)

    sa.event.listen(connection, "before_cursor_execute", catch)
    try:
        connection.execute(statement, values)
    except Sent as sent:
        return sent.args[0], sent.args[1]
    finally:
        sa.event.remove(connection, "before_cursor_execute", catch)
    raise AssertionError("nothing was sent")


def _nodes(plan: Any) -> Iterator[dict[str, Any]]:
    if isinstance(plan, list):
        for part in plan:
            yield from _nodes(part)
    elif isinstance(plan, dict):
        yield plan
        for part in plan.values():
            if isinstance(part, list | dict):
                yield from _nodes(part)
