"""A primary and its replica: two servers of our own, one of which follows the other until it is promoted."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import sqlalchemy as sa

from servers.backends import NAME, Backend
from servers.binaries import postgres
from servers.binaries.recipe import Recipe
from servers.errors import Unavailable
from servers.process import Command, Process
from servers.programs import RECIPES, START_SECONDS, ProgramServer
from servers.server import POLL_SECONDS, Server

STANDBY = "standby"
"""The name by which a Postgres knows its standby."""

APART = 3.0
"""Seconds between the starts of two servers that know theirs in whole seconds only."""

MYSQL_OPTIONS = [
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--plugin-load-add=semisync_source.so",
    "--plugin-load-add=semisync_replica.so",
]


class Pair:
    """A primary, and a replica that is read-only until it is promoted."""

    def __init__(self, primary: Server, replica: Server) -> None:
        self.primary = primary
        self.replica = replica

    @property
    def members(self) -> Server:
        """Both as one server, which is not ours to kill: each of the two is."""
        return as_one([self.primary, self.replica], **self.options)

    @property
    def url(self) -> str:
        """A URL with both hosts, the primary first."""
        return url_of([self.primary, self.replica], **self.options)

    options: ClassVar[dict[str, str]] = {}
    """What the URL needs beside the hosts."""

    def follow(self) -> None:
        """Let the replica follow the primary."""
        raise NotImplementedError

    def be_synchronous(self) -> None:
        """From now on a commit returns when the replica has it, too."""
        raise NotImplementedError

    def cut_off(self) -> None:
        """From now on nothing reaches the replica."""
        raise NotImplementedError

    def reconnect(self) -> None:
        """The replica, which was cut off, follows again."""
        raise NotImplementedError

    def delay(self, seconds: int) -> None:
        """From now on the replica is so far behind."""
        raise NotImplementedError

    def promote(self) -> None:
        """Let the replica take writes."""
        raise NotImplementedError

    def demote(self) -> None:
        """Let the primary refuse writes. It answers on."""
        raise NotImplementedError

    def wait_until_it_follows(self) -> None:
        """Return when the replica has everything that was committed."""
        run(self.primary, "CREATE TABLE IF NOT EXISTS mark (n INT)")
        number = secrets.randbelow(2**31)
        run(self.primary, f"INSERT INTO mark VALUES ({number})")  # noqa: S608 - a number
        wait_until(lambda: self._has(number), "the replica follows")

    def _has(self, number: int) -> bool:
        try:
            return number in ask(self.replica, "SELECT n FROM mark")
        except sa.exc.DBAPIError:  # there is no such table yet
            return False


class PostgresPair(Pair):
    options: ClassVar[dict[str, str]] = {"target_session_attrs": "read-write"}

    def follow(self) -> None:
        """A standby follows by its configuration."""

    def be_synchronous(self) -> None:
        run(self.primary, f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'", "SELECT pg_reload_conf()")
        states = "SELECT sync_state FROM pg_stat_replication"
        wait_until(lambda: ask(self.primary, states) == ["sync"], "the standby is synchronous")

    def cut_off(self) -> None:
        run(self.replica, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        wait_until(lambda: not ask(self.primary, "SELECT pid FROM pg_stat_replication"), "the standby is cut off")

    def reconnect(self) -> None:
        conninfo = _conninfo(self.primary)
        run(self.replica, f"ALTER SYSTEM SET primary_conninfo = '{conninfo}'", "SELECT pg_reload_conf()")

    def delay(self, seconds: int) -> None:
        run(self.replica, f"ALTER SYSTEM SET recovery_min_apply_delay = '{seconds}s'", "SELECT pg_reload_conf()")

    def promote(self) -> None:
        run(self.replica, "SELECT pg_promote()")

    def demote(self) -> None:
        run(self.primary, "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        wait_until(lambda: ask(self.primary, "SHOW default_transaction_read_only") == ["on"], "it refuses writes")


class MySQLPair(Pair):
    def follow(self) -> None:
        source = sa.make_url(self.primary.url)
        run(
            self.replica,
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{source.host}', SOURCE_PORT = {source.port}, "
            f"SOURCE_USER = '{NAME}', SOURCE_PASSWORD = '{source.password}', SOURCE_AUTO_POSITION = 1, "
            "SOURCE_CONNECT_RETRY = 1, GET_SOURCE_PUBLIC_KEY = 1",
            "START REPLICA",
            "SET GLOBAL super_read_only = 1",
        )

    def be_synchronous(self) -> None:
        try:
            run(self.replica, "SET GLOBAL rpl_semi_sync_replica_enabled = 1", "STOP REPLICA", "START REPLICA")
        except sa.exc.DBAPIError as error:
            raise Unavailable(f"this MySQL has no semi-synchronous replication ({self.replica.how})") from error
        timeout = "SET GLOBAL rpl_semi_sync_source_timeout = 3600000"
        run(self.primary, timeout, "SET GLOBAL rpl_semi_sync_source_enabled = 1")
        clients = "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_source_clients'"
        wait_until(lambda: _column(self.primary, clients, "Value") == "1", "the replica confirms commits")

    def cut_off(self) -> None:
        run(self.replica, "STOP REPLICA IO_THREAD")

    def reconnect(self) -> None:
        run(self.replica, "START REPLICA IO_THREAD")

    def delay(self, seconds: int) -> None:
        change = f"CHANGE REPLICATION SOURCE TO SOURCE_DELAY = {seconds}"
        run(self.replica, "STOP REPLICA SQL_THREAD", change, "START REPLICA SQL_THREAD")

    def promote(self) -> None:
        """What the replica has received is in its tables first."""
        run(self.replica, "STOP REPLICA IO_THREAD")
        received = "SELECT received_transaction_set FROM performance_schema.replication_connection_status"
        [everything] = ask(self.replica, received)
        done = f"SELECT gtid_subset('{everything}', @@global.gtid_executed)"
        wait_until(lambda: ask(self.replica, done) == [1], "the replica has everything in its tables")
        run(self.replica, "STOP REPLICA", "SET GLOBAL super_read_only = 0", "SET GLOBAL read_only = 0")

    def demote(self) -> None:
        run(self.primary, "SET GLOBAL super_read_only = 1")


class MariaDBPair(Pair):
    def follow(self) -> None:
        source = sa.make_url(self.primary.url)
        run(
            self.replica,
            f"CHANGE MASTER TO MASTER_HOST = '{source.host}', MASTER_PORT = {source.port}, MASTER_USER = '{NAME}', "
            f"MASTER_PASSWORD = '{source.password}', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1",
            "START SLAVE",
            "SET GLOBAL read_only = 1",
        )

    def be_synchronous(self) -> None:
        run(self.replica, "SET GLOBAL rpl_semi_sync_slave_enabled = 1", "STOP SLAVE", "START SLAVE")
        run(
            self.primary,
            "SET GLOBAL rpl_semi_sync_master_timeout = 3600000",
            "SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC",
            "SET GLOBAL rpl_semi_sync_master_enabled = 1",
        )
        clients = "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_clients'"
        wait_until(lambda: _column(self.primary, clients, "Value") == "1", "the replica confirms commits")

    def cut_off(self) -> None:
        run(self.replica, "STOP SLAVE IO_THREAD")

    def reconnect(self) -> None:
        run(self.replica, "START SLAVE IO_THREAD")

    def delay(self, seconds: int) -> None:
        run(self.replica, "STOP SLAVE", f"CHANGE MASTER TO MASTER_DELAY = {seconds}", "START SLAVE")

    def promote(self) -> None:
        """What the replica has received is in its tables first."""
        run(self.replica, "STOP SLAVE IO_THREAD")
        received = _column(self.replica, "SHOW SLAVE STATUS", "Gtid_IO_Pos")
        done = f"SELECT master_gtid_wait('{received}', 0)"
        wait_until(lambda: ask(self.replica, done) == [0], "the replica has everything in its tables")
        run(self.replica, "STOP SLAVE", "SET GLOBAL read_only = 0")

    def demote(self) -> None:
        run(self.primary, "SET GLOBAL read_only = 1")


class _Standby(ProgramServer):
    """A Postgres that begins with a copy of a running one, and follows it."""

    def __init__(self, primary: Server, process: Process) -> None:
        self._conninfo = _conninfo(primary)
        password = sa.make_url(primary.url).password
        options = ("-c", f"cluster_name={STANDBY}")
        super().__init__("postgres", postgres, process, password=str(password), options=options)

    def initialise(self) -> list[Command]:
        copy = [str(postgres.fetch() / "bin/pg_basebackup"), "-D", str(self._place.data), "-d", self._conninfo]
        return [Command([*copy, "--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast"])]


def _conninfo(primary: Server) -> str:
    url = sa.make_url(primary.url)
    return f"host={url.host} port={url.port} user={url.username} password={url.password}"


@contextmanager
def replicated(backend: Backend) -> Iterator[Pair]:
    """A primary and a replica that has all of it. Raises Unavailable."""
    recipe = RECIPES[backend]
    with _process(backend, recipe) as first, _process(backend, recipe) as second:
        pair = _postgres_pair(first, second) if backend == "postgres" else _others(backend, first, second)
        pair.follow()
        pair.wait_until_it_follows()
        yield pair


@contextmanager
def _process(backend: Backend, recipe: Recipe) -> Iterator[Process]:
    recipe.fetch()
    process = Process(backend, recipe.STOP)
    try:
        yield process
    finally:
        process.close()


def _postgres_pair(first: Process, second: Process) -> Pair:
    primary = ProgramServer("postgres", postgres, first).begin()
    return PostgresPair(primary, _Standby(primary, second).begin())


def _others(backend: Backend, first: Process, second: Process) -> Pair:
    password = secrets.token_hex(8)
    primary = _member(backend, first, 1, password).begin()
    earliest = time.monotonic() + APART
    wait_until(lambda: time.monotonic() > earliest, "the second may be started")
    replica = _member(backend, second, 2, password).begin()
    return (MySQLPair if backend == "mysql" else MariaDBPair)(primary, replica)


def _member(backend: Backend, process: Process, number: int, password: str) -> ProgramServer:
    options = [f"--server-id={number}", "--log-bin=binlog", *(MYSQL_OPTIONS if backend == "mysql" else [])]
    return ProgramServer(backend, RECIPES[backend], process, password=password, options=options)


def as_one(members: Sequence[Server], **options: str) -> Server:
    """All as one server with all hosts in its URL. It is not ours to kill: each of them is."""
    first = members[0]
    together = Server(first.backend, url_of(members, **options), first.how)
    together.version = first.version
    return together


def url_of(members: Sequence[Server], **options: str) -> str:
    """A URL with all hosts. SQLAlchemy writes each colon as %3A, which it also reads."""
    urls = [sa.make_url(member.network_url) for member in members]
    hosts = tuple(f"{url.host}:{url.port}" for url in urls)
    together = urls[0]._replace(host=None, port=None).update_query_dict({"host": hosts, **options})
    return together.render_as_string(hide_password=False)


def run(server: Server, *statements: str) -> None:
    """Run statements on this server, each by itself."""
    engine = sa.create_engine(server.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement).close()


def ask(server: Server, query: str) -> list[Any]:
    """The first column of what a query returns on this server."""
    engine = sa.create_engine(server.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        return list(connection.scalars(sa.text(query)))


def _column(server: Server, query: str, name: str) -> Any:
    """This column of the first row."""
    engine = sa.create_engine(server.url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return connection.execute(sa.text(query)).mappings().one()[name]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Raises Unavailable if that takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise Unavailable(f"it took too long until {what}")
        time.sleep(POLL_SECONDS)
