"""The statements of MySQL: what differs from the portable base, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles

from claimjobs.dialects.base import Condition, Dialect, Expression, Expressions, Write
from claimjobs.dialects.lexis import STANDARD_QUOTES, Lexis
from claimjobs.dialects.mysql.errors import MariaDBErrors, MySQLErrors
from claimjobs.dialects.mysql.inspection import (
    PREPARER,
    MariaDBInspection,
    MariaDBTableRules,
    MySQLInspection,
    MySQLTableRules,
)
from claimjobs.dialects.mysql.sessions import MariaDBSessions, MySQLSessions
from claimjobs.dialects.types import Instant, JsonKeys, StoredKeys, WrittenKeys, stored_type

_HERE: Final[sa.Dialect] = mysql.dialect()
_CHARACTERS: Final = 255
"""Of texts in a list of keys, at least. For 768 MariaDB would read the claimed keys again for each job."""


class _StraightDelete(sa.Delete):
    """DELETE from a table that is joined to keys. It reads the keys first, whatever the planner would choose."""

    inherit_cache = True


@compiles(_StraightDelete, "mysql", "mariadb")
def _delete(delete: _StraightDelete, compiler: Any, **kw: Any) -> str:
    def tables(_delete: Any, table: Any, extra: Sequence[Any], from_hints: dict[Any, str], **kw: Any) -> str:
        kw["asfrom"] = True
        join = " STRAIGHT_JOIN ".join(part._compiler_dispatch(compiler, **kw) for part in (*extra, table))
        return f"USING {join} {' '.join(from_hints.values())}"

    compiler.delete_extra_from_clause = tables
    return str(compiler.visit_delete(delete, **kw))


# --- finding rows by a list of keys: the keys are a table, and the index is named ------------------------------

# InnoDB locks a row when it reads it. So a statement that locks must read no rows but those of its keys, and that must
# not depend on the planner.


def _force(index: str | None) -> str:
    """The hint that makes a statement use this index; None: the primary key."""
    # SQLAlchemy takes the text of a hint as a format.
    return f"FORCE INDEX ({'PRIMARY' if index is None else PREPARER.quote(index).replace('%', '%%')})"


def _type(column: Expression) -> str:
    """The type of a key within JSON_TABLE, which has no UUID. JSON holds no bytes, so they are sent as hex."""
    stored = stored_type(column.type, _HERE)
    if _is_binary(column):
        return "text"
    if isinstance(stored, sa.Uuid):
        return "char(32)"
    collation = getattr(stored, "collation", None)
    name = column.type.compile(dialect=_HERE).partition(" CHARACTER SET ")[0].partition(" COLLATE ")[0]
    if isinstance(stored, sa.String) and not isinstance(stored, sa.Enum) and stored.length is not None:
        # The column may be altered to a longer one after it was read.
        name = f"varchar({max(_CHARACTERS, stored.length)})"
    return f"{name} COLLATE {PREPARER.quote(collation)}" if collation else name


def _is_binary(column: Expression) -> bool:
    return isinstance(stored_type(column.type, _HERE), sa.types._Binary)


class MySQL(Dialect):
    errors = MySQLErrors()
    sessions = MySQLSessions()
    table_rules = MySQLTableRules()
    inspection = MySQLInspection()

    title = "MySQL"
    drivers = ("pymysql", "mysqldb")
    # SKIP LOCKED came with 8.0.1, expression defaults with 8.0.13.
    oldest: ClassVar[tuple[int, ...]] = (8, 0, 13)

    has_lateral = True  # since 8.0.14
    finds_and_locks_at_once = True
    # PyMySQL's executemany also sends one statement, but formats each row by itself, which takes half as long again in
    # the client. This limit is below every max_allowed_packet in use.
    joins_rows = 1_000_000
    needs_database = True
    # InnoDB's secondary indexes refer to a row by its primary key.
    indexes_end_in_the_key = True
    changes_timestamps = True
    primary = "PRIMARY"
    # KILL QUERY in a trigger is allowed, and ends the sleep. But a trigger runs before the commit, once for each row.
    no_wake_trigger = "its triggers run before the commit, once for each row: who is woken then finds no job"
    interrupts = True
    reads_that_lock = frozenset({"SERIALIZABLE"})

    def as_compared(self, column: Expression) -> Expression:
        # An ENUM is sorted by the number of its value, and compared as a text.
        is_enum = isinstance(stored_type(column.type, _HERE), sa.Enum)
        return sa.func.concat(column, type_=column.type) if is_enum else column

    # `skips_duplicates` is false: INSERT IGNORE and ON DUPLICATE KEY UPDATE name no key. They would take any other
    # error of the row, or another unique key, for the duplicate.

    # A backslash escapes a quote unless sql_mode contains NO_BACKSLASH_ESCAPES: a text must be whole either way. `#`
    # begins a comment, `--` only before a space or at the end.
    lexis = Lexis(
        quoted=r"""'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+"|`(?:[^`]|``)*+`""",
        opening="['\"`]",
        comment=r"\#|--(?=[\x00-\x20\x7f]|\Z)|/\*",
        quoted_without_escapes=rf"{STANDARD_QUOTES}|`(?:[^`]|``)*+`",
    )

    # --- conditions --------------------------------------------------------------------------------------

    def among_some(self, key: Expressions, parameter: str) -> Condition:
        """PyMySQL writes a list of values into the statement. SQLAlchemy makes a parameter of each, which is a tenth
        of a client's work for a job.
        """
        if self._driver != "pymysql":
            return self.among(key, parameter)
        listed: sa.BindParameter[Any] = sa.bindparam(
            parameter, type_=StoredKeys(_HERE, tuple(column.type for column in key))
        )
        return (key[0] if len(key) == 1 else sa.tuple_(*key)).bool_op("IN")(listed)

    def later(self, now: Expression, seconds: Expression) -> Expression:
        # In microseconds: INTERVAL n SECOND would round a fraction given as a parameter.
        return sa.func.timestampadd(sa.text("MICROSECOND"), seconds * 1_000_000, now)

    # --- how rows are read -------------------------------------------------------------------------------

    def readable(self, key: Expressions) -> Sequence[Condition]:
        # MySQL refuses to compare an instant with the text of one that has no month or day. MariaDB does not.
        instants = [column for column in key if isinstance(stored_type(column.type, _HERE), sa.DateTime)]
        none: sa.ColumnElement[str] = sa.literal_column("'-00'")
        return [sa.func.instr(sa.cast(column, sa.CHAR), none) == sa.literal_column("0") for column in instants]

    def from_text(self, column: sa.Column[Any]) -> Callable[[str], Any] | None:
        """PyMySQL makes each value in Python, however short it is, and parses a datetime with a regular expression: as
        much work as five other values (docs/decisions/0065 has the figures).
        """
        if isinstance(column.type, sa.Integer):
            return int
        return _instant if isinstance(column.type, sa.DateTime | Instant) else None

    def joined(self, columns: Expressions) -> sa.ColumnElement[str]:
        # An empty text that MariaDB's EMPTY_STRING_IS_NULL does not read as NULL.
        nothing: sa.ColumnElement[str] = sa.literal_column("space(0)")
        values = [sa.func.ifnull(one, nothing) if getattr(one, "nullable", True) else one for one in columns]
        return sa.func.concat_ws(sa.literal_column("','"), *values, type_=sa.Text)

    # --- keys as JSON ------------------------------------------------------------------------------------

    def json_of_keys(self, key: Expressions, parameter: str) -> Expression:
        return sa.bindparam(parameter, type_=JsonKeys(_HERE, tuple(column.type for column in key)))

    def keys_in_json(
        self, document: Expression, key: Expressions, name: str = "claimjobs_listed"
    ) -> tuple[sa.TableValuedAlias, Expressions]:
        # They are in their order. A user's predicate in the same WHERE may name columns without their table: so these
        # names are unusual.
        names = [f"claimjobs_k{i}" for i in range(len(key))]
        paths = [f"$[{i}]" for i in range(len(key))] if len(key) > 1 else ["$"]
        columns = ", ".join(f"{names[i]} {_type(column)} path '{paths[i]}'" for i, column in enumerate(key))
        given = sa.func.json_table(document, sa.text(f"'$[*]' columns ({columns})")).table_valued(*names, name=name)
        values = [sa.func.unhex(one) if _is_binary(column) else one for one, column in zip(given.c, key, strict=True)]
        return given, [sa.type_coerce(value, column.type) for value, column in zip(values, key, strict=True)]

    def _keys_table(self, key: Expressions, parameter: str) -> tuple[sa.TableValuedAlias, Condition]:
        """The keys of a parameter as a table, and the condition that joins it to the table of the jobs."""
        given, values = self.keys_in_json(self.json_of_keys(key, parameter), key, "candidate")
        return given, sa.and_(*(column == value for column, value in zip(key, values, strict=True)))

    # --- finding and locking rows ------------------------------------------------------------------------

    def only_candidates(
        self, jobs: sa.Select[Any], key: Expressions, order: Expressions, index: str | None
    ) -> sa.Select[Any]:
        """Read the candidates as a table, in their order, and find each row by its primary key.

        InnoDB locks a row when it reads it, before a sort: `IN (800 keys) ORDER BY ... LIMIT 100 FOR UPDATE` locks 800
        rows. Joined in the order of the candidates, the LIMIT ends the reading, and 100 rows are locked
        (tests/conformance/test_locks.py counts them in performance_schema.data_locks).

        The index is forced, because a table that seems small is otherwise read whole, in its own order.
        """
        del order  # the candidates are in this order
        given, matches = self._keys_table(key, "claimjobs_candidates")
        return self.join_in_order(jobs, given.join(key[0].table, matches), index)

    def join_in_order(self, wanted: sa.Select[Any], join: sa.Join, index: str | None) -> sa.Select[Any]:
        """Read the left of a join first, in its order, and find the row on the right for each of its rows by `index`.

        On the left may be a subquery: then the candidates of `only_candidates` do not leave the server.
        FOR UPDATE OF locks the table that it names; a subquery is a plain read. Because of its window function the
        subquery is stored, and read in the order in which it was stored.
        """
        return wanted.select_from(join).prefix_with("STRAIGHT_JOIN").with_hint(join.right, _force(index))

    def restrict_to_keys(self, statement: Write, key: Expressions, index: str | None) -> Write:
        """Read the keys as a table, and find each row by the index.

        For `WHERE id IN (...)` the planner may choose another index and lock the rows that it reads there. Even with a
        forced index it may read all of a small table, and wait for rows that others have locked (both were seen;
        tests/conformance/test_locks.py). An UPDATE at READ COMMITTED has only the first problem: it does not wait for a
        row before it knows that it wants it. But in a join it locks the rows that its subqueries read.
        """
        if isinstance(statement, sa.Update):
            return self.by_key(statement.where(self.among_some(key, "claimjobs_keys")), index)
        given, matches = self._keys_table(key, "claimjobs_keys")
        if isinstance(statement, sa.Select):
            return self.join_in_order(statement, given.join(key[0].table, matches), index)
        return statement.where(matches).with_hint(_force(index), selectable=given, dialect_name="*")

    def by_key(self, statement: Write, index: str | None) -> Write:
        # InnoDB would lock other consumers' rows that it reads through another index.
        if isinstance(statement, sa.Select):
            return statement.with_hint(statement.get_final_froms()[0], _force(index))
        return statement.with_hint(_force(index), dialect_name="*")

    # --- writing -----------------------------------------------------------------------------------------

    delete = _StraightDelete

    def upsert(
        self,
        table: sa.Table,
        columns: Expressions,
        rows: sa.Select[Any],
        *,
        values: Mapping[sa.Column[Any], Any],
        guard: Condition,
    ) -> sa.Executable:
        """ON DUPLICATE KEY UPDATE has no WHERE: a row that does not meet the guard is written as it was.

        INSERT IGNORE would hide other errors too. At READ COMMITTED the rows that it reads are not locked.
        """
        key = next(iter(table.primary_key))
        written: list[tuple[str, Any]] = [
            (column.name, sa.func.if_(guard, value, column)) for column, value in values.items()
        ]
        insert = mysql.insert(table).from_select([column.name for column in columns], rows)
        return insert.on_duplicate_key_update(written or [(key.name, key)])


