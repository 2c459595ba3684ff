"""The statements of Postgres: what differs from the portable base, and why. psycopg is imported late: it is slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import closing, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import psycopg

from claimjobs.dialects.base import Condition, Dialect, Expression, Expressions
from claimjobs.dialects.lexis import LETTER, STANDARD_QUOTES, Lexis
from claimjobs.dialects.postgres.errors import PostgresErrors
from claimjobs.dialects.postgres.inspection import PostgresInspection, PostgresTableRules
from claimjobs.dialects.postgres.sessions import PREPARER, PostgresSessions
from claimjobs.dialects.types import Instant, JsonKeys, stored_type, with_stored
from claimjobs.job import PartlyRead, UnreadableValue

_ZERO: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""Postgres counts microseconds from this instant."""
_INFINITE: Final = {2**63 - 1: "infinity", -(2**63): "-infinity"}
"""These numbers of microseconds have a name."""
_HERE: Final = psycopg.dialect()  # type: ignore[no-untyped-call]


class _WholeNumbers(sa.types.UserDefinedType[Sequence[int]]):
    """Whole numbers as the text of an array. For a list psycopg would examine each number for characters to quote.
    asyncpg, with which a caller's transaction may run, takes only a list.

    It is an array before the server plans the statement. If the statement made an array of a text, the server would
    parse the text for each row that it compares: 5,000 keys took 5 s.
    """

    cache_ok = True
    render_bind_cast = True

    def __init__(self, type_: sa.types.TypeEngine[Any]) -> None:
        self.type_ = type_  # this name, because SQLAlchemy copies and caches a type by the names of its parameters

    def get_col_spec(self, **_: Any) -> str:
        return sa.ARRAY(self.type_).compile(dialect=_HERE)

    def bind_processor(self, dialect: sa.Dialect) -> Callable[[Sequence[int] | None], str | None] | None:
        return None if dialect.driver == "asyncpg" else _array_text


def _values_of(listed: Expression, key: Expressions) -> Expressions:
    """The values of a key: an element of a JSON array, as text if the key has one column."""
    if len(key) == 1:
        return [_of_text(listed, key[0])]
    return [_of_text(listed.op("->>")(i), column) for i, column in enumerate(key)]


def _of_text(text: Expression, column: Expression) -> Expression:
    """The value of a key, from a text in JSON."""
    stored = stored_type(column.type, _HERE)
    if _is_binary(column):
        return sa.func.decode(text, "hex", type_=column.type)
    if isinstance(stored, sa.CHAR):  # compared with a text, it would lose the spaces at its end, and the text not
        return sa.type_coerce(sa.cast(text, _Padded()), column.type)
    if isinstance(stored, sa.String) and not getattr(stored, "native_enum", False):
        return sa.type_coerce(text, column.type)  # a cast to VARCHAR(n) would cut it
    return sa.type_coerce(sa.cast(text, stored), column.type)


def _of_any_length(stored: sa.types.TypeEngine[Any]) -> sa.types.TypeEngine[Any]:
    """The type of a text without its length. The column may be altered to a longer one after it was read."""
    if not isinstance(stored, sa.String) or isinstance(stored, sa.Enum) or stored.length is None:
        return stored
    return _Padded() if isinstance(stored, sa.CHAR) else sa.String()


def _is_binary(column: Expression) -> bool:
    return isinstance(stored_type(column.type, _HERE), sa.LargeBinary)


class _Padded(sa.types.UserDefinedType[str]):
    """CHAR of any length."""

    cache_ok = True

    def get_col_spec(self, **_options: Any) -> str:
        return "BPCHAR"


def _instant(sent: bytes | None) -> datetime | None:
    if sent is None:
        return None
    since = int.from_bytes(sent, "big", signed=True)
    try:
        return _ZERO + timedelta(microseconds=since)
    except OverflowError as error:
        raise ValueError(f"{_INFINITE.get(since, 'a year')!r}, timestamptz: {error}") from error


def _array_text(value: Sequence[int] | None) -> str | None:
    if value is None:
        return None
    numbers = value if set(map(type, value)) <= {int} else map(int, value)
    return "{" + str([*numbers])[1:-1] + "}"  # faster than a join of the texts of its items


