"""What a server says of its tables (`TableRules`), and of itself to a DBA: plans, row locks, settings, sessions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol

import sqlalchemy as sa

Verdict = Literal["ok", "not known", "warning", "will not work"]
VERDICTS: Final[tuple[Verdict, ...]] = ("ok", "not known", "warning", "will not work")
"""From the best to the worst."""


@dataclass(frozen=True)
class Finding:
    """One thing that `explain` has checked, and what to do about it."""

    check: str
    """What was checked, in one or two words that stay the same: "index", "row locks"."""
    verdict: Verdict
    says: str
    """What was found, and the next step."""
    fix: tuple[str, ...] = ()
    """SQL that removes the cause. It can be run as it is."""


class NotShown(Exception):
    """The server does not show something, without an error. The text says why."""


@dataclass(frozen=True)
class TableRead:
    """How a plan reads one table."""

    table: str
    """Its name, or on Postgres that of a partition."""
    index: str | None
    """The index through which rows are found; None: the table itself is read."""
    is_scan: bool
    """Whether all of it is read. On Postgres only if that costs much: of a small one no index is used."""


@dataclass(frozen=True)
class Plan:
    """How the database would run a statement."""

    reads: tuple[TableRead, ...]
    """The reads of real tables only: no subqueries, no lists of keys."""
    sorts: bool
    """Whether rows of a real table are sorted before the statement has taken what it wants."""
    text: str
    """The plan as the database writes it."""


class Inspection(Protocol):
    """What `explain` reads. Each method sends one statement or a few.

    A server may refuse to show something to this user. Then a method raises the driver's error, and the caller says so.
    """

    limits_transaction: ClassVar[bool] = False
    """Whether `limit_time` counts until the transaction ends. Otherwise it counts until the session ends."""
    time_limit: ClassVar[str]
    """The statement of `limit_time`, of the parameters `seconds`, `whole` (seconds, at least 1) and `ms`."""
    snapshots: ClassVar[sa.TextClause]
    """Asks who keeps old versions of rows from being removed, the oldest first: `who` (a session, a prepared
    transaction, a replication slot), and for how many `seconds`; NULL: that is not known."""
    hidden: ClassVar[sa.TextClause | None] = None
    """Asks why that may be incomplete; NULL if it is complete."""

    def limit_time(self, connection: sa.Connection, seconds: float) -> None:
        """End each later statement that takes longer."""
        whole, ms = max(1, round(seconds)), max(1, round(seconds * 1000))
        connection.exec_driver_sql(self.time_limit.format(seconds=seconds, whole=whole, ms=ms)).close()

    def plan(self, connection: sa.Connection, sql: str, parameters: Any) -> Plan:
        """The plan of a statement, given as the driver gets it. The statement is not run."""

    def row_locks(self, connection: sa.Connection, table: sa.Table) -> int:
        """How many rows of the table this transaction has locked or written."""

    def settings(self, connection: sa.Connection) -> Iterator[Finding]:
        """Settings of the server that matter to claims."""
        yield from ()


# --- tables ----------------------------------------------------------------------------------------------------

LOCK_TIMEOUT: Final = 2
"""Seconds for which DDL waits for its lock. All statements that come later wait behind it."""


class SchemaStep(NamedTuple):
    """A change of the tables of one kind that claimjobs makes, from one version of their schema to a later one."""

    version: int
    """The version after this step. No other step has it."""
    kind: str
    """"jobs", "side-car", or the name of a table that queues share."""
    statement: str
    """One statement, with `{table}` in place of the table's name."""


@dataclass(frozen=True)
class Location:
    """Where a server has a table, and by which name: a program may name one table in several ways."""

    schema: str
    name: str
    is_default: bool
    """Whether a name without a schema means this schema first."""

    @property
    def metadata(self) -> sa.MetaData:
        """New metadata, for tables that are described in the same schema."""
        return sa.MetaData(schema=None if self.is_default else self.schema)

    def full_name(self, table: sa.Table) -> str:
        """The name of this table, as the server spells it, with its schema if a program does not find it without."""
        schema = table.schema or (None if self.is_default else self.schema)
        return self.name if schema is None else f"{schema}.{self.name}"


