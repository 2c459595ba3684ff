"""Postgres 13 and later: what differs from the portable base, and why."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from claimjobs.dialects.base import Dialect
from claimjobs.dialects.lexis import LETTER, STANDARD_QUOTES, Lexis
from claimjobs.dialects.types import Instant

_OWNERS: Final = 0x636A6F
_NAMES: Final = 0x636A6E
"""The first halves of our advisory locks' numbers, "cjo" and "cjn": other programs of the database use others."""

_CHANNEL: Final = "claimjobs_"
"""What the channel on which an owner is called begins with; then its number."""

_PG_LOCKS: Final = ("locktype", "database", "classid", "objid", "pid", "granted")

_ZERO: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""From when Postgres counts microseconds."""

_INFINITE: Final = {2**63 - 1: "infinity", -(2**63): "-infinity"}
"""So many microseconds after `_ZERO`."""
_HERE: Final = postgresql.dialect()  # type: ignore[no-untyped-call]
# Of a style of parameters that leaves a percent sign as it is: names are given as values.
_PREPARER: Final = postgresql.dialect(paramstyle="named").identifier_preparer  # type: ignore[no-untyped-call]
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


class Postgres(Dialect):
    title: ClassVar[str] = "Postgres"
    # SKIP LOCKED came with 9.5, MATERIALIZED with 12; 13 is the oldest that is tested.
    drivers: ClassVar[tuple[str, ...]] = ("psycopg",)
    oldest: ClassVar[tuple[int, ...]] = (13,)

    claims_in_one_statement: ClassVar[bool] = True
    # The sort runs below the locking, and the limit ends both.
    locks_in_order: ClassVar[bool] = True
    returns_what_it_writes: ClassVar[bool] = True
    skips_duplicates: ClassVar[bool] = True
    copies: ClassVar[bool] = True
    wakes: ClassVar[bool] = True
    switches_autocommit_freely: ClassVar[bool] = True

    # Texts with escapes, E'\'', and in dollars, $tag$ ... $tag$.
    lexis: ClassVar[Lexis] = Lexis(
        quoted=rf"""[eE]'(?:[^'\\]|\\.|'')*+'|{STANDARD_QUOTES}|\$(?P<tag>[{LETTER}][{LETTER}0-9]*+)?\$.*?\$(?(tag)(?P=tag))\$""",
        opening=rf"[eE]?'|\"|\$(?:[{LETTER}][{LETTER}0-9]*+)?\$",
    )

    transient: ClassVar[dict[Any, str]] = {
        "40P01": "deadlock",
        "55P03": "lock timeout",
        "40001": "serialization",
        "57014": "interrupted",
        "53100": "disk full",
        "53200": "out of memory",
        # Behind a pooler: prepared in another session, or by somebody else in this one.
        "26000": "prepared statement",
        "42P05": "prepared statement",
    }
    broken: ClassVar[dict[Any, str]] = {
        **dict.fromkeys(("57P01", "57P02", "57P05", "25P03", "08000", "08003", "08006", "08007"), "connection lost"),
        **dict.fromkeys(("57P03", "08001", "08004"), "server unavailable"),
        "53300": "too many connections",
        "25006": "read only",
    }
    missing_table: ClassVar[frozenset[Any]] = frozenset({"42P01"})
    # Class 42 is "syntax error or access rule violation"; 22 and 0A: an operand or a feature that cannot be.
    # fmt: off
    bad_predicate: ClassVar[frozenset[Any]] = frozenset(
        {
            "42601", "42703", "42702", "42883", "42804", "42P01", "42803", "42846", "42704", "42725", "42809",
            "42830", "42P02", "42P08", "42P09", "42P10", "42P18", "42P20", "42P21", "42P22", "42622", "428C9",
            "3F000", "21000", "22P02", "22007", "22008", "22003", "22012", "22011", "22019", "2201B", "2201E",
            "2201F", "2201W", "22021", "22023", "22024", "22025", "2202E", "2202H", "22030", "22032", "22033",
            "22034", "22035", "22036", "22037", "22038", "22039", "2203A", "2203B", "2203C", "2203D", "2203E",
            "2203F", "2203G", "0A000", "54001",
        }
    )
    # fmt: on
    # 22P02 is a default that means nothing to its type: an ENUM of that name was there, with other values.
    bad_name: ClassVar[frozenset[Any]] = frozenset({"42P07", "42602", "42710", "42622", "3F000", "22P02"})
    # Class 22 is "data exception", 23 "integrity constraint violation".
    bad_row: ClassVar[frozenset[Any]] = frozenset(
        {
            "22001",
            "22003",
            "22007",
            "22008",
            "22021",
            "22P02",
            "22P05",
            "23502",
            "23503",
            "23505",
            "23514",
            "23P01",
            "42804",
        }
    )
    duplicate: ClassVar[frozenset[Any]] = frozenset({"23505"})

    def error_code(self, error: BaseException) -> Any:
        original = getattr(error, "orig", None) or error
        return getattr(original, "sqlstate", None)

    def timed_out(self, error: BaseException) -> bool:
        # The code is that of any interruption, by whomever.
        return bool(self.error_code(error) == "57014" and _says(error, "statement timeout", "transaction timeout"))

    def refuses_row(self, error: BaseException) -> bool:
        # By its class: 22 data exception, 23 integrity constraint, 44 view with check option, P0 raised by a trigger
        # (P0001), 27 refused by one, 38 and 39 by a function of another language.
        return str(self.error_code(error))[:2] in {"22", "23", "27", "38", "39", "44", "P0"}

    def refusing_index(self, error: BaseException) -> str | None:
        detail = getattr(getattr(error, "orig", None), "diag", None)
        return getattr(detail, "constraint_name", None)

    def missing_name(self, error: BaseException) -> str | None:
        found = re.search(r'"(?:[^"]*\.)?([^".]+)"', str(getattr(error, "orig", error)))
        return found[1] if found else None

    def refused(self, error: BaseException) -> bool:
        # libpq gives no SQLSTATE for a connection that was never made, only the server's words.
        words = (
            "password authentication failed",
            "no pg_hba.conf entry",
            "no password supplied",
            "permission denied",
        )
        return _says(error, *words) or (_says(error, 'role "') and _says(error, "does not exist"))

    def connect_kind(self, error: BaseException) -> str:
        full = _says(error, "too many clients", "too many connections", "remaining connection slots")
        return "too many connections" if full else "server unavailable"

    def forbids_transactions(self, error: BaseException) -> bool:
        return _says(error, "transaction blocks not allowed in statement pooling mode")  # PgBouncer's words

    def no_such_database(self, error: BaseException) -> bool:
        return _says(error, 'database "') and _says(error, '" does not exist') and not _says(error, 'role "')

    def later(self, now: sa.ColumnElement[Any], seconds: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        return now + sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds, type_=sa.Interval)

    def among(self, key: Sequence[sa.Column[Any]], parameter: str) -> sa.ColumnElement[bool]:
        """The values as one array: one parameter, and one statement to be prepared, whatever their number.

        An IN list of 100 costs more in the client than the statement costs in the server.
        """
        if len(key) > 1:
            return super().among(key, parameter)
        return key[0] == sa.any_(_array(parameter, key[0].type))

    def as_filter(self, predicate: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        # Of a table that it has not analyzed the planner expects a row or two of any owner: it goes through the index
        # of owners, and compares each row with all keys. No index is about a truth.
        return predicate.is_(sa.true())

    def after_values(
        self, columns: Sequence[sa.Column[Any]], values: Sequence[Any], *, falling: bool = False
    ) -> sa.ColumnElement[bool]:
        # Written out, an OR is a filter: every page would read the index from its beginning.
        given = sa.tuple_(*map(_given, values, columns))
        return sa.tuple_(*columns) < given if falling else sa.tuple_(*columns) > given

    def insert_unless_there(self, table: sa.Table, columns: Sequence[sa.Column[Any]]) -> sa.Insert:
        return postgresql.insert(table).on_conflict_do_nothing(index_elements=columns)

    def encoded(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        # psycopg looks up a time zone for each: as much work as the other columns of a job together. As text the server
        # does (decision 0024). What it sends where a client asks for binary is a number.
        is_instant = isinstance(column.type, Instant)
        return sa.func.timestamptz_send(column, type_=sa.LargeBinary) if is_instant else column

    def decoder(self, column: sa.Column[Any]) -> Callable[[Any], Any] | None:
        return _instant if isinstance(column.type, Instant) else None

    # Of a CTE with a LIMIT given as a parameter the planner expects a tenth of the table, and reads all of that for a
    # hash join (seen with 20,000 waiting jobs, a batch of 100: 4 ms instead of 0.4). Of an array it expects ten.

    def numbered(self, rows: sa.CTE, place: str) -> sa.FromClause:
        names = [sa.column(column.name, column.type) for column in rows.c]
        return (
            sa.func.unnest(*map(self.array, rows.c))
            .table_valued(*names, with_ordinality=place, name="few")
            .render_derived()
        )

    def is_one_of(self, column: sa.Column[Any], rows: sa.CTE) -> sa.ColumnElement[bool]:
        [values] = rows.c
        return column == sa.any_(self.array(values))

    def upsert(
        self,
        table: sa.Table,
        columns: Sequence[sa.Column[Any]],
        rows: sa.Select[Any],
        *,
        values: Mapping[sa.Column[Any], Any],
        guard: sa.ColumnElement[bool],
    ) -> sa.Executable:
        insert = postgresql.insert(table).from_select([column.name for column in columns], rows)
        if not values:
            return insert.on_conflict_do_nothing(index_elements=table.primary_key)
        written = {column.name: value for column, value in values.items()}
        return insert.on_conflict_do_update(index_elements=table.primary_key, set_=written, where=guard)

    def copyable(self, connection: sa.Connection, table: sa.Table) -> Mapping[str, Callable[[Iterable[Any]], bool]]:
        # Other drivers have other ways, or none.
        if connection.dialect.driver != "psycopg" or connection.dialect.is_async:
            return {}
        from claimjobs.dialects import postgres_copy  # noqa: PLC0415 - psycopg is slow to import

        return postgres_copy.copyable(connection, table, _PREPARER.format_table(table))

    def copy(
        self, connection: sa.Connection, table: sa.Table, keys: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        from claimjobs.dialects import postgres_copy  # noqa: PLC0415

        postgres_copy.copy(connection, table, keys, rows)

    def readable(self, key: Sequence[sa.Column[Any]]) -> Sequence[sa.ColumnElement[bool]]:
        # 'infinity', years before Christ, and years of five digits.
        return [
            column.between(*_ends(column.type)) for column in key if isinstance(column.type, (sa.Date, sa.DateTime))
        ]

    def fetched(self, cursor: Any) -> Sequence[Any]:
        # psycopg makes the values of a row when it is fetched, and raises for a date that Python has not.
        try:
            return super().fetched(cursor)
        except Exception:
            if not hasattr(cursor, "pgresult"):  # another driver, which keeps no values as the server sent them
                raise
            from claimjobs.dialects import postgres_values  # noqa: PLC0415 - psycopg is slow to import

            return postgres_values.rows_of(cursor)

    # --- which tables are accepted ---------------------------------------------------------------------------

    exact_types: ClassVar[tuple[type[sa.types.TypeEngine[Any]], ...]] = (
        *Dialect.exact_types,
        *(postgresql.INET, postgresql.CIDR, postgresql.MACADDR, postgresql.MACADDR8),
        *(postgresql.OID, postgresql.BIT, postgresql.ranges.AbstractRange),
    )

    def finds_again(self, type_: sa.types.TypeEngine[Any]) -> bool:
        return super().finds_again(type_.data_type if isinstance(type_, postgresql.DOMAIN) else type_)

    def unclaimable(self, connection: sa.Connection, table: sa.Table) -> tuple[str, str] | None:
        name = _PREPARER.format_table(table)
        found = connection.execute(_KIND, {"name": name}).one()
        if found.relpersistence == "t":
            return "is a temporary table, which every session has for itself", "make a table that is not temporary"
        if found.kind not in _KINDS:
            return None if found.rule is None else _refused_for_rule(found.rule, name)
        return f"is {_KINDS[found.kind]}, whose rows cannot be locked", "name the table that it reads"

    def child(self, connection: sa.Connection, table: sa.Table) -> str | None:
        found: str | None = connection.scalar(_CHILD, {"name": _PREPARER.format_table(table)})
        return found

    def partition_columns(self, connection: sa.Connection, table: sa.Table) -> Collection[str]:
        return connection.scalars(_PARTITIONED_BY, {"name": _PREPARER.format_table(table)}).all()

    # --- sessions ------------------------------------------------------------------------------------------

    def settings(self, lock_timeout: float) -> Sequence[str]:
        # A statement that is a transaction by itself has the session's isolation, whatever the server's default is.
        isolation = f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {self.isolation}"
        # psycopg reads instants of this style only; the order of day and month stays the user's.
        return (f"SET lock_timeout = {round(lock_timeout * 1000)}", isolation, "SET DateStyle = ISO")

    def prepare_nothing_if_pooled(self, driver_connection: Any) -> None:
        # psycopg prepares a statement when it has been sent five times. Other drivers have no such attribute.
        threshold = getattr(driver_connection, "prepare_threshold", None)
        if threshold is None:
            return
        greeted_by = driver_connection.info.backend_pid
        driver_connection.prepare_threshold = None
        with contextlib.suppress(driver_connection.Error):  # one that is broken is found out by its next statement
            found = driver_connection.execute(f"SELECT 1 WHERE pg_backend_pid() = {greeted_by:d}").fetchone()
            driver_connection.rollback()
            driver_connection.prepare_threshold = threshold if found else None

    def sessions_are_ours(self, connection: sa.Connection) -> bool:
        greeted_by = connection.connection.dbapi_connection.info.backend_pid  # type: ignore[union-attr]
        return bool(connection.scalar(sa.select(sa.func.pg_backend_pid())) == greeted_by)

    def try_session_lock(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        return sa.func.pg_try_advisory_lock(_OWNERS, lock, type_=sa.Boolean)

    def try_named_lock(self, name: str) -> sa.ColumnElement[bool]:
        return sa.func.pg_try_advisory_lock(_NAMES, zlib.crc32(name.encode()) >> 1, type_=sa.Boolean)

    def lock_holder(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        held = sa.table("pg_locks", *(sa.column(name) for name in _PG_LOCKS))
        here: sa.Select[Any] = sa.select(sa.column("oid")).select_from(
            sa.text("pg_database WHERE datname = current_database()")
        )
        return (
            sa.select(held.c.pid)
            .where(held.c.locktype == "advisory", held.c.granted, held.c.database == here.scalar_subquery())
            .where(sa.cast(held.c.classid, sa.BigInteger) == _OWNERS, sa.cast(held.c.objid, sa.BigInteger) == lock)
            .limit(1)
            .scalar_subquery()
        )

    # --- advisory locks on keys --------------------------------------------------------------------------------

    def home(self, table: sa.Table) -> sa.Executable:
        return sa.text(
            "SELECT nspname FROM pg_namespace JOIN pg_class ON relnamespace = pg_namespace.oid "
            "WHERE pg_class.oid = to_regclass(:name)"
        ).bindparams(name=_PREPARER.format_table(table))

    def lock_of(self, table: str, key: str) -> int:
        """pg_locks shows the table's half as classid, and the key's as objid: a whole number as it is."""
        place = int(key) if _NUMBER.fullmatch(key) else int.from_bytes(blake2b(key.encode(), digest_size=4).digest())
        number = zlib.crc32(table.encode()) << 32 | place & 0xFFFFFFFF
        return number - (1 << 64) if number >> 63 else number

    def each_lock(self) -> sa.ColumnElement[Any]:
        locks: sa.BindParameter[Any] = sa.bindparam("locks", type_=sa.ARRAY(sa.BigInteger))
        wanted = sa.func.unnest(locks).table_valued(sa.column("lock", sa.BigInteger))
        return wanted.render_derived(name="wanted").c.lock

    def try_lock(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        return sa.func.pg_try_advisory_lock(lock, type_=sa.Boolean)

    def unlock(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        return sa.func.pg_advisory_unlock(lock, type_=sa.Boolean)

    # --- ending sessions ---------------------------------------------------------------------------------------

    def end_session(self, session: int) -> sa.Executable:
        return sa.select(sa.func.pg_terminate_backend(session))

    def server_since(self, connection: sa.Connection) -> datetime:
        since: datetime = connection.execute(sa.select(sa.func.pg_postmaster_start_time())).scalar_one()
        return since

    # --- waiting to be called ----------------------------------------------------------------------------------

    def listener(self, connection: sa.Connection) -> _Line:
        return _Line(connection)

    def listen(self, owner: int) -> sa.Executable:
        # A channel for each owner: one for all would wake all. It takes no parameter; an owner is a number.
        return sa.text(f"LISTEN {_CHANNEL}{owner:d}")

    def call(self, owner: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
        # Delivered by the commit, and not at all by a rollback.
        return sa.func.pg_notify(sa.func.concat(_CHANNEL, owner), "")

    @contextlib.contextmanager
    def committing(self, connection: sa.Connection) -> Iterator[None]:
        driver: Any = connection.connection.driver_connection
        driver.autocommit = True  # the driver sends nothing for this, and no BEGIN and COMMIT while it is set
        try:
            yield
        finally:
            if not driver.closed:
                driver.autocommit = False


# Of a partitioned table all partitions count: one may be kept by another server.
_KIND: Final = sa.text(
    "SELECT CASE WHEN EXISTS (SELECT FROM pg_partition_tree(main.oid) AS part JOIN pg_class AS leaf "
    "ON leaf.oid = part.relid WHERE leaf.relkind = 'f') THEN 'f' ELSE relkind END AS kind, relpersistence, "
    "(SELECT min(rulename) FROM pg_rewrite WHERE ev_class = main.oid AND ev_type IN ('2', '4') AND ev_enabled <> 'D') "
    "AS rule FROM pg_class AS main WHERE main.oid = to_regclass(:name)"
)
_CHILD: Final = sa.text(
    "SELECT min(inhrelid::regclass::text) FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent "
    "WHERE inhparent = to_regclass(:name) AND relkind <> 'p'"
)
_KINDS: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table, or has a partition that is one"}
_PARTITIONED_BY: Final = sa.text(
    "SELECT attname FROM pg_partitioned_table JOIN pg_attribute ON attrelid = partrelid AND attnum = ANY(partattrs) "
    "WHERE partrelid = to_regclass(:name)"
)


def _refused_for_rule(rule: str, table: str) -> tuple[str, str]:
    """A rule rewrites our statements: one of them may then reach other rows, or none, or return nothing."""
    step = f"DROP RULE {_PREPARER.quote(rule)} ON {table}, and let a trigger do its work"
    return f"has the rule {rule!r}, which changes what an UPDATE or a DELETE of a claim does", step


class _Line:
    """The connection's own line, on which a notification arrives.

    Whatever comes is taken for a call: it is left to the next statement to read it.
    """

    def __init__(self, connection: sa.Connection) -> None:
        driver: Any = connection.connection.driver_connection
        self._calls = self._listen(connection, driver)
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._line = driver.fileno()
        self._known = self._calls[0]

    def _listen(self, connection: sa.Connection, driver: Any) -> list[int]:
        """How many calls this connection has heard. One may come along with the answer to a statement."""
        calls: list[int] | None = connection.info.get(_CHANNEL)
        if calls is None:
            calls = connection.info[_CHANNEL] = [0]
            driver.add_notify_handler(partial(_count, calls))
        return calls

    def wait(self, seconds: float) -> bool:
        if self._calls[0] > self._known:
            return True
        both = select.poll()
        both.register(self._line, select.POLLIN)
        both.register(self._ours, select.POLLIN)
        return bool(both.poll(seconds * 1000))

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._theirs.send(b".")

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


def _instant(sent: bytes) -> datetime:
    since = int.from_bytes(sent, "big", signed=True)
    try:
        return _ZERO + timedelta(microseconds=since)
    except OverflowError as error:
        raise ValueError(f"{_INFINITE.get(since, 'a year')!r}, timestamptz: {error}") from error


def _count(calls: list[int], _notification: Any) -> None:
    calls[0] += 1


class PortablePostgres(Postgres):
    """Postgres through the portable statements: three round trips a claim instead of one.

    The conformance suite runs it, so that the portable base is proven on more than one family of databases.
    """

    claims_in_one_statement: ClassVar[bool] = False
    locks_in_order: ClassVar[bool] = False
    returns_what_it_writes: ClassVar[bool] = False
    skips_duplicates: ClassVar[bool] = False
    copies: ClassVar[bool] = False
    among = Dialect.among


class _Numbers(sa.types.UserDefinedType[Sequence[int]]):
    """Whole numbers as the text of an array: psycopg looks at each one for what is to be quoted.

    It is an array before the server plans. A text that the statement makes an array of is read once for each row that
    the array is compared with: 5,000 keys took 5 s.
    """

    cache_ok = True
    render_bind_cast = True

    def __init__(self, type_: sa.types.TypeEngine[Any]) -> None:
        self.type_ = type_  # by this name, for copies and for the cache of statements

    def get_col_spec(self, **_: Any) -> str:
        return sa.ARRAY(self.type_).compile(dialect=_HERE)

    def bind_processor(self, dialect: sa.Dialect) -> Callable[[Sequence[int] | None], str | None]:
        del dialect
        return _as_array


def _as_array(value: Sequence[int] | None) -> str | None:
    if value is None:
        return None
    numbers = value if set(map(type, value)) <= {int} else map(int, value)
    return "{" + str([*numbers])[1:-1] + "}"  # faster than the texts of its items, joined


def _array(parameter: str, type_: sa.types.TypeEngine[Any]) -> sa.ColumnElement[Any]:
    """A parameter that is a list of values of this type."""
    return sa.bindparam(parameter, type_=_Numbers(type_) if isinstance(type_, sa.Integer) else sa.ARRAY(type_))


def _given(value: Any, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    return value if isinstance(value, sa.ColumnElement) else sa.literal(value, column.type)


def _says(error: BaseException, *words: str) -> bool:
    return any(word in str(getattr(error, "orig", None) or error) for word in words)


def _ends(type_: sa.types.TypeEngine[Any]) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    """The first and the last value of a type that Python has, too: with a zone it has not the whole last day."""
    if isinstance(type_, sa.Date):
        first, last = "DATE '0001-01-01'", "DATE '9999-12-31'"
    elif type_.timezone:  # type: ignore[attr-defined]  # a DateTime
        first, last = "TIMESTAMPTZ '0001-01-02 00:00:00+00'", "TIMESTAMPTZ '9999-12-30 23:59:59+00'"
    else:
        first, last = "TIMESTAMP '0001-01-01 00:00:00'", "TIMESTAMP '9999-12-31 23:59:59.999999'"
    return sa.literal_column(first), sa.literal_column(last)
