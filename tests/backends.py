"""The databases that tests run on: a server of each family for the run, a fresh database for each test.

This is the tests' own eye on a server (sessions, locks, plans), so it may know the families by name; tests ask
`backend.requires(...)` for a capability instead.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Queue, make, tables_for
from claimjobs.dialects import DIALECTS, Dialect
from claimjobs.dialects.types import Instant
from claimjobs.table.definitions import OWNER_TABLE
from tests.databases import Database
from tests.flavours import CAPABILITIES, MAY_BE_MISSING, Family
from tests.plans import Plan, explain, rows_read

if TYPE_CHECKING:
    from servers import Server

DEADLINE: Final = 120.0
"""Seconds that a test waits for an event. It costs nothing where the event comes, and a machine may be busy."""
SCHEMA_TABLES: Final = "information_schema.tables WHERE table_schema = database()"
DEAR = 3
"""So many times longer than a look takes is the pause after it: what is waited for needs the processor, too."""

_COLUMNS = (
    "SELECT column_name, column_type, column_key FROM information_schema.columns "
    "WHERE table_schema = database() AND table_name = :name ORDER BY ordinal_position"
)
COLUMNS = {
    "mysql": _COLUMNS,
    "mariadb": _COLUMNS,
    "postgres": "SELECT attname, format_type(atttypid, atttypmod), indkey::text FROM pg_attribute "
    "LEFT JOIN pg_index ON indrelid = attrelid AND indisprimary WHERE attrelid = to_regclass(:quoted) "
    "AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
}
"""SQL that tells whether a table has changed since it was reflected: its columns, their types and its key."""


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
            server = self._open.enter_context(servers.start(family, durable=False))
            self._started[family] = self._open.enter_context(contextlib.closing(Host(family, server)))
        except servers.Unavailable as error:
            self._missing[family] = error

    def lend(self, family: Family) -> Backend:
        """An empty database on the server of a family, to be closed by the caller."""
        return Backend(family, self.get(family))

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
        self._spare: list[Place] = []
        self.outside = sa.create_engine(server.url, isolation_level="AUTOCOMMIT", max_overflow=-1, pool_pre_ping=True)
        """In no test's database. A server may be started again under it."""
        self._family = family
        self._made: dict[Any, list[str]] = {}
        self._reflected: dict[tuple[Any, ...], sa.Table] = {}

    def make(self, engine: sa.Engine, table: str | sa.Table | type[Any]) -> None:
        """Make the tables of a queue in an empty database. What that sends is known after the first time: to find
        it out each time was a quarter of what a small test costs."""
        if table in self._made:
            with engine.begin() as connection:
                for statement in self._made[table]:
                    connection.exec_driver_sql(statement).close()
            return
        looked_at = sa.create_engine(engine.url)  # who listened to an engine once has it asked about events for ever
        tables = tables_for(table)
        with _written(looked_at) as sent:
            make(looked_at, tables)
        self._made[table] = self._in_few_words(looked_at, tables, sent)
        looked_at.dispose()

    def _in_few_words(self, engine: sa.Engine, tables: Sequence[sa.Table], sent: list[str]) -> list[str]:
        """Statements that do the same as those that were sent, for less: Postgres takes all of them at once; on MySQL
        an index or a comment of its own costs as much as a table."""
        if self._family == "postgres":
            return ["; ".join(sent)]
        if any(table.schema for table in tables):
            return sent
        quote = engine.dialect.identifier_preparer.quote
        with engine.connect() as connection:
            shown = [connection.exec_driver_sql(f"SHOW CREATE TABLE {quote(table.name)}").one() for table in tables]
        return [str(definition).replace("%", "%%") for _, definition in shown]

    def reflected(self, connection: sa.Connection, name: str) -> sa.Table:
        """A table as it is now. One with the same columns is reflected once: that is long for a small test."""
        quoted = connection.dialect.identifier_preparer.quote(name)
        found = connection.execute(sa.text(COLUMNS[self._family]), {"name": name, "quoted": quoted})
        shape = (name, *map(tuple, found))
        if len(shape) == 1 or shape not in self._reflected:
            self._reflected[shape] = sa.Table(name, sa.MetaData(), autoload_with=connection)
        return self._reflected[shape]

    def lend(self) -> Place:
        """An empty database, and an engine for it."""
        return self._spare.pop() if self._spare else self._new()

    def take_back(self, place: Place) -> None:
        """Empty a database for the next test. Its engine is used again unless a test listens to it: what SQLAlchemy has
        learnt of the server and has compiled is half of what a small test costs."""
        place.database.empty()
        self._spare.append(place if place.is_unchanged() else Place(place.database, self._engine(place.database)))

    def _new(self) -> Place:
        database = Database(self._family, self.outside, f"cj_{secrets.token_hex(6)}")
        database.create()
        return Place(database, self._engine(database))

    def _engine(self, database: Database) -> sa.Engine:
        return sa.create_engine(self.outside.url.set(database=database.name), max_overflow=50)

    def close(self) -> None:
        for place in self._spare:
            place.database.drop()
        self.outside.dispose()