class TableRules(Protocol):
    """Questions about a table before anything is claimed from it, and what is needed to alter one in use."""

    steps: ClassVar[tuple[SchemaStep, ...]] = ()
    """The steps from version 1 of the schema to that of today, in their order. The versions are those of all databases.
    """
    locks: ClassVar[Mapping[str, str]] = {}
    """What a statement of DDL locks, by the words that it begins with."""
    exact_types: ClassVar[tuple[type[sa.types.TypeEngine[Any]], ...]] = (
        *(sa.Integer, sa.Numeric, sa.String, sa.Uuid, sa.Boolean),
        *(sa.LargeBinary, sa.types._Binary, sa.Date, sa.DateTime, sa.Time),
    )
    """Types whose values, as a driver reads them, are equal to the stored ones. tests/foreign/keys.py proves it."""
    inexact_types: ClassVar[tuple[type[sa.types.TypeEngine[Any]], ...]] = (sa.Float,)
    """Exceptions among them: a server sends an approximate number with fewer digits than it stores."""
    names_have_case: ClassVar[bool] = True
    """Whether `Status` and `status` are two columns."""
    longest: ClassVar[int] = 63
    """The longest name of a table, an index or a type."""
    counted_in: ClassVar[str] = "bytes"
    longest_index: ClassVar[int] = 3072
    """The bytes of an index at most, where `sizes_of` says what columns take."""
    last_character: ClassVar[str] = "\U0010ffff"
    """The last one that a name can have."""

    # Each asks about the table that `named` names. None: a database has no such thing.
    location_of: ClassVar[sa.TextClause]
    """The schema, the name, and whether the schema is the default."""
    holder_of: ClassVar[sa.TextClause]
    comment_of: ClassVar[sa.TextClause | None] = None
    """None: as SQLAlchemy asks."""
    unused_of: ClassVar[sa.TextClause]
    inexact_of: ClassVar[sa.TextClause]
    unusual_of: ClassVar[sa.TextClause]
    sizes_of: ClassVar[sa.TextClause | None] = None
    """The bytes that each column takes at most in an index, where these are bounded."""
    child_of: ClassVar[sa.TextClause | None] = None
    partitioned_by: ClassVar[sa.TextClause]
    updated_of: ClassVar[sa.TextClause | None] = None
    collations_of: ClassVar[sa.TextClause | None] = None
    named_with_words: ClassVar[sa.TextClause]
    """The names of all tables of the connection's schema whose comments contain the parameter `words`."""

    def named(self, table: sa.Table) -> dict[str, Any]:
        """The parameters that name a table."""

    def _asked(self, connection: sa.Connection, statement: sa.TextClause | None, table: sa.Table) -> Sequence[Any]:
        return () if statement is None else connection.execute(statement, self.named(table)).all()

    def finds_again(self, type_: sa.types.TypeEngine[Any]) -> bool:
        """Whether a value that was read from a column of this reflected type finds its row."""
        return isinstance(type_, self.exact_types) and not isinstance(type_, self.inexact_types)

    def comment(self, inspector: sa.Inspector, table: sa.Table) -> str | None:
        """The table's comment in the database. Raises NoSuchTableError."""
        connection: Any = inspector.bind
        found: str | None = next((row[0] for row in self._asked(connection, self.comment_of, table)), None)
        return inspector.get_table_comment(table.name, schema=table.schema)["text"] if found is None else found

    def changed_by_each_update(self, connection: sa.Connection, table: sa.Table) -> Mapping[str, str]:
        """The columns that the server writes at each UPDATE of their row, each with the clause that says so."""
        return {row[0]: row[1].upper() for row in self._asked(connection, self.updated_of, table)}

    def depends_on_zone(self, column: Any) -> bool:
        """Whether what is written into this reflected column, or read of it, depends on the session's time zone."""

    def length(self, name: str) -> int:
        """How long a name is."""
        return len(name.encode() if self.counted_in == "bytes" else name)

    def unnameable(self, name: str) -> str | None:
        """Why no table, index or type can have this name; None if it can."""
        if strange := [character for character in name if character > self.last_character]:
            return f"no name can have the character {strange[0]!r}"
        return f"it has more than {self.longest} {self.counted_in}" if self.length(name) > self.longest else None

    def locate(self, connection: sa.Connection, table: sa.Table) -> Location:
        """Where the server has this table, which is there."""
        [(schema, name, is_default)] = self._asked(connection, self.location_of, table)
        return Location(schema, name, bool(is_default))

    def unclaimable(self, connection: sa.Connection, table: sa.Table) -> tuple[str, str] | None:
        """Why rows of this table cannot be locked and changed, and the next step; None if they can."""

    def unused_indexes(self, connection: sa.Connection, table: sa.Table) -> Collection[str]:
        """The names of indexes of this table that no statement can use, although they are there."""
        return [row[0] for row in self._asked(connection, self.unused_of, table)]

    def inexact_indexes(self, connection: sa.Connection, table: sa.Table) -> Collection[str]:
        """The names of unique indexes that do not refuse a row by the values of their columns when it is inserted."""
        return [row[0] for row in self._asked(connection, self.inexact_of, table)]

    def unusual_parts(self, connection: sa.Connection, table: sa.Table) -> Mapping[Any, bool]:
        """The columns of indexes, by the names of both, that do not rise. True: it falls, and its NULLs are where an
        order has them. False: it gives no order, or not that of all rows.
        """
        return {(row[0], row[1]): bool(row[2]) for row in self._asked(connection, self.unusual_of, table)}

    def no_index(self, connection: sa.Connection, table: sa.Table, names: Collection[str]) -> str | None:
        """Why no index can have these columns, and the next step; None: one can."""
        sizes = {row[0]: row[1] for row in self._asked(connection, self.sizes_of, table) if row[0] in names}
        if sum(sizes.values()) <= self.longest_index:
            return None
        return (
            f"no index can have the columns {', '.join(names)} (at most {self.longest_index:,} bytes, and no TEXT, "
            f"BLOB or JSON): make {max(sizes, key=sizes.__getitem__)!r} a VARCHAR of fewer characters"
        )

    def child(self, connection: sa.Connection, table: sa.Table) -> str | None:
        """A table with keys of its own whose rows are read together with those of this one; None if there is none."""
        return next((row[0] for row in self._asked(connection, self.child_of, table)), None)

    def partition_columns(self, connection: sa.Connection, table: sa.Table) -> Collection[str]:
        """The columns that decide in which partition of its table a row is."""
        return [row[0] for row in self._asked(connection, self.partitioned_by, table)]

    def collations(self, connection: sa.Connection, table: sa.Table) -> Mapping[str, str]:
        """The collations of the table's texts, if the database refuses to compare texts of different collations."""
        return {row[0]: row[1] for row in self._asked(connection, self.collations_of, table)}

    def limited(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """In this block a statement waits LOCK_TIMEOUT seconds for its lock at most. The session is as it was after it.

        It is within a transaction.
        """

    def add_column(self, connection: sa.Connection, table: str, name: str, column: str) -> list[str]:
        """The statements that add a column, as in a CREATE TABLE, without a copy of the table. Names are given as
        statements write them.
        """
        del connection, name
        return [f"ALTER TABLE {table} ADD COLUMN {column};"]

    def lock_holder(self, connection: sa.Connection, table: sa.Table) -> str | None:
        """A session that has a lock on this table, for a message; None: the server shows none to this user."""
        return next((row[0] for row in self._asked(connection, self.holder_of, table)), None)

    # --- a trigger that wakes idle owners, whoever inserts: where `Dialect.no_wake_trigger` is None --------------

    # Names are given as statements write them.

    def make_trigger(self, table: str, claims: str, owners: str) -> str:
        """The statement that makes the trigger, if it is not there. `claims`: the table with the claims of this
        queue. `owners`: the table of owners, beside that.
        """
        raise LookupError("this database has no such trigger")

    def drop_trigger(self, table: str) -> str:
        """The statement that drops the trigger, if it is there."""
        raise LookupError("this database has no such trigger")

    def has_trigger(self, table: str) -> sa.ColumnElement[bool]:
        """Whether the table has the trigger, and it is enabled."""
        raise LookupError("this database has no such trigger")
