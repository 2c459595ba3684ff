"""The statements of Postgres: what differs from the portable base, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import psycopg

from claimjobs.dialects.base import Condition, Expression, Expressions
from claimjobs.dialects.key_locks import NumberedKeyLocks
from claimjobs.dialects.lexis import LETTER, STANDARD_QUOTES, Lexis
from claimjobs.dialects.postgres.errors import PostgresErrors
from claimjobs.dialects.postgres.inspection import PostgresInspection
from claimjobs.dialects.postgres.rows import PsycopgRows
from claimjobs.dialects.postgres.sessions import PostgresSessions
from claimjobs.dialects.postgres.table_rules import PostgresTableRules
from claimjobs.dialects.postgres.waking import PostgresWaking
from claimjobs.dialects.types import JsonKeys, stored_type
from claimjobs.dialects.waking import WakeTrigger

_HERE: Final = psycopg.dialect()  # type: ignore[no-untyped-call]


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


def _is_binary(column: Expression) -> bool:
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


class Postgres(PsycopgRows):
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
    compares_rows = True
    guesses_owners = True
    # With an OR it reads an index from its beginning, and compares each row.
    reads_ranges_in_order = False
    returns_what_it_writes = True
    skips_duplicates = True
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

    def later(self, now: Expression, seconds: Expression) -> Expression:
        return now + sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds, type_=sa.Interval)

    def among(self, key: Expressions, parameter: str) -> Condition:
        """The values are one array: one parameter, and one prepared statement, for any number of values.

        An IN list of 100 costs more in the client than the statement costs in the server. Keys of several columns are
        one JSON document: for a list of pairs the server would plan each statement anew, with all its partitions.
        """
        if len(key) == 1:
            type_: sa.types.TypeEngine[Any] = key[0].type
            array = _WholeNumbers(type_) if isinstance(type_, sa.Integer) else sa.ARRAY(type_)
            return key[0] == sa.any_(sa.bindparam(parameter, type_=array))
        listed, values = self.keys_in_json(self.json_of_keys(key, parameter), key)

        def of_all(value: Expression) -> Expression:
            return sa.select(value).select_from(listed).scalar_subquery()

        # The first column alone leads to the rows: for an array the planner expects ten values, and uses the index,
        # where it would read all rows for a join. Between the first and the last instant there are few partitions by
        # time: the server leaves out the others when it runs the statement.
        first = sa.func.array(of_all(values[0]), type_=sa.ARRAY(key[0].type))
        bounds = [
            column.between(of_all(sa.func.min(value)), of_all(sa.func.max(value)))
            for column, value in zip(key, values, strict=True)
            if isinstance(stored_type(column.type, _HERE), sa.DateTime)
        ]
        pair = sa.tuple_(*key).in_(sa.select(*values).select_from(listed))
        return sa.and_(key[0] == sa.any_(first), *bounds, pair)

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

    def keys_listed(
        self, rows: sa.Table, document: sa.Column[Any], key: Expressions, predicate: Condition
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
