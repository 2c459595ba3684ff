"""The statements of Postgres: what differs from the portable base, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import psycopg

from claimjobs.dialects.base import Dialect
from claimjobs.dialects.key_locks import NumberedKeyLocks
from claimjobs.dialects.lexis import LETTER, STANDARD_QUOTES, Lexis
from claimjobs.dialects.postgres.errors import PostgresErrors
from claimjobs.dialects.postgres.inspection import PostgresInspection
from claimjobs.dialects.postgres.sessions import PREPARER, PostgresSessions
from claimjobs.dialects.postgres.table_rules import PostgresTableRules
from claimjobs.dialects.postgres.waking import PostgresWaking, WakeTrigger
from claimjobs.dialects.types import JsonKeys, stored_type

_HERE: Final = psycopg.dialect()  # type: ignore[no-untyped-call]


class Postgres(Dialect):
    errors = PostgresErrors()
    sessions = PostgresSessions()
    key_locks = NumberedKeyLocks()
    table_rules = PostgresTableRules()
    waking = PostgresWaking()
    inspection = PostgresInspection()

    title = "Postgres"
    drivers = ("psycopg",)
    # SKIP LOCKED came with 9.5, MATERIALIZED with 12; 13 is the oldest version that is tested.
    oldest = (13,)

    has_lateral = True
    claims_in_one_statement = True
    # The sort runs below the locking, and the limit ends both.
    locks_in_order = True
    # With an OR it reads an index from its beginning, and compares each row.
    reads_ranges_in_order = False
    returns_what_it_writes = True
    skips_duplicates = True
    copies = True
    wakes = True
    wake_trigger = WakeTrigger()
    switches_autocommit_freely = True
    pipelines = True
    is_embedded = True

    # Texts with escapes, E'\'', and in dollars, $tag$ ... $tag$.
    lexis = Lexis(
        quoted=rf"""[eE]'(?:[^'\\]|\\.|'')*+'|{STANDARD_QUOTES}|\$(?P<tag>[{LETTER}][{LETTER}0-9]*+)?\$.*?\$(?(tag)(?P=tag))\$""",
        opening=rf"[eE]?'|\"|\$(?:[{LETTER}][{LETTER}0-9]*+)?\$",
    )

    # --- conditions --------------------------------------------------------------------------------------

    def later(self, now: sa.ColumnElement[Any], seconds: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        return now + sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds, type_=sa.Interval)

    def among(self, key: Sequence[sa.ColumnElement[Any]], parameter: str) -> sa.ColumnElement[bool]:
        """The values are one array: one parameter, and one prepared statement, for any number of values.

        An IN list of 100 costs more in the client than the statement costs in the server. Keys of several columns are
        one JSON document: for a list of pairs the server would plan each statement anew, with all its partitions.
        """
        if len(key) > 1:
            return _is_listed(key, *json_keys(self.json_of_keys(key, parameter), key))
        return key[0] == sa.any_(_array(parameter, key[0].type))

    def as_filter(self, predicate: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        # In a table that is not analyzed the planner expects a row or two of any owner: it would use the index of
        # owners, and compare each row with all keys. It uses no index for IS TRUE.
        return predicate.is_(sa.true())

    def after_values(
        self, columns: Sequence[sa.Column[Any]], values: Sequence[Any], *, falling: bool = False
    ) -> sa.ColumnElement[bool]:
        # With the portable OR, every page would read the index from its beginning.
        given = sa.tuple_(*map(_literal, values, columns))
        return sa.tuple_(*columns) < given if falling else sa.tuple_(*columns) > given

    def with_values(
        self, columns: Sequence[sa.ColumnElement[Any]], values: Sequence[sa.ColumnElement[Any]]
    ) -> sa.ColumnElement[bool]:
        # After `=` the planner takes the columns for constants, and may read an index of the rest of the order. If it
        # believes that most rows have the values, and few have, it reads the whole table so (0.4 s for 3,000,000 rows).
        one, given = (columns[0], values[0]) if len(columns) == 1 else (sa.tuple_(*columns), sa.tuple_(*values))
        return sa.and_(one >= given, one <= given)

    # --- how rows are read -------------------------------------------------------------------------------

    def readable(self, key: Sequence[sa.Column[Any]]) -> Sequence[sa.ColumnElement[bool]]:
        # Python has neither 'infinity' nor years BC. In some time zones it lacks the first or the last day.
        found = [(column, *_ends(column.type)) for column in key if isinstance(column.type, (sa.Date, sa.DateTime))]
        return [column.between(sa.literal_column(first), sa.literal_column(last)) for column, first, last in found]

    def fetched(self, cursor: Any) -> Sequence[Any]:
        # psycopg makes the values of a row when the row is fetched, and raises for a date that Python does not have.
        try:
            return super().fetched(cursor)
        except Exception:
            if not hasattr(cursor, "pgresult"):  # another driver, which does not keep the values as they were sent
                raise
            from claimjobs.dialects.postgres import rows  # noqa: PLC0415 - psycopg is slow to import

            return rows.read_partly(cursor)

    # --- the rows of a CTE -------------------------------------------------------------------------------

    # For a CTE whose LIMIT is a parameter the planner expects a tenth of the table, and reads all of that for a hash
    # join (with 20,000 waiting jobs and a batch of 100: 4 ms instead of 0.4). For an array it expects ten rows.

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

    # --- keys as JSON ------------------------------------------------------------------------------------

    def json_of_keys(self, key: Sequence[sa.ColumnElement[Any]], parameter: str) -> sa.ColumnElement[Any]:
        return sa.cast(sa.bindparam(parameter, type_=_JsonKeys(tuple(column.type for column in key))), postgresql.JSONB)

    def json_of_rows(self, key: Sequence[sa.ColumnElement[Any]]) -> sa.ColumnElement[Any]:
        parts = [sa.func.encode(part, "hex") if _is_binary(part) else part for part in key]
        return sa.func.jsonb_agg(parts[0] if len(parts) == 1 else sa.func.jsonb_build_array(*parts))

    def keys_in_json(
        self, document: sa.Column[Any], key: Sequence[sa.Column[Any]]
    ) -> tuple[sa.FromClause, Sequence[sa.ColumnElement[Any]]]:
        return json_keys(document, key)

    def keys_listed(
        self, rows: sa.Table, document: sa.Column[Any], key: Sequence[sa.Column[Any]], predicate: sa.ColumnElement[bool]
    ) -> sa.Select[Any]:
        # As an array, of which the planner expects ten values. After an ANALYZE it may expect a million keys in a few
        # dead rows, and then a NOT IN compares each job with all keys, because it expects no hash table to hold them.
        listed, _ = self.keys_in_json(document, key)
        found = sa.select(listed.c.value).select_from(rows.join(listed, sa.true())).where(predicate)
        array = sa.func.array(found.scalar_subquery(), type_=sa.ARRAY(sa.types.NullType()))
        few = sa.func.unnest(array).table_valued("value").render_derived(name="claimjobs_keys")
        return sa.select(*_values_of(few.c.value, key))

    # --- writing -----------------------------------------------------------------------------------------

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

    def insert_unless_there(self, table: sa.Table, columns: Sequence[sa.Column[Any]]) -> sa.Insert:
        return postgresql.insert(table).on_conflict_do_nothing(index_elements=columns)

    def copyable(self, connection: sa.Connection, table: sa.Table) -> Mapping[str, Callable[[Iterable[Any]], bool]]:
        # Other drivers have other ways, or none.
        if connection.dialect.driver != "psycopg" or connection.dialect.is_async:
            return {}
        from claimjobs.dialects.postgres import rows  # noqa: PLC0415 - psycopg is slow to import

        return rows.copyable(connection, table, PREPARER.format_table(table))

    def copy(
        self, connection: sa.Connection, table: sa.Table, keys: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        from claimjobs.dialects.postgres import rows as psycopg_rows  # noqa: PLC0415

        psycopg_rows.copy(connection, table, keys, rows)


def json_keys(
    document: sa.ColumnElement[Any], key: Sequence[sa.ColumnElement[Any]]
) -> tuple[sa.FromClause, Sequence[sa.ColumnElement[Any]]]:
    """The keys of a JSON document: a table with a row for each, and its expressions for `key`."""
    elements = sa.func.jsonb_array_elements if len(key) > 1 else sa.func.jsonb_array_elements_text
    listed = elements(document).table_valued("value", name="claimjobs_listed")
    return listed, _values_of(listed.c.value, key)


def _is_listed(
    key: Sequence[sa.ColumnElement[Any]], listed: sa.FromClause, values: Sequence[sa.ColumnElement[Any]]
) -> sa.ColumnElement[bool]:
    """Whether a key of several columns is one of the listed ones.

    Its first column alone leads to the rows: for an array the planner expects ten values, and uses the index, where it
    would read all rows for a join. Between the first and the last instant there are few partitions by time: the server
    leaves out the others when it runs the statement.
    """
    first = sa.func.array(sa.select(values[0]).select_from(listed).scalar_subquery(), type_=sa.ARRAY(key[0].type))
    bounds = [
        column.between(_only(sa.func.min(value), listed), _only(sa.func.max(value), listed))
        for column, value in zip(key, values, strict=True)
        if isinstance(stored_type(column.type, _HERE), sa.DateTime)
    ]
    pair = sa.tuple_(*key).in_(sa.select(*values).select_from(listed))
    return sa.and_(key[0] == sa.any_(first), *bounds, pair)


def _only(value: sa.ColumnElement[Any], listed: sa.FromClause) -> sa.ColumnElement[Any]:
    return sa.select(value).select_from(listed).scalar_subquery()


class _WholeNumbers(sa.types.UserDefinedType[Sequence[int]]):
    """Whole numbers as the text of an array. For a list psycopg would examine each number for characters to quote.

    It is an array before the server plans the statement. If the statement made an array of a text, the server would
    parse the text for each row that it compares: 5,000 keys took 5 s.
    """

    cache_ok = True
    render_bind_cast = True

    def __init__(self, type_: sa.types.TypeEngine[Any]) -> None:
        self.type_ = type_  # this name, because SQLAlchemy copies and caches a type by the names of its parameters

    def get_col_spec(self, **_: Any) -> str:
        return sa.ARRAY(self.type_).compile(dialect=_HERE)

    def bind_processor(self, dialect: sa.Dialect) -> Callable[[Sequence[int] | None], str | None]:
        return _array_text


class _JsonKeys(JsonKeys):
    cache_ok = True
    here = _HERE


def _values_of(listed: sa.ColumnElement[Any], key: Sequence[sa.ColumnElement[Any]]) -> Sequence[sa.ColumnElement[Any]]:
    """The values of a key: an element of a JSON array, as text if the key has one column."""
    if len(key) == 1:
        return [_of_text(listed, key[0])]
    return [_of_text(listed.op("->>")(i), column) for i, column in enumerate(key)]


def _of_text(text: sa.ColumnElement[Any], column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """The value of a key, from a text in JSON."""
    stored = stored_type(column.type, _HERE)
    if _is_binary(column):
        return sa.func.decode(text, "hex", type_=column.type)
    if isinstance(stored, sa.CHAR):  # compared with a text, it would lose the spaces at its end, and the text not
        return sa.type_coerce(sa.cast(text, _Padded()), column.type)
    if isinstance(stored, sa.String) and not getattr(stored, "native_enum", False):
        return sa.type_coerce(text, column.type)  # a cast to VARCHAR(n) would cut it
    return sa.type_coerce(sa.cast(text, stored), column.type)


def _is_binary(column: sa.ColumnElement[Any]) -> bool:
    return isinstance(stored_type(column.type, _HERE), sa.LargeBinary)


class _Padded(sa.types.UserDefinedType[str]):
    """CHAR of any length."""

    cache_ok = True

    def get_col_spec(self, **_options: Any) -> str:
        return "BPCHAR"


def _array_text(value: Sequence[int] | None) -> str | None:
    if value is None:
        return None
    numbers = value if set(map(type, value)) <= {int} else map(int, value)
    return "{" + str([*numbers])[1:-1] + "}"  # faster than a join of the texts of its items


def _array(parameter: str, type_: sa.types.TypeEngine[Any]) -> sa.ColumnElement[Any]:
    """A parameter that is a list of values of this type."""
    return sa.bindparam(parameter, type_=_WholeNumbers(type_) if isinstance(type_, sa.Integer) else sa.ARRAY(type_))


def _literal(value: Any, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    return value if isinstance(value, sa.ColumnElement) else sa.literal(value, column.type)


def _ends(type_: sa.types.TypeEngine[Any]) -> tuple[str, str]:
    """The first and the last value of a type that Python has, too."""
    if isinstance(type_, sa.Date):
        return "DATE '0001-01-01'", "DATE '9999-12-31'"
    if type_.timezone:  # type: ignore[attr-defined]  # a DateTime
        return "TIMESTAMPTZ '0001-01-02 00:00:00+00'", "TIMESTAMPTZ '9999-12-30 23:59:59+00'"
    return "TIMESTAMP '0001-01-01 00:00:00'", "TIMESTAMP '9999-12-31 23:59:59.999999'"