class Place:
    """A database, and an engine for it that many tests use, one after the other."""

    def __init__(self, database: Database, engine: sa.Engine) -> None:
        self.database = database
        self.engine = engine
        self._listeners = _listeners(engine)

    def is_unchanged(self) -> bool:
        """Whether the engine is as it was made: no test listens to it, nor has any, which ends its shortest way."""
        return not vars(self.engine).get("_has_events") and _listeners(self.engine) == self._listeners


@contextlib.contextmanager
def _written(engine: sa.Engine) -> Iterator[list[str]]:
    """The statements of this block that change the database."""
    sent: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip().upper().startswith(("CREATE", "ALTER", "COMMENT")):
            sent.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


def _listeners(engine: sa.Engine) -> int:
    """How many functions are told what happens on an engine, its pool and its dialect."""
    told: list[Any] = [engine.dispatch, engine.pool.dispatch, engine.dialect.dispatch]
    return sum(len(list(getattr(each, name))) for each in told for name in each._event_names)


class Clock:
    """An instant to inject: `queue(now=clock.sql)`, then `clock.now += timedelta(seconds=10)`."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        told: sa.BindParameter[datetime] = sa.bindparam("the_clock", callable_=lambda: self.now, type_=Instant())
        self.sql = sa.cast(told, Instant())  # typed, as the database's own clock is


CLAIMS: Final = os.environ.get("CLAIMJOBS_TEST_CLAIMS")
"""How the claims of all Queues of the tests are recorded, where a test does not say it (see `Queue(claims=...)`)."""


class KeepingQueue(Queue):
    """A Queue that keeps its last batches. One that a test does not keep would be released at some moment, while the
    test means that its jobs are held: `assert len(queue.claim(2)) == 2`."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._kept: deque[Batch] = deque(maxlen=50)

    def claim(self, *given: Any, **options: Any) -> Batch:
        batch = super().claim(*given, **options)
        self._kept.append(batch)
        return batch


