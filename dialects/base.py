"""What a database can do, and the portable way of doing the rest.

A subclass holds only what differs, with the reason beside it. Everything here takes and returns
SQLAlchemy Core expressions; no module outside this folder knows which database it talks to.
"""

from __future__ import annotations

import contextlib
import operator
import os
import select
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, TypeVar

import sqlalchemy as sa

from claimjobs.dialects.lexis import Lexis
from claimjobs.dialects.listener import Listener

Write = TypeVar("Write", sa.Update, sa.Delete, sa.Select[Any])
Key = Any
"""A job's primary key: a value, or a tuple of values where the key has several columns."""
Lock = Any
"""An advisory lock: a number or a name."""


TIMED_OUT: Final = "statement timeout"
"""The kind of error after which `timed_out` is true."""


class Dialect:
    """The portable base. Facts are attributes; what must be written differently is a method."""

    title: ClassVar[str]
    """The database's name for people, in messages and reports only."""

    drivers: ClassVar[tuple[str, ...]]
    """SQLAlchemy's names of the drivers that claimjobs works with: it reads their error codes, and waits on their
    connections. The first one comes with claimjobs."""

    oldest: ClassVar[tuple[int, ...]]
    """The first version with everything a claim needs, SKIP LOCKED above all."""

    claims_in_one_statement: ClassVar[bool] = False
    """Find, lock and mark can be one statement: needs UPDATE ... RETURNING inside a CTE."""

    finds_and_locks_at_once: ClassVar[bool] = False
    """A SELECT can lock the rows of one table alone, in the order of a subquery: needs FOR UPDATE OF."""

    locks_in_order: ClassVar[bool] = False
    """`ORDER BY ... LIMIT n FOR UPDATE SKIP LOCKED` locks the first n that are free, and nothing that it sorts."""

    returns_what_it_writes: ClassVar[bool] = False
    """UPDATE and DELETE both have RETURNING, so a settle learns at once which jobs it reached."""

    skips_duplicates: ClassVar[bool] = False
    """INSERT can leave out the rows of which a given unique key is there already, and those alone."""

    copies: ClassVar[bool] = False
    """Rows can be sent as data, with no statement around them: `copyable` and `copy`."""

    joins_rows: ClassVar[int] = 0
    """Up to so many bytes rows are best inserted by one statement that holds them all; 0: as the driver does it."""

    needs_database: ClassVar[bool] = False
    """A connection may have none, and then no table is found."""

    indexes_end_in_the_key: ClassVar[bool] = False
    """Every index has the primary key behind its own columns, and is sorted by it."""

    primary: ClassVar[str | None] = None
    """The name of every primary key, where they have none of their own."""
    wakes: ClassVar[bool] = False
    """A session that waits for work can be called by the one that brings it (with `listener`, `call`, ...)."""

    interrupts: ClassVar[bool] = False
    """The call ends what a session does, after the commit. Else it is part of the transaction."""

    switches_autocommit_freely: ClassVar[bool] = False
    """Nothing is sent for it: the driver only leaves out BEGIN and COMMIT, which a single statement is spared then."""

    reads_that_lock: ClassVar[frozenset[str]] = frozenset()
    """Isolation levels at which a plain read locks what it reads."""

    isolation: ClassVar[str] = "READ COMMITTED"
    """The isolation level of every claim and settle: each statement sees what was committed before it."""

    transient: ClassVar[dict[Any, str]] = {}
    """Error codes after which the same transaction may succeed when run again, with the kind to count."""

    broken: ClassVar[dict[Any, str]] = {}
    """Error codes after which it may succeed on a new connection, perhaps to another server, with the kind to count."""

    missing_table: ClassVar[frozenset[Any]] = frozenset()
    bad_predicate: ClassVar[frozenset[Any]] = frozenset()
    bad_name: ClassVar[frozenset[Any]] = frozenset()
    """Codes of "nothing can be made under this name": too long, taken by something else, or none at all."""
    bad_row: ClassVar[frozenset[Any]] = frozenset()
    """Codes of "this row does not fit": too long, not null, out of range, a constraint."""
    duplicate: ClassVar[frozenset[Any]] = frozenset()
    """Those of them that mean a unique key that is there already."""

    exact_types: ClassVar[tuple[type[sa.types.TypeEngine[Any]], ...]] = (
        *(sa.Integer, sa.Numeric, sa.String, sa.Uuid, sa.Boolean),
        *(sa.LargeBinary, sa.types._Binary, sa.Date, sa.DateTime, sa.Time),
    )
    """Types of a key: what a driver reads of such a column is equal to what the column holds. tests/foreign/keys.py"""
    inexact_types: ClassVar[tuple[type[sa.types.TypeEngine[Any]], ...]] = (sa.Float,)
    """Those of them of which that is not so: a driver reads an approximate number as it is shown, shortened."""
    lexis: ClassVar[Lexis] = Lexis()
    """Where texts, names and comments end in what a user writes as SQL."""

    def __init__(self, driver: str = "") -> None:
        """`driver`: SQLAlchemy's name of the driver, for what only some of them can do."""
        self._driver = driver

    def error_code(self, error: BaseException) -> Any:
        """The server's (or driver's) code for this error, or None where there is none."""
        raise NotImplementedError

    def refuses_row(self, error: BaseException) -> bool:
        """Whether a write failed because of what a row holds: another row may be written all the same."""
        return self.error_code(error) in self.bad_row

    def refusing_index(self, error: BaseException) -> str | None:
        """The unique index that an error of `duplicate` is about, where that is told."""
        del error
        return None

    def missing_name(self, error: BaseException) -> str | None:
        """The name, without its schema, of the table that an error of `missing_table` is about."""
        raise NotImplementedError

    def transient_kind(self, error: BaseException) -> str | None:
        """`deadlock`, `lock timeout` or `serialization` for an error worth another try, else None."""
        if self.timed_out(error):
            return TIMED_OUT
        code = self.error_code(error)
        return None if code is None else self.transient.get(code)

    def timed_out(self, error: BaseException) -> bool:
        """Whether the server ended a statement because it took longer than a setting of the server allows."""
        del error
        return False

    def broken_kind(self, error: BaseException) -> str | None:
        """`connection lost` and the like for an error worth another connection, else None."""
        kind = self.broken.get(self.error_code(error))
        return kind or ("connection lost" if getattr(error, "connection_invalidated", False) else None)

    def connect_arguments(self, driver: str, seconds: int) -> dict[str, Any]:
        """What makes a driver give up on a connection that is not there after so many seconds."""
        del driver
        return {"connect_timeout": seconds}

    def on_connect(self, driver_connection: Any) -> None:
        """Called with each new connection of the driver."""

    def prepare_nothing_if_pooled(self, driver_connection: Any) -> None:
        """Where a driver prepares statements by itself: not on a connection whose session changes under it."""

    def forbids_transactions(self, error: BaseException) -> bool:
        """Whether a connection failed because a pooler gives each statement another session."""
        del error
        return False

    def connect_kind(self, error: BaseException) -> str:
        """What kind of trouble it is that a connection could not be had."""
        return self.broken.get(self.error_code(error), "server unavailable")

    def refused(self, error: BaseException) -> bool:
        """Whether a connection failed because the server does not want this user, password or address."""
        raise NotImplementedError

    def is_elsewhere(self, error: BaseException) -> bool:
        """Whether SQLAlchemy refused a connection because its server is not the database that the URL names."""
        del error
        return False

    def unnameable(self, name: str) -> str | None:
        """Why no table, index or type can have this name; None: it can."""
        return "it has more than 63 bytes" if len(name.encode()) > 63 else None

    def no_such_database(self, error: BaseException) -> bool:
        """Whether a connection failed because the server has no database of this name."""
        raise NotImplementedError

    def later(self, now: sa.ColumnElement[Any], seconds: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """The instant `seconds` after `now`, computed by the database."""
        raise NotImplementedError

    def only_candidates(
        self,
        jobs: sa.Select[Any],
        key: Sequence[sa.Column[Any]],
        order: Sequence[sa.ColumnElement[Any]],
        index: str | None,
    ) -> sa.Select[Any]:
        """Restrict a select to the candidates (parameter `candidates`), in their order; `index` as for `reach`.

        Portable: an IN list, sorted again. A LIMIT on top must stop the locking as well.
        """
        del index
        return jobs.where(self.among(key, "claimjobs_candidates")).order_by(*order)

    def among(self, key: Sequence[sa.Column[Any]], parameter: str) -> sa.ColumnElement[bool]:
        """`key IN (the values of this parameter)`, for one key column or several."""
        values: sa.BindParameter[Any] = sa.bindparam(parameter, expanding=True)
        return key[0].in_(values) if len(key) == 1 else sa.tuple_(*key).in_(values)

    def as_filter(self, predicate: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        """A predicate on rows that are found by their keys: by no index of its own."""
        return predicate

    def readable(self, key: Sequence[sa.Column[Any]]) -> Sequence[sa.ColumnElement[bool]]:
        """The predicates of a row whose key Python can hold; none where it can hold all that the types can."""
        del key
        return ()

    def fetched(self, cursor: Any) -> Sequence[Any]:
        """All rows that a driver's cursor has. A row of which it cannot make all values is `PartlyRead`."""
        rows: Sequence[Any] = cursor.fetchall()
        return rows

    # --- sessions: what an owner does with its connection ----------------------------------------------

    def settings(self, lock_timeout: float) -> Sequence[str]:
        """What a new connection of an owner is set to. `lock_timeout` is in seconds.

        Without a bound a settle could wait for a stranger's row lock until the owner's lease is over.
        """
        raise NotImplementedError

    def unfit_setting(self, connection: sa.Connection) -> tuple[str, str] | None:
        """A setting of a session with which our statements fail, or read too little; and the SQL that changes it.

        For a session that is not ours to set; in one that is ours `settings` takes care of it.
        """
        del connection
        return None

    def sessions_are_ours(self, connection: sa.Connection) -> bool:
        """Whether this session, and a lock that it takes, is ours alone and seen by every other session.

        Not so behind a pooler (who answers is not who greeted us), nor in a group with several primaries.
        """
        raise NotImplementedError

    def try_session_lock(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Take the session lock of this number, if it is free: true or false at once, until the session ends."""
        raise NotImplementedError

    def try_named_lock(self, name: str) -> sa.ColumnElement[bool]:
        """The same for a lock with a name of its own, apart from the numbered ones."""
        raise NotImplementedError

    def lock_holder(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        """The session that holds the lock of this number; NULL where none does."""
        raise NotImplementedError

    # --- advisory locks on keys --------------------------------------------------------------------------

    def home(self, table: sa.Table) -> sa.Executable:
        """Asks in which schema, or database, this server finds a table: a name may stand for one of several."""
        raise NotImplementedError

    def lock_of(self, table: str, key: str) -> Lock:
        """The lock on a key, given as text, of the table with this full name: the same for every session.

        Two keys may share one, then one of them waits for the other; two tables hardly do.
        """
        raise NotImplementedError

    def each_lock(self) -> sa.ColumnElement[Any]:
        """The column of a table whose rows are the parameter `locks`, and are read in its order, once."""
        raise NotImplementedError

    def locks(self, locks: Sequence[Lock]) -> Any:
        """Locks as the value that `each_lock` expects in its parameter."""
        return list(locks)

    def try_lock(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Take this lock for the session, if it is free: true or false at once. Taken twice it is held twice."""
        raise NotImplementedError

    def unlock(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Let go of it, once."""
        raise NotImplementedError

    # --- ending sessions ---------------------------------------------------------------------------------

    def end_session(self, session: int) -> sa.Executable:
        """End another session of the same user: its transaction is rolled back, its locks are free."""
        raise NotImplementedError

    def server_since(self, connection: sa.Connection) -> datetime:
        """When this server was started, by its own clock, give or take two seconds."""
        raise NotImplementedError

    def cut(self, driver_connection: Any) -> None:
        """Break a connection that another thread waits for, so that it stops waiting."""
        with (
            contextlib.suppress(OSError, AttributeError),
            socket.socket(fileno=os.dup(self.descriptor(driver_connection))) as line,
        ):
            line.shutdown(socket.SHUT_RDWR)

    def is_quiet(self, driver_connection: Any) -> bool:
        """Whether it is known that the server has not said a word since its last answer: that it ends the session."""
        try:
            line = select.poll()
            line.register(self.descriptor(driver_connection), select.POLLIN)
            return not line.poll(0)
        except (AttributeError, OSError, ValueError):  # no such descriptor, or no poll (Windows)
            return False

    def descriptor(self, driver_connection: Any) -> int:
        """The file descriptor of a driver's connection."""
        return int(driver_connection.fileno())

    # --- waiting to be called: for those that `wakes` ----------------------------------------------------

    def listener(self, connection: sa.Connection) -> Listener:
        """What the session of a connection waits with."""
        raise NotImplementedError

    def listen(self, owner: int) -> sa.Executable | None:
        """What a session sends once, to hear when this owner is called; None: it need not."""
        del owner
        return None

    def call(self, owner: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
        """Call an owner when this transaction is committed. Where it `interrupts`: the session that is to be
        interrupted then, or NULL."""
        raise NotImplementedError

    def interrupt(self, session: int) -> sa.Executable:
        """End the statement that another session of the same user sleeps in: one of those within `committing`."""
        raise NotImplementedError

    @contextlib.contextmanager
    def committing(self, connection: sa.Connection) -> Iterator[None]:
        """Let each statement commit itself for a `with` block, which spares a round trip each. Where a call
        `interrupts`, it does so in that block only.

        A transaction of SQLAlchemy's goes around it. If the session cannot be set back it is ended.
        """
        raise NotImplementedError
        yield

    # --- which tables are accepted ---------------------------------------------------------------------------

    def unclaimable(self, connection: sa.Connection, table: sa.Table) -> tuple[str, str] | None:
        """Why rows of this table cannot be locked and changed, and the next step; None: they can."""
        raise NotImplementedError

    def child(self, connection: sa.Connection, table: sa.Table) -> str | None:
        """A table whose rows are read with those of this one, though it has keys of its own; None: there is none."""
        del connection, table
        return None

    def partition_columns(self, connection: sa.Connection, table: sa.Table) -> Collection[str]:
        """The columns that decide in which partition of its table a row is."""
        raise NotImplementedError

    def finds_again(self, type_: sa.types.TypeEngine[Any]) -> bool:
        """Whether a row is found by the value that was read of a column of this type, as it was reflected."""
        return isinstance(type_, self.exact_types) and not isinstance(type_, self.inexact_types)

    # --- writing ---------------------------------------------------------------------------------------

    def upsert(
        self,
        table: sa.Table,
        columns: Sequence[sa.Column[Any]],
        rows: sa.Select[Any],
        *,
        values: Mapping[sa.Column[Any], Any],
        guard: sa.ColumnElement[bool],
    ) -> sa.Executable:
        """Insert `rows` into these columns of a table. A row whose primary key is there already is left as it is.

        If there are `values`, they are written into it, in their order, where the `guard` holds for it as it is now.
        """
        raise NotImplementedError

    def key_column(self, name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
        """A column of a key whose values come from another table."""
        return sa.Column(name, type_, primary_key=True, autoincrement=False)

    def encoded(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """A column in the form that costs a driver least to read. `decoder` makes a value of it."""
        return column

    def decoder(self, column: sa.Column[Any]) -> Callable[[Any], Any] | None:
        """What makes of a lean value what the driver would have given. None: it is the same."""
        del column
        return None

    def joins_columns(self, column: sa.Column[Any]) -> bool:
        """Whether several columns such as this one cost a driver less to read as one text."""
        del column
        return False

    def joined(self, columns: Sequence[sa.ColumnElement[Any]]) -> sa.ColumnElement[str]:
        """Such columns as one text: their values with commas between them, and nothing for NULL."""
        raise NotImplementedError

    def joined_decoder(self, column: sa.Column[Any]) -> Callable[[str], Any]:
        """What makes of the text of a value what the driver would have given."""
        raise NotImplementedError

    def numbered(self, rows: sa.CTE, place: str) -> sa.FromClause:
        """A CTE of a few rows, with the place of each in a column of this name; a planner may think they are many."""
        return sa.select(*rows.c, sa.func.row_number().over().label(place)).subquery("few")

    def is_one_of(self, column: sa.Column[Any], rows: sa.CTE) -> sa.ColumnElement[bool]:
        """Whether a column has one of the values of such a CTE, which has no other column."""
        return column.in_(sa.select(*rows.c))

    def array(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """All values of a column of a CTE, as one value."""
        return sa.func.array(sa.select(column).scalar_subquery(), type_=sa.ARRAY(column.type))

    def through(self, rows: sa.Select[Any], column: sa.Column[Any], index: str | None) -> sa.Select[Any]:
        """Let rows that are all alike in this column be found through its index (None: the primary key), unsorted.

        Portable: in the order of the column, which only the index gives without a sort. A planner that expects many
        such rows would else read the table from its head, where after a while there are none.
        """
        del index
        return rows.order_by(column)

    def collations(self, connection: sa.Connection, table: sa.Table) -> Mapping[str, str]:
        """The collations of a table's texts, where a text must not be compared with one of another collation."""
        del connection, table
        return {}

    def by_key(self, statement: Write, index: str | None) -> Write:
        """Let a statement find its rows through this index of theirs; None: the primary key."""
        del index
        return statement

    def delete(self, table: sa.Table) -> sa.Delete:
        """A DELETE, for `reach`."""
        return sa.delete(table)

    def reach(self, statement: Write, key: Sequence[sa.Column[Any]], index: str | None) -> Write:
        """Restrict a statement about one table to the rows of parameter `keys`, and lock no others on the way.

        They are found through this index, whose first columns are the key's; None: the primary key.
        """
        del index
        return statement.where(self.among(key, "claimjobs_keys"))

    def lock_in_order(self, wanted: sa.Select[Any], join: sa.Join, limit: Any, index: str | None) -> sa.Select[Any]:
        """Walk along numbered rows, the left of a join; look up what is `wanted` of its right, and lock the first
        `limit` rows there that nobody else has locked.

        `index` as for `reach`. Needs `finds_and_locks_at_once`.
        """
        raise NotImplementedError

    def after_values(
        self, columns: Sequence[sa.Column[Any]], values: Sequence[Any], *, falling: bool = False
    ) -> sa.ColumnElement[bool]:
        """`(columns) > (values)`, or `<` where they fall, so that an index over the columns is entered there.

        Portable: written out, for not every database enters an index by a comparison of rows.
        """
        further = operator.lt if falling else operator.gt
        larger = [further(column, value) for column, value in zip(columns, values, strict=True)]
        same = [column == value for column, value in zip(columns, values, strict=True)]
        return sa.or_(*(sa.and_(*same[:place], larger[place]) for place in range(len(larger))))

    def insert_unless_there(self, table: sa.Table, columns: Sequence[sa.Column[Any]]) -> sa.Insert:
        """An INSERT that leaves out rows of which these columns' values are there; needs `skips_duplicates`.

        What another transaction has inserted and not committed is waited for.
        """
        raise NotImplementedError

    def copyable(self, connection: sa.Connection, table: sa.Table) -> Mapping[str, Callable[[Iterable[Any]], bool]]:
        """The columns, by their keys, that `copy` writes as an INSERT does; each with which of their values it does.

        The values are as the column's type writes them. Needs `copies`.
        """
        raise NotImplementedError

    def copy(
        self, connection: sa.Connection, table: sa.Table, keys: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        """Send rows, as values of these columns, into the transaction of `connection`: all of them, or an error."""
        raise NotImplementedError


__all__ = ["Dialect", "Key", "Listener", "Lock", "Write"]