# --- rows that are copied --------------------------------------------------------------------------------------

# COPY is several times as fast as INSERT. Its values are texts that the column's type reads; INSERT converts between
# types. For values of these types both write the same. All others are inserted.
_COPIED_AS: Final[Mapping[str, Set[type]]] = {
    "text": {str},
    "smallint": {int},
    "integer": {int},
    "bigint": {int},
    "numeric": {int, Decimal},  # INSERT rounds a float to 15 digits
    "double precision": {int, float},
    "boolean": {bool},
    "uuid": {UUID},
    "date": {date},
    "timestamp with time zone": {datetime},
}
"""For each type of a column: the types of its values, as psycopg gets them."""
_SENT_AS_BIGINT: Final = {("bigint", "smallint"), ("bigint", "integer")}
"""A column of the key. INSERT would convert its values, or refuse them, as COPY does."""
_ALSO_CALLED: Final = {"varchar": "text", "character varying": "text", "float": "double precision"}
"""A text has no other length for INSERT: the table checks it."""

# COPY ignores rules. The server refuses it for a view and for rows with a policy. Unlike INSERT it writes an identity
# column that is GENERATED ALWAYS.
_COPIED: Final = sa.text(
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid "
    "WHERE attrelid = to_regclass(:name) AND relkind IN ('r', 'p') AND NOT relhasrules "
    "AND NOT row_security_active(attrelid) AND attnum > 0 AND NOT attisdropped "
    "AND attidentity <> 'a' AND attgenerated = ''"
)


def _plain_type(type_: str) -> str:
    """The name of a type, as the server or SQLAlchemy writes it, without its length."""
    bare = type_.lower().partition("(")[0]
    return _ALSO_CALLED.get(bare, bare)


def _value(made: Any, sent: bytes | None, type_: int, format_: Any) -> Any:
    if sent is None:
        return None
    try:
        return made.get_loader(type_, format_).load(sent)
    except Exception as error:
        known = made.adapters.types.get(type_)
        text = bytes(sent).decode(errors="backslashreplace")
        return UnreadableValue(f"{text!r}, {known.name if known else type_}: {error}")