class Backend:
    """An empty database of its own for one test. See tests/conftest.py for how to use it."""

    def __init__(self, family: Family, host: Host) -> None:
        self.family: Family = family
        self.name: str = family
        self.server = host.server
        self.may_leave_owners = False
        """For a test that kills a process: whether rows may be left in the table of owners."""
        self.forgets_batches = False
        """For a test of batches that nobody keeps: whether the queues that are made next keep none."""
        self._host = host
        self._place = host.lend()
        self._database = self._place.database
        self.engine = self._place.engine
        self.url: str = self.engine.url.render_as_string(hide_password=False)
        self._engines = [self.engine]
        self._queues: list[Queue] = []
        self._made: Any = None  # which tables were made first in the empty database, and what was there then

    @property
    def url_without_driver(self) -> str:
        """The URL as the README writes it."""
        return self.engine.url.set(drivername=self.engine.url.get_backend_name()).render_as_string(hide_password=False)

    @property
    def dialect(self) -> Dialect:
        """What claimjobs takes this database for."""
        name = "postgresql" if self.family == "postgres" else self.family
        return DIALECTS[name]()

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
        there = self._tables()
        if not there or self._made != (table, there):
            self._make(table, there)
        return self.bare_queue(table, bind=bind, **options)

    def bare_queue(
        self, table: str | sa.Table | type[Any] = "jobs", *, bind: sa.Engine | None = None, **options: Any
    ) -> Queue:
        """A Queue on tables that are there. Closed at teardown."""
        if CLAIMS and not {"hold", "side_car", "claims"} & options.keys():
            options["claims"] = CLAIMS
        kind = Queue if self.forgets_batches else KeepingQueue
        queue = kind(bind or self.engine, table, **options)
        self._queues.append(queue)
        return queue

    def make(self, table: str | sa.Table | type[Any] = "jobs") -> None:
        """Make the tables of a queue where they are missing."""
        self._make(table, self._tables())

    def _make(self, table: str | sa.Table | type[Any], there: list[str]) -> None:
        if there:
            make(self.engine, tables_for(table))
        else:
            self._host.make(self.engine, table)
            self._made = table, self._tables()

    def _tables(self) -> list[str]:
        listed = "pg_tables WHERE schemaname = current_schema()" if self.family == "postgres" else SCHEMA_TABLES
        name = "tablename" if self.family == "postgres" else "table_name"
        with self.engine.connect() as connection:
            return sorted(connection.scalars(sa.text(f"SELECT {name} FROM {listed}")))

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
                table = self._host.reflected(connection, table)
            return list(connection.execute(sa.select(table).order_by(*table.primary_key)).mappings())

    def run(self, statement: str, **values: Any) -> int:
        """Run one statement of SQL and commit; how many rows it reached."""
        with self.engine.begin() as connection:
            return int(connection.execute(sa.text(statement), values).rowcount)

    def insert(self, table: str | sa.Table, rows: Iterable[Mapping[str, Any]]) -> None:
        """Insert rows as they are, and commit: also such as no queue enqueues."""
        with self.engine.begin() as connection:
            if isinstance(table, str):
                table = self._host.reflected(connection, table)
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
        return self._database.advisory_locks(
            [self.dialect.sessions.key_lock(f"{self._database.name}.{table}", str(k)) for k in keys]
        )

    def lock_table(self) -> list[tuple[str, str]]:
        """Every row lock on jobs in this database as (index, mode). Requires "row lock table".

        Those on owners are left out: a heartbeat may be written at this moment.
        """
        return self._database.row_locks()

    def plan(self, connection: sa.Connection, statement: Any, values: dict[str, Any]) -> Plan:
        """How the database would run a statement."""
        return explain(self.family, connection, statement, values)

    def rows_read(self, connection: sa.Connection, statement: Any, values: dict[str, Any]) -> int:
        """How many rows, or entries of an index, the database reads when it runs a statement, which it does."""
        return rows_read(self.family, connection, statement, values)

    def primary_key_of(self, table: str) -> str:
        """The name of a table's primary key, as plans have it."""
        return f"{table}_pkey" if self.family == "postgres" else "PRIMARY"

    def sessions(self) -> list[str]:
        """The sessions in this database, each described."""
        return self._database.sessions()

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> None:
        """Return when `condition()` is true; fail when it is not within `seconds`."""
        wait_for(condition, what, seconds)

    def end_sessions(self) -> None:
        """End every session of this database, as an administrator would; its own engine makes new ones."""
        self.engine.dispose()
        ended = self._session_numbers()
        self._database.end_sessions()
        # A program that was waiting for the end of its session may have a new one already.
        self.wait_for(lambda: not ended & self._session_numbers(), "all sessions end")

    def _session_numbers(self) -> set[str]:
        return {session.partition(" ")[0] for session in self.sessions()}

    def interrupt(self, session: int) -> None:
        """End the statement that a session runs, not the session, as an administrator would."""
        self._database.interrupt(session)

    def someone_waits_for_a_lock(self) -> bool:
        """Whether a session of this database is blocked by another one's lock."""
        return self._database.someone_waits()

    # --- the end ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close and remove everything; then fail if anything had been left behind."""
        try:
            leaks = list(self._leaks())
        finally:
            for engine in self._engines:
                engine.dispose()
            if self.sessions():
                self._database.end_sessions()
            self._host.take_back(self._place)
        if leaks:
            pytest.fail(f"left behind on {self.name}: {'; '.join(leaks)}", pytrace=False)

    def _leaks(self) -> Iterator[str]:
        for queue in self._queues:
            queue.close()
        for engine in self._engines:
            pool = engine.pool
            if not isinstance(pool, sa.QueuePool):
                continue
            with contextlib.suppress(TimeoutError):  # a thread that wakes others after a commit may be about to end
                poll(lambda pool=pool: not pool.checkedout(), 30.0)  # type: ignore[misc]
            if out := pool.checkedout():
                yield f"{out} connections not given back to their pool"
        if not self.may_leave_owners and (owners := self._owners()):
            yield f"owners {owners}"
        for engine in self._engines:
            engine.dispose()
        try:
            poll(lambda: not self.sessions(), DEADLINE)
        except TimeoutError:
            yield from (f"session {session}" for session in self.sessions())

    def _owners(self) -> list[int]:
        with self.engine.connect() as connection, contextlib.suppress(sa.exc.ProgrammingError):  # there is no table
            return list(connection.scalars(sa.text(f"SELECT id FROM {OWNER_TABLE}")))
        return []


def poll(condition: Callable[[], Any], seconds: float) -> None:
    """Return when `condition()` is true; raise TimeoutError when it is not within `seconds`."""
    deadline = time.monotonic() + seconds
    began = time.thread_time()
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(max(0.01, DEAR * (time.thread_time() - began)))
        began = time.thread_time()


def wait_for(condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> None:
    """Return when `condition()` is true; fail the test when it is not within `seconds`."""
    try:
        poll(condition, seconds)
    except TimeoutError:
        pytest.fail(f"not within {seconds:g} s: {what}")