def _instant(text: str) -> datetime | str:
    """An invalid date stays text, as with the drivers."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


class MariaDB(MySQL):
    """MariaDB 10.6 and later.

    It has no FOR UPDATE OF (SQLAlchemy leaves the clause out by itself). That loses nothing: the table of candidates in
    phase 2 has no rows that could be locked.
    """

    errors = MariaDBErrors()
    sessions = MariaDBSessions()
    table_rules = MariaDBTableRules()
    inspection = MariaDBInspection()

    title = "MariaDB"
    # SKIP LOCKED and JSON_TABLE both came with 10.6.
    oldest = (10, 6)
    # Without FOR UPDATE OF, a locking read also locks the rows that its subqueries read.
    finds_and_locks_at_once = False
    has_lateral = False

    def readable(self, key: Expressions) -> Sequence[Condition]:
        return ()

    # Of a list of rows it finds none by a text with another character than ASCII, if the column's character set is not
    # Unicode: it does not convert the values of the list, as it does for one row, or for one column (10.11 was tried).

    def listed(self, key: Expressions, keys: sa.BindParameter[Any]) -> Condition:
        if not _is_unconverted(key):
            return super().listed(key, keys)
        type_ = WrittenKeys(_HERE, tuple(column.type for column in key))
        written = sa.bindparam(keys.key, keys.value, type_, callable_=keys.callable, literal_execute=True)
        return sa.tuple_(*key).bool_op("IN")(written)

    def among_some(self, key: Expressions, parameter: str) -> Condition:
        return self.among(key, parameter) if _is_unconverted(key) else super().among_some(key, parameter)


def _is_unconverted(key: Expressions) -> bool:
    collations = [getattr(stored_type(column.type, _HERE), "collation", None) or "utf8" for column in key]
    return len(key) > 1 and not all(collation.startswith("utf8") for collation in collations)
