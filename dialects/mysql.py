"""MySQL 8.0.13 and later (InnoDB): what differs from the portable base, and why."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from math import inf
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles

from claimjobs.dialects.base import Dialect, Key, Lock, Write
from claimjobs.dialects.lexis import STANDARD_QUOTES, Lexis
from claimjobs.dialects.types import Instant, database_now


class MySQL(Dialect):
    title: ClassVar[str] = "MySQL"
    # SKIP LOCKED came with 8.0.1, expression defaults with 8.0.13.
    drivers: ClassVar[tuple[str, ...]] = ("pymysql", "mysqldb")
    oldest: ClassVar[tuple[int, ...]] = (8, 0, 13)

    finds_and_locks_at_once: ClassVar[bool] = True
    # PyMySQL's executemany joins them as well, but puts each row into its place by itself: half as much again of the
    # client's time. Its bound is this one: less than any max_allowed_packet that is met.
    joins_rows: ClassVar[int] = 1_000_000
    needs_database: ClassVar[bool] = True
    # InnoDB names a row by its primary key: that is what an index on anything else leads to.
    indexes_end_in_the_key: ClassVar[bool] = True
    primary: ClassVar[str | None] = "PRIMARY"
    # There is no notification. But a user may end the statements of its other sessions, also one that sleeps.
    wakes: ClassVar[bool] = True
    interrupts: ClassVar[bool] = True
    reads_that_lock: ClassVar[frozenset[str]] = frozenset({"SERIALIZABLE"})

    # A backslash escapes a quote, unless sql_mode says NO_BACKSLASH_ESCAPES: a text must be whole either way. `#`
    # begins a comment, `--` only before a space, comments do not nest, and one that begins with `!` is executed.
    lexis: ClassVar[Lexis] = Lexis(
        quoted=r"""'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+"|`(?:[^`]|``)*+`""",
        opening="['\"`]",
        comment=r"(?:\#|--(?=[\x00-\x20\x7f]))[^\n]*+(?P<end>\n)?",
        nests_comments=False,
        runs_comments=True,
        quoted_without_escapes=rf"{STANDARD_QUOTES}|`(?:[^`]|``)*+`",
    )

    transient: ClassVar[dict[Any, str]] = {
        1213: "deadlock",
        1205: "lock timeout",
        3572: "lock timeout",  # NOWAIT met a lock
        3101: "serialization",  # a group refused the commit at certification
        1180: "serialization",  # the same, reported by the commit
        1317: "interrupted",  # KILL QUERY; see `error_code`
        1021: "disk full",
        1114: "disk full",
    }
    broken: ClassVar[dict[Any, str]] = {
        **dict.fromkeys((2006, 2013, 2014, 2055, 4031, 1158, 1159, 1160, 1161, 1927), "connection lost"),
        **dict.fromkeys((2002, 2003, 1053), "server unavailable"),
        **dict.fromkeys((1040, 1203, 1226), "too many connections"),
        **dict.fromkeys((1290, 1792, 1836), "read only"),
    }
    missing_table: ClassVar[frozenset[Any]] = frozenset({1146})
    # fmt: off
    bad_predicate: ClassVar[frozenset[Any]] = frozenset(
        {
            1052, 1054, 1064, 1093, 1109, 1111, 1139, 1140, 1146, 1210, 1221, 1235, 1241, 1242, 1247, 1248, 1267, 1270,
            1271, 1273, 1292, 1305, 1318, 1365, 1411, 1525, 1582, 1583, 1584, 1630, 1690, 4078,
            # JSON; regular expressions; windows, of MySQL and of MariaDB.
            *range(3140, 3159), *range(3685, 3702), *range(3579, 3600), *range(4015, 4025),
        }
    )
    # fmt: on
    # 1109 is a table that information_schema has not; 1300 (MariaDB) and 3854 are characters that no name can have.
    bad_name: ClassVar[frozenset[Any]] = frozenset({1049, 1050, 1059, 1061, 1102, 1103, 1109, 1300, 3854})
    bad_row: ClassVar[frozenset[Any]] = frozenset(
        # 1216, 1217, 1451 and 1452 are foreign keys, 1365 a division by zero, 1369 a view's check, 1644 SIGNAL,
        # 1690 a number out of range.
        {1048, 1062, 1216, 1217, 1264, 1265, 1292, 1364, 1365, 1366, 1369, 1406, 1411, 1451, 1452, 1644, 1690, 3140}
        | {3819, 4025}
    )
    # INSERT IGNORE and ON DUPLICATE KEY UPDATE ask for no key: they would take any other error of the row, or another
    # unique key, for the duplicate.
    duplicate: ClassVar[frozenset[Any]] = frozenset({1062})

    def error_code(self, error: BaseException) -> Any:
        original = getattr(error, "orig", None) or error
        if not (original.args and isinstance(original.args[0], int)):
            return None
        # What KILL QUERY does to a DELETE of joined rows has no number of its own.
        interrupted = original.args[0] == _UNKNOWN and any(_MULTI in str(part) for part in original.args[1:])
        return _INTERRUPTED if interrupted else original.args[0]

    def timed_out(self, error: BaseException) -> bool:
        return bool(self.error_code(error) in {3024, 1969})  # max_execution_time; MariaDB's max_statement_time

    def refusing_index(self, error: BaseException) -> str | None:
        # 'index', or since MySQL 8.0.19 'table.index'.
        found = re.search(r" for key '(?:[^']*\.)?([^']+)'$", str(getattr(error, "orig", error).args[-1]))
        return found[1] if found else None

    def missing_name(self, error: BaseException) -> str | None:
        found = re.search(r"'(?:[^']*\.)?([^'.]+)'", str(getattr(error, "orig", error).args[-1]))
        return found[1] if found else None

    def connect_arguments(self, driver: str, seconds: int) -> dict[str, Any]:
        # PyMySQL's connect_timeout ends with the TCP connection: a greeting that never comes is a read.
        more = {"read_timeout": seconds} if driver == "pymysql" else {}
        return {**super().connect_arguments(driver, seconds), **more}

    def on_connect(self, driver_connection: Any) -> None:
        if hasattr(driver_connection, "_read_timeout"):
            driver_connection._read_timeout = None  # that was for the greeting; a statement may take its time

    def refused(self, error: BaseException) -> bool:
        return bool(self.error_code(error) in {1044, 1045, 1130, 1142, 1698})

    def unnameable(self, name: str) -> str | None:
        # In place of a character beyond U+FFFF the server takes a question mark.
        if strange := [character for character in name if character > "\uffff"]:
            return f"no name can have the character {strange[0]!r}"
        return "it has more than 64 characters" if len(name) > 64 else None

    def no_such_database(self, error: BaseException) -> bool:
        return bool(self.error_code(error) in {1049, 1059, 1102})  # the last two: no database can have this name

    def later(self, now: sa.ColumnElement[Any], seconds: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        # In microseconds: INTERVAL n SECOND would round a fraction given as a parameter.
        return sa.func.timestampadd(sa.text("MICROSECOND"), seconds * 1_000_000, now)

    def only_candidates(
        self,
        jobs: sa.Select[Any],
        key: Sequence[sa.Column[Any]],
        order: Sequence[sa.ColumnElement[Any]],
        index: str | None,
    ) -> sa.Select[Any]:
        """Walk the candidates as a table, in their order, and look each up by its primary key.

        InnoDB locks a row when it reads it, before a sort: `IN (800 keys) ORDER BY ... LIMIT 100 FOR UPDATE`
        locks 800 rows. Joined in candidate order the LIMIT ends the reading, and 100 rows are locked
        (counted in performance_schema.data_locks by tests/conformance/test_locks.py).

        The primary key is forced: a table that seems small is read whole instead, in its own order.
        """
        del order  # the candidates already stand in it
        return _joined(jobs, key, "claimjobs_candidates", index)

    def encoded(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        # PyMySQL makes a datetime in Python, by a regular expression: as much work as five other values.
        return sa.cast(column, sa.CHAR) if isinstance(column.type, sa.DateTime | Instant) else column

    def decoder(self, column: sa.Column[Any]) -> Callable[[Any], Any] | None:
        return _instant if isinstance(column.type, sa.DateTime | Instant) else None

    def joins_columns(self, column: sa.Column[Any]) -> bool:
        # PyMySQL reads every value in Python: what there is to do for one does not depend on how short it is.
        return isinstance(column.type, sa.Integer | sa.DateTime | Instant)

    def joined(self, columns: Sequence[sa.ColumnElement[Any]]) -> sa.ColumnElement[str]:
        nothing: sa.ColumnElement[str] = sa.literal_column("''")
        comma: sa.ColumnElement[str] = sa.literal_column("','")
        values = [sa.func.ifnull(one, nothing) if getattr(one, "nullable", True) else one for one in columns]
        return sa.func.concat_ws(comma, *values, type_=sa.Text)

    def joined_decoder(self, column: sa.Column[Any]) -> Callable[[str], Any]:
        return int if isinstance(column.type, sa.Integer) else _instant

    def lock_in_order(self, wanted: sa.Select[Any], join: sa.Join, limit: Any, index: str | None) -> sa.Select[Any]:
        """As `only_candidates`, with candidates that never leave the server.

        FOR UPDATE OF locks what it names; a subquery is a plain read. With its window function it is a table that is
        stored, and read as it was stored.
        """
        found = _straight(wanted, join, index)
        return found.limit(limit).with_for_update(skip_locked=True, of=join.right)

    # --- sessions ------------------------------------------------------------------------------------------

    def settings(self, lock_timeout: float) -> Sequence[str]:
        # A TIMESTAMP of the user's is shown, and compared, by the session's time zone; our clock is UTC.
        # `sql_safe_updates` is for statements that people type: MariaDB refuses a DELETE of joined rows for it.
        # `sql_select_limit` would cut off what has no LIMIT of its own.
        return (
            f"SET SESSION innodb_lock_wait_timeout = {max(1, round(lock_timeout))}, time_zone = '+00:00', "
            f"sql_safe_updates = 0, sql_select_limit = {_NO_LIMIT}",
        )

    refuses_joined_deletes: ClassVar[bool] = False
    """A session with `sql_safe_updates` refuses a DELETE of joined rows: it wants an index for each table of a join."""

    def unfit_setting(self, connection: sa.Connection) -> tuple[str, str] | None:
        # SQLAlchemy has no name for a variable of the session; one that is switched on is 1.
        limit, safe = connection.execute(sa.text("SELECT @@sql_select_limit, @@sql_safe_updates")).one()
        if int(limit) < _NO_LIMIT:
            return f"sql_select_limit = {limit}", f"SET SESSION sql_select_limit = {_NO_LIMIT}"
        if safe and self.refuses_joined_deletes:
            return "sql_safe_updates = 1", "SET SESSION sql_safe_updates = 0"
        return None

    def sessions_are_ours(self, connection: sa.Connection) -> bool:
        greeted_by = connection.connection.dbapi_connection.thread_id()  # type: ignore[union-attr]
        return bool(connection.scalar(sa.select(sa.func.connection_id())) == greeted_by) and not _several_primaries(
            connection
        )

    def try_session_lock(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        return sa.func.get_lock(_lock_name(lock), 0, type_=sa.Boolean)

    def try_named_lock(self, name: str) -> sa.ColumnElement[bool]:
        return self.try_session_lock(sa.literal(f"{zlib.crc32(name.encode())}.named"))

    def lock_holder(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        return sa.func.is_used_lock(_lock_name(lock), type_=sa.Integer)

    # --- advisory locks on keys ------------------------------------------------------------------------------

    def home(self, table: sa.Table) -> sa.Executable:
        return sa.select(sa.func.database() if table.schema is None else sa.literal(table.schema))

    def lock_of(self, table: str, key: str) -> str:
        # Names are the server's, at most 64 characters long, and blind to case: so are the tables' on some servers.
        table = table.lower()
        digest = blake2b(f"{table}\0{key}".encode(), digest_size=16).hexdigest()
        return f"cj.{table[:28]}.{digest}"

    def each_lock(self) -> sa.ColumnElement[Any]:
        names = sa.bindparam("locks", type_=sa.Text)
        shape = sa.text("'$[*]' columns (name varchar(64) path '$')")
        return sa.func.json_table(names, shape).table_valued(sa.column("name", sa.String(64)), name="wanted").c.name

    def locks(self, locks: Sequence[Lock]) -> str:
        return json.dumps(list(locks))

    def try_lock(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        return sa.func.get_lock(lock, 0, type_=sa.Boolean)

    def unlock(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        return sa.func.release_lock(lock, type_=sa.Boolean)

    # --- ending sessions -------------------------------------------------------------------------------------

    def end_session(self, session: int) -> sa.Executable:
        return sa.text("KILL :session").bindparams(session=session)

    def server_since(self, connection: sa.Connection) -> datetime:
        uptime = connection.execute(sa.text("SHOW GLOBAL STATUS LIKE 'Uptime'")).one()[1]
        now: datetime = connection.execute(sa.select(database_now())).scalar_one()
        return now - timedelta(seconds=int(uptime))

    def descriptor(self, driver_connection: Any) -> int:
        return int(getattr(driver_connection, "_sock", driver_connection).fileno())

    # --- waiting to be called --------------------------------------------------------------------------------

    def listener(self, connection: sa.Connection) -> _Sleep:
        return _Sleep(self, connection)

    def call(self, owner: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
        return self.lock_holder(owner)

    def interrupt(self, session: int) -> sa.Executable:
        # What the session does after its nap is its own: without the lock there is nobody to kill, which is error 1094.
        return sa.text(f"KILL QUERY is_used_lock({_SLEEP_LOCK})").bindparams(session=session)

    @contextlib.contextmanager
    def committing(self, connection: sa.Connection) -> Iterator[None]:
        # In one statement with the lock that says that this session may be interrupted.
        connection.exec_driver_sql(f"SET autocommit = 1, @claimjobs_sleep = get_lock({_OWN_SLEEP_LOCK}, 0)").close()
        try:
            yield
        finally:
            if not connection.invalidated:  # else it is over, and its own error is the one to raise
                self._commit_no_more(connection)

    def _commit_no_more(self, connection: sa.Connection) -> None:
        """A session that went on to commit each statement would let go of a claim's locks before its end."""
        try:
            for _ in range(3):  # a call may hit this statement, too
                with self._interruptible():
                    back = f"SET autocommit = 0, @claimjobs_sleep = release_lock({_OWN_SLEEP_LOCK})"
                    connection.exec_driver_sql(back).close()
                    return
        except sa.exc.SQLAlchemyError:
            connection.invalidate()
            raise
        connection.invalidate()

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            if self.transient_kind(error) != "interrupted":
                raise

    # --- which tables are accepted ---------------------------------------------------------------------------

    # A driver gives a TIME as a duration, which SQLAlchemy makes a time of the day, and a SET in any order.
    exact_types: ClassVar[tuple[type[sa.types.TypeEngine[Any]], ...]] = (
        *(*Dialect.exact_types, mysql.YEAR, mysql.BIT),
    )
    inexact_types: ClassVar[tuple[type[sa.types.TypeEngine[Any]], ...]] = (
        *(*Dialect.inexact_types, sa.Time, mysql.SET),
    )

    def unclaimable(self, connection: sa.Connection, table: sa.Table) -> tuple[str, str] | None:
        found = connection.execute(_KIND, {"schema": table.schema, "name": table.name}).first()
        if found is None:
            return "is a temporary table, which every session has for itself", "make a table that is not temporary"
        if odd := [column.name for column in table.columns if "`" in column.name]:
            return f"has a column {odd[0]!r}, a backtick in whose name SQLAlchemy reads as two", "rename the column"
        kind, engine, locks = found
        if kind == "VIEW":
            return "is a view, whose rows have no key to lock them by", "name the table that it reads"
        if locks:
            return None
        alter = f"ALTER TABLE {_PREPARER.format_table(table)} ENGINE=InnoDB"
        return f"is stored by {engine}, an engine without transactions and row locks", alter

    def partition_columns(self, connection: sa.Connection, table: sa.Table) -> Collection[str]:
        parts = connection.execute(_PARTITIONS, {"schema": table.schema, "name": table.name}).all()
        expressions = [expression for row in parts for expression in row if expression]
        return [column.name for column in table.columns if any(_mentions(one, column.name) for one in expressions)]

    # --- writing -------------------------------------------------------------------------------------------

    def through(self, rows: sa.Select[Any], column: sa.Column[Any], index: str | None) -> sa.Select[Any]:
        # MariaDB sorts by a column that is NULL in all of them, and what is sorted is locked.
        return rows.with_hint(column.table, _force(index))

    def upsert(
        self,
        table: sa.Table,
        columns: Sequence[sa.Column[Any]],
        rows: sa.Select[Any],
        *,
        values: Mapping[sa.Column[Any], Any],
        guard: sa.ColumnElement[bool],
    ) -> sa.Executable:
        """ON DUPLICATE KEY UPDATE has no WHERE: what the guard forbids is written as it was.

        INSERT IGNORE would swallow other errors too. At READ COMMITTED the rows that are read are not locked.
        """
        key = next(iter(table.primary_key))
        written: list[tuple[str, Any]] = [
            (column.name, sa.func.if_(guard, value, column)) for column, value in values.items()
        ]
        insert = mysql.insert(table).from_select([column.name for column in columns], rows)
        return insert.on_duplicate_key_update(written or [(key.name, key)])

    def key_column(self, name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
        # The first TIMESTAMP of a table is set anew with every update, unless it has a default.
        default = sa.text("'2000-01-01'") if isinstance(type_, sa.TIMESTAMP) else None
        return sa.Column(name, type_, primary_key=True, autoincrement=False, server_default=default)

    def collations(self, connection: sa.Connection, table: sa.Table) -> Mapping[str, str]:
        # The columns of a JSON_TABLE have the connection's collation, if none is named: error 1267.
        columns = sa.text(
            "SELECT column_name AS name, collation_name AS collation FROM information_schema.columns "
            "WHERE table_schema = coalesce(:schema, database()) AND table_name = :name AND collation_name IS NOT NULL"
        )
        found = connection.execute(columns, {"schema": table.schema, "name": table.name})
        return {row[0]: row[1] for row in found}

    def by_key(self, statement: Write, index: str | None) -> Write:
        # Through another index InnoDB locks other consumers' rows on the way.
        if isinstance(statement, sa.Select):
            return statement.with_hint(statement.get_final_froms()[0], _force(index))
        return statement.with_hint(_force(index), dialect_name="*")

    def delete(self, table: sa.Table) -> sa.Delete:
        return _WalkedDelete(table)

    def reach(self, statement: Write, key: Sequence[sa.Column[Any]], index: str | None) -> Write:
        """Walk the keys as a table, and look each up through its index.

        For `WHERE id IN (...)` the planner may choose another index, and lock the rows that it meets there; or,
        whatever index is forced, read all of a small table, and wait for rows that others have locked (both seen;
        tests/conformance/test_locks.py). Of an UPDATE only the first is to be feared: at READ COMMITTED it does not
        wait for a row before it has seen that it wants it; but in a join it locks what its subqueries read.
        """
        if isinstance(statement, sa.Select):
            return _joined(statement, key, "claimjobs_keys", index)
        if isinstance(statement, sa.Update):
            return self.by_key(statement.where(self._among_some(key, "claimjobs_keys")), index)
        given, matches = _given(key, "claimjobs_keys")
        return statement.where(matches).with_hint(_force(index), selectable=given, dialect_name="*")

    def _among_some(self, key: Sequence[sa.Column[Any]], parameter: str) -> sa.ColumnElement[bool]:
        """As `among`, for one value at least. PyMySQL writes a list of them into the statement in no time; SQLAlchemy
        makes a parameter of each, which costs a client a tenth of all that it does for a job.
        """
        if self._driver != "pymysql":
            return self.among(key, parameter)
        values: sa.BindParameter[Any] = sa.bindparam(parameter, type_=_Listed(tuple(column.type for column in key)))
        return (key[0] if len(key) == 1 else sa.tuple_(*key)).bool_op("IN")(values)


_KIND = sa.text(
    "SELECT table_type, tables.engine, coalesce(transactions, 'NO') = 'YES' "
    # MariaDB's says YES, and locks nothing on the server that has the rows.
    "AND tables.engine <> 'FEDERATED' FROM information_schema.tables "
    "LEFT JOIN information_schema.engines ON engines.engine = tables.engine "
    "WHERE table_schema = coalesce(:schema, database()) AND table_name = :name AND table_type <> 'TEMPORARY'"
)
_PARTITIONS = sa.text(
    "SELECT DISTINCT partition_expression, subpartition_expression FROM information_schema.partitions "
    "WHERE table_schema = coalesce(:schema, database()) AND table_name = :name"
)


def _mentions(expression: str, column: str) -> bool:
    """Whether an expression, as the server writes it, names a column, in backticks or, if they are not needed, not."""
    return (
        _PREPARER.quote_identifier(column) in expression
        or re.search(rf"\b{re.escape(column)}\b", expression) is not None
    )


class _Sleep:
    """A statement that sleeps. Whoever calls, or wants it to end, interrupts it.

    It returns 1 then, or fails with 1317. An interrupt that comes between two statements is lost.
    """

    def __init__(self, dialect: MySQL, connection: sa.Connection) -> None:
        self._dialect = dialect
        self._connection = connection
        driver: Any = connection.connection.driver_connection
        self._session = int(driver.thread_id())
        # A driver that was told to wait for no answer so long would take the sleep for a lost connection.
        self._longest = (getattr(driver, "_read_timeout", None) or inf) / 2
        self._engine = connection.engine
        self._guard = threading.Lock()
        self._closed = False
        self._ending: threading.Thread | None = None

    def wait(self, seconds: float) -> bool:
        with self._dialect._interruptible():
            return bool(self._connection.scalar(sa.select(sa.func.sleep(min(seconds, self._longest)))))
        return True

    def end(self) -> None:
        # In a thread: where the pool has no connection to lend, sleep ends sooner than the waiting for one.
        with self._guard:
            if not self._closed and (self._ending is None or not self._ending.is_alive()):
                self._ending = threading.Thread(target=self._interrupt, name="claimjobs interrupts", daemon=True)
                self._ending.start()

    def _interrupt(self) -> None:
        with contextlib.suppress(sa.exc.SQLAlchemyError), self._engine.connect() as other:
            if not self._closed:
                other.execute(self._dialect.interrupt(self._session))

    def close(self) -> None:
        with self._guard:
            self._closed = True
        if self._ending is not None:
            self._ending.join(1.0)  # so that it does not interrupt what comes next


_SLEEP_LOCK = "concat('claimjobs.nap.', :session)"
"""The lock of a session that may be interrupted: its number is the server's, and so are the names of locks."""
_OWN_SLEEP_LOCK = "concat('claimjobs.nap.', connection_id())"
_INTERRUPTED = 1317
_NO_LIMIT = 2**64 - 1
"""`sql_select_limit` where there is none."""
_UNKNOWN, _MULTI = 1105, "An error occurred in multi-table"


class _WalkedDelete(sa.Delete):
    """DELETE from a table that is joined to keys: the keys first, whatever the planner thinks."""

    inherit_cache = True


@compiles(_WalkedDelete, "mysql", "mariadb")
def _delete(delete: _WalkedDelete, compiler: Any, **kw: Any) -> str:
    def tables(_delete: Any, table: Any, extra: Sequence[Any], from_hints: dict[Any, str], **kw: Any) -> str:
        kw["asfrom"] = True
        join = " STRAIGHT_JOIN ".join(part._compiler_dispatch(compiler, **kw) for part in (*extra, table))
        return f"USING {join} {' '.join(from_hints.values())}"

    compiler.delete_extra_from_clause = tables
    return str(compiler.visit_delete(delete, **kw))


_HERE: sa.Dialect = mysql.dialect()
_PREPARER = _HERE.identifier_preparer
_BINARY = (sa.LargeBinary, sa.BINARY, sa.VARBINARY)


def _lock_name(lock: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    """Named locks are the server's: the database is part of the name, which is at most 64 characters long."""
    return sa.func.concat("claimjobs.", sa.func.crc32(sa.func.database()), ".", lock)


def _several_primaries(connection: sa.Connection) -> bool:
    """A group or a Galera cluster where each member knows only its own locks."""
    variables = sa.text(
        "SHOW GLOBAL VARIABLES WHERE (variable_name = 'wsrep_on' AND value = 'ON') "
        "OR (variable_name = 'group_replication_single_primary_mode' AND value = 'OFF')"
    )
    return connection.execute(variables).first() is not None


def _instant(text: str) -> datetime | str:
    """As the drivers: a date that is none stays text."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def _force(index: str | None) -> str:
    return f"FORCE INDEX ({'PRIMARY' if index is None else _PREPARER.quote(index)})"


def _joined(rows: sa.Select[Any], key: Sequence[sa.Column[Any]], parameter: str, index: str | None) -> sa.Select[Any]:
    given, matches = _given(key, parameter)
    return _straight(rows, given.join(key[0].table, matches), index)


def _straight(rows: sa.Select[Any], join: sa.Join, index: str | None) -> sa.Select[Any]:
    """The left of a join first, in its order; for each of them the row of the right, through this index."""
    return rows.select_from(join).prefix_with("STRAIGHT_JOIN").with_hint(join.right, _force(index))


def _given(key: Sequence[sa.Column[Any]], parameter: str) -> tuple[sa.TableValuedAlias, sa.ColumnElement[bool]]:
    """The keys of a parameter as a table, in their order; and how a row is found by one of them."""
    # Names that no table has: a user's predicate stands in the same WHERE, and may name columns plainly.
    names = [f"claimjobs_k{i}" for i in range(len(key))]
    paths = [f"$[{i}]" for i in range(len(key))] if len(key) > 1 else ["$"]
    columns = ", ".join(f"{names[i]} {_type(column)} path '{paths[i]}'" for i, column in enumerate(key))
    keys = sa.bindparam(parameter, type_=_Keys(tuple(column.type for column in key)))
    given = sa.func.json_table(keys, sa.text(f"'$[*]' columns ({columns})")).table_valued(*names, name="candidate")
    return given, sa.and_(*(column == _read(column, given.c[name]) for name, column in zip(names, key, strict=True)))


class _Listed(sa.TypeDecorator[Sequence[Key]]):
    """Keys as a driver is given them, in one parameter whatever their number."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, types: tuple[sa.types.TypeEngine[Any], ...]) -> None:
        super().__init__()
        self.types = types

    def process_bind_param(self, value: Sequence[Key] | None, _dialect: sa.Dialect) -> Any:
        write = [type_.dialect_impl(_HERE).bind_processor(_HERE) for type_ in self.types]
        keys: Sequence[Any] = value or ()
        if len(write) == 1:
            [to] = write
            return [to(key) for key in keys] if to else list(keys)
        return [tuple(to(part) if to else part for to, part in zip(write, key, strict=True)) for key in keys]


class _Keys(_Listed):
    """The same as JSON. A key of several columns is a list."""

    cache_ok = True

    def process_bind_param(self, value: Sequence[Key] | None, dialect: sa.Dialect) -> str:
        return json.dumps(super().process_bind_param(value, dialect), default=_as_json)


def _type(column: sa.Column[Any]) -> str:
    """The type of a key within JSON_TABLE, which has no UUID; JSON holds no bytes, so those come as hex."""
    stored = _stored(column.type)
    if isinstance(stored, _BINARY):
        return "text"
    if isinstance(stored, sa.Uuid):
        return "char(32)"
    collation = getattr(stored, "collation", None)
    name = column.type.compile(dialect=_HERE).partition(" CHARACTER SET ")[0].partition(" COLLATE ")[0]
    return f"{name} COLLATE {_PREPARER.quote(collation)}" if collation else name


def _read(column: sa.Column[Any], given: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.func.unhex(given) if isinstance(_stored(column.type), _BINARY) else given


def _stored(type_: sa.types.TypeEngine[Any]) -> sa.types.TypeEngine[Any]:
    """What a type is on this database: it may be another one here, or a decoration of one."""
    here = type_.dialect_impl(_HERE)
    return _stored(here.impl_instance) if isinstance(here, sa.TypeDecorator) else here


def _as_json(part: Any) -> str:
    return part.hex() if isinstance(part, bytes) else str(part)