class Postgres(Dialect):
    errors = PostgresErrors()
    sessions = PostgresSessions()
    table_rules = PostgresTableRules()
    inspection = PostgresInspection()

    title = "Postgres"
    drivers = ("psycopg",)
    # SKIP LOCKED came with 9.5, MATERIALIZED with 12; 13 is the oldest version that is tested.
    oldest = (13,)

    has_lateral = True
    claims_in_one_statement = True
    # The sort runs below the locking, and the limit ends both.
    locks_in_order = True
    compares_rows = True
    guesses_owners = True
    # With an OR it reads an index from its beginning, and compares each row.
    reads_ranges_in_order = False
    holds_nul = False
    returns_what_it_writes = True
    skips_duplicates = True
    no_wake_trigger = None
    switches_autocommit_freely = True
    pipelines = True
    is_embedded = True

    # Texts with escapes, E'\'', and in dollars, $tag$ ... $tag$.
    lexis = Lexis(
        quoted=rf"""[eE]'(?:[^'\\]|\\.|'')*+'|{STANDARD_QUOTES}|\$(?P<tag>[{LETTER}][{LETTER}0-9]*+)?\$.*?\$(?(tag)(?P=tag))\$""",
        opening=rf"[eE]?'|\"|\$(?:[{LETTER}][{LETTER}0-9]*+)?\$",
    )

    # --- conditions --------------------------------------------------------------------------------------

    def later(self, now: Expression, seconds: Expression) -> Expression:
        return now + sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds, type_=sa.Interval)

    def among(self, key: Expressions, parameter: str) -> Condition:
        """The values are one array: one parameter, and one prepared statement, for any number of values.

        An IN list of 100 costs more in the client than the statement costs in the server. Keys of several columns are
        one JSON document: for a list of pairs the server would plan each statement anew, with all its partitions.
        """
        if len(key) == 1:
            type_: sa.types.TypeEngine[Any] = key[0].type
            array = _WholeNumbers(type_) if isinstance(type_, sa.Integer) else self.array_type(key[0])
            return key[0] == sa.any_(sa.bindparam(parameter, type_=array))
        listed, values = self.keys_in_json(self.json_of_keys(key, parameter), key)

        def of_all(value: Expression) -> Expression:
            return sa.select(value).select_from(listed).scalar_subquery()

        # The first column alone leads to the rows: for an array the planner expects ten values, and uses the index,
        # where it would read all rows for a join. Between the first and the last instant there are few partitions by
        # time: the server leaves out the others when it runs the statement.
        first = sa.func.array(of_all(values[0]), type_=self.array_type(key[0]))
        bounds = [
            column.between(of_all(sa.func.min(value)), of_all(sa.func.max(value)))
            for column, value in zip(key, values, strict=True)
            if isinstance(stored_type(column.type, _HERE), sa.DateTime)
        ]
        pair = sa.tuple_(*key).in_(sa.select(*values).select_from(listed))
        return sa.and_(key[0] == sa.any_(first), *bounds, pair)

    def array_type(self, column: Expression) -> sa.ARRAY[Any]:
        return sa.ARRAY(with_stored(column.type, _HERE, _of_any_length))

    # --- how rows are read -------------------------------------------------------------------------------

    def encoded(self, column: Expression) -> Expression:
        # For each instant psycopg looks up the time zone and makes two objects: 6 to 10 % of a client's CPU for a job
        # (docs/decisions/0065). The binary form of the server is a number.
        return sa.func.timestamptz_send(column) if isinstance(column.type, Instant) else column

    def decoder(self, column: sa.Column[Any]) -> Callable[[Any], Any] | None:
        return _instant if isinstance(column.type, Instant) else None

    def readable(self, key: Expressions) -> Sequence[Condition]:
        # Python has neither 'infinity' nor years BC. In some time zones it lacks the first or the last day.
        found = []
        for column in key:
            if isinstance(column.type, sa.Date):
                first, last = "DATE '0001-01-01'", "DATE '9999-12-31'"
            elif isinstance(column.type, sa.DateTime) and column.type.timezone:
                first, last = "TIMESTAMPTZ '0001-01-02 00:00:00+00'", "TIMESTAMPTZ '9999-12-30 23:59:59+00'"
            elif isinstance(column.type, sa.DateTime):
                first, last = "TIMESTAMP '0001-01-01 00:00:00'", "TIMESTAMP '9999-12-31 23:59:59.999999'"
            else:
                continue
            found.append(column.between(sa.literal_column(first), sa.literal_column(last)))
        return found

    def fetched(self, cursor: Any) -> Sequence[Any]:
        # psycopg makes the values of a row when the row is fetched, and raises for a date that Python does not have.
        try:
            return super().fetched(cursor)
        except Exception:
            if not hasattr(cursor, "pgresult"):  # another driver, which does not keep the values as they were sent
                raise
        from psycopg.adapt import Transformer  # noqa: PLC0415 - psycopg is slow to import
        from psycopg.pq import Format  # noqa: PLC0415

        result, made = cursor.pgresult, Transformer.from_context(cursor)
        columns = [(result.ftype(i), Format(result.fformat(i))) for i in range(result.nfields)]
        rows: list[Any] = []
        for number in range(result.ntuples):
            sent = [result.get_value(number, i) for i in range(result.nfields)]
            values = tuple(_value(made, one, *column) for one, column in zip(sent, columns, strict=True))
            rows.append(PartlyRead(values) if any(isinstance(one, UnreadableValue) for one in values) else values)
        return rows

    # --- keys as JSON ------------------------------------------------------------------------------------

    def json_of_keys(self, key: Expressions, parameter: str) -> Expression:
        keys = sa.bindparam(parameter, type_=JsonKeys(_HERE, tuple(column.type for column in key)))
        return sa.cast(keys, postgresql.JSONB)

    def json_of_rows(self, key: Expressions) -> Expression:
        parts = [sa.func.encode(part, "hex") if _is_binary(part) else part for part in key]
        return sa.func.jsonb_agg(parts[0] if len(parts) == 1 else sa.func.jsonb_build_array(*parts))

    def keys_in_json(self, document: Expression, key: Expressions) -> tuple[sa.FromClause, Expressions]:
        elements = sa.func.jsonb_array_elements if len(key) > 1 else sa.func.jsonb_array_elements_text
        listed = elements(document).table_valued("value", name="claimjobs_listed")
        return listed, _values_of(listed.c.value, key)

    def keys_listed(self, document: sa.Column[Any], key: Expressions, predicate: Condition) -> sa.Select[Any]:
        # As an array, of which the planner expects ten values. After an ANALYZE it may expect a million keys in a few
        # dead rows, and then a NOT IN compares each job with all keys, because it expects no hash table to hold them.
        listed, _ = self.keys_in_json(document, key)
        found = sa.select(listed.c.value).select_from(document.table.join(listed, sa.true())).where(predicate)
        array = sa.func.array(found.scalar_subquery(), type_=sa.ARRAY(sa.types.NullType()))
        few = sa.func.unnest(array).table_valued("value").render_derived(name="claimjobs_keys")
        return sa.select(*_values_of(few.c.value, key))

    # --- writing -----------------------------------------------------------------------------------------

    def upsert(
        self,
        table: sa.Table,
        columns: Expressions,
        rows: sa.Select[Any],
        *,
        values: Mapping[sa.Column[Any], Any],
        guard: Condition,
    ) -> sa.Executable:
        insert = postgresql.insert(table).from_select([column.name for column in columns], rows)
        if not values:
            return insert.on_conflict_do_nothing(index_elements=table.primary_key)
        written = {column.name: value for column, value in values.items()}
        return insert.on_conflict_do_update(index_elements=table.primary_key, set_=written, where=guard)

    def insert_unless_there(self, table: sa.Table, columns: Expressions) -> sa.Insert:
        return postgresql.insert(table).on_conflict_do_nothing(index_elements=columns)

    def copyable(self, connection: sa.Connection, table: sa.Table) -> Mapping[str, Set[type]]:
        # Other drivers have other ways, or none.
        if connection.dialect.driver != "psycopg" or connection.dialect.is_async:
            return {}
        from psycopg.types.json import Jsonb  # noqa: PLC0415 - psycopg is slow to import

        found, known = {}, {**_COPIED_AS, "jsonb": {Jsonb}}
        actual = dict(map(tuple, connection.execute(_COPIED, {"name": PREPARER.format_table(table)})))
        for column in table.columns:
            type_ = _plain_type(actual.get(column.name, ""))
            with suppress(sa.exc.CompileError):  # it is declared without a type
                is_converted = column.type.bind_expression(sa.bindparam("value", type_=column.type)) is not None
                sent = _plain_type(column.type.compile(_HERE))
                is_same = sent == type_ or (sent, type_) in _SENT_AS_BIGINT
                if type_ in known and not is_converted and is_same:
                    found[column.key] = known[type_] | {NoneType}
        return found

    def copy(
        self, connection: sa.Connection, table: sa.Table, keys: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        from psycopg import Error, sql  # noqa: PLC0415 - psycopg is slow to import

        names = [table.name] if table.schema is None else [table.schema, table.name]
        columns = sql.SQL(", ").join(sql.Identifier(table.c[key].name) for key in keys)
        command = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(*names), columns)
        with closing(connection.connection.cursor()) as cursor:
            try:
                with cursor.copy(command) as copying:
                    for row in rows:
                        copying.write_row(row)
            except Error as error:
                # The error as SQLAlchemy raises it for its own statements. It invalidates a broken connection when it
                # rolls back the savepoint around the copy.
                dialect: Any = connection.dialect
                gone = dialect.is_disconnect(error, connection.connection, None)
                options: dict[str, Any] = {"connection_invalidated": gone, "dialect": dialect}
                raise sa.exc.DBAPIError.instance(command.as_string(), None, error, Error, **options) from error
            except BaseException as error:
                if not isinstance(error, Exception):  # as SQLAlchemy does for its own: the copy may still be under way
                    connection.invalidate()
                raise
