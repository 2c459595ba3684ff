"""What a database can do, and the portable way of doing the rest.

A subclass holds only what differs, with the reason beside it. Everything here takes and returns SQLAlchemy Core
expressions; no module outside this folder knows which database it talks to.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, ClassVar, TypeVar, cast

import sqlalchemy as sa

from claimjobs.dialects.error_codes import ErrorCodes
from claimjobs.dialects.inspection import Inspection, TableRules
from claimjobs.dialects.lexis import Lexis
from claimjobs.dialects.sessions import ISOLATION, Sessions

Write = TypeVar("Write", sa.Update, sa.Delete, sa.Select[Any])
Expression = sa.ColumnElement[Any]
Expressions = Sequence[sa.ColumnElement[Any]]
Condition = sa.ColumnElement[bool]
Key = Any
"""A job's primary key: a value, or a tuple of values if the key has several columns."""


class Dialect:
    """The portable base. Facts are attributes; what must be written differently is a method.

    What is not about the text of statements is in parts of its own: `errors`, `sessions`, `table_rules`, `inspection`.
    """

    errors: ClassVar[ErrorCodes]
    sessions: ClassVar[Sessions]
    table_rules: ClassVar[TableRules]
    inspection: ClassVar[Inspection]

    title: ClassVar[str]
    """The database's name for people, in messages and reports only."""
    drivers: ClassVar[tuple[str, ...]]
    """SQLAlchemy's names of the drivers that claimjobs works with: it reads their error codes, and waits on their
    connections. The first one comes with claimjobs."""
    oldest: ClassVar[tuple[int, ...]]
    """The first version with everything a claim needs, SKIP LOCKED above all."""
    claims_in_one_statement: ClassVar[bool] = False
    """Find, lock and mark can be one statement: it needs UPDATE ... RETURNING inside a CTE."""
    has_lateral: ClassVar[bool] = False
    """A subquery in FROM can name tables before it: LATERAL, also with a LIMIT."""
    finds_and_locks_at_once: ClassVar[bool] = False
    """One SELECT can join candidates to the table and lock only the table's rows, in the candidates' order. It needs
    FOR UPDATE OF."""
    locks_in_order: ClassVar[bool] = False
    """`ORDER BY ... LIMIT n FOR UPDATE SKIP LOCKED` locks the first n unlocked rows, and no other row that it sorts."""
    compares_rows: ClassVar[bool] = False
    """A comparison of rows, `(a, b) > (1, 2)`, is the place in an index where the search begins."""
    guesses_owners: ClassVar[bool] = False
    """In a table that is not analyzed the planner expects a row or two of any owner: it would use the index of owners,
    and compare each row with all keys. It uses no index for IS TRUE."""
    reads_ranges_in_order: ClassVar[bool] = True
    """Ranges of an index that are joined by OR are read as such, in the order of the index."""
    returns_what_it_writes: ClassVar[bool] = False
    """UPDATE and DELETE both have RETURNING, also in a CTE: one statement can settle a batch and claim the next one."""
    skips_duplicates: ClassVar[bool] = False
    """INSERT can leave out the rows that exist by a given unique key, and no other rows."""
    joins_rows: ClassVar[int] = 0
    """One INSERT statement holds all rows, up to so many bytes; 0: the driver's own way is faster."""
    holds_nul: ClassVar[bool] = True
    """A text may have a NUL character."""
    needs_database: ClassVar[bool] = False
    """A connection may have no database, and then it finds no table."""
    indexes_end_in_the_key: ClassVar[bool] = False
    """Every index has the primary key behind its own columns, and is sorted by it."""
    changes_timestamps: ClassVar[bool] = False
    """Every update sets the first TIMESTAMP of a table anew, unless it has a default."""
    primary: ClassVar[str | None] = None
    """The name of every primary key, if the database names them all alike."""
    no_wake_trigger: ClassVar[str | None]
    """Why no trigger can wake owners at each INSERT of any program; None: one can, `TableRules.make_trigger`."""
    interrupts: ClassVar[bool] = False
    """Waking an owner ends the statement that it sleeps in, after the commit. Else it is part of the transaction."""
    switches_autocommit_freely: ClassVar[bool] = False
    """The driver switches autocommit without a statement, so a single statement needs no BEGIN and COMMIT."""
    pipelines: ClassVar[bool] = False
    """The driver can send several statements before it reads the first answer: see `Sessions.pipeline`. If the session
    is in autocommit, they are one transaction, and each has a snapshot of its own."""
    is_embedded: ClassVar[bool] = False
    """Whether the embedded server is one of these."""
    isolation: ClassVar[str] = ISOLATION
    reads_that_lock: ClassVar[frozenset[str]] = frozenset()
    """Isolation levels at which a plain read locks the rows that it reads."""
    lexis: ClassVar[Lexis] = Lexis()
    """How strings, names and comments are written in a user's SQL."""

    def __init__(self, driver: str = "") -> None:
        """`driver`: SQLAlchemy's name of the driver, for what only some drivers can do."""
        self._driver = driver

    # --- conditions --------------------------------------------------------------------------------------

    def later(self, now: Expression, seconds: Expression) -> Expression:
        """The instant `seconds` after `now`, computed by the database."""
        raise NotImplementedError

    def among(self, key: Expressions, parameter: str) -> Condition:
        """`key IN (the values of this parameter)`, for one key column or several."""
        return self.listed(key, sa.bindparam(parameter, expanding=True))

    def listed(self, key: Expressions, keys: sa.BindParameter[Any]) -> Condition:
        """`key IN (keys)`, as a list of values; its negation is NOT IN."""
        return key[0].in_(keys) if len(key) == 1 else sa.tuple_(*key).in_(keys)

    def among_some(self, key: Expressions, parameter: str) -> Condition:
        """As `among`, for at least one value."""
        return self.among(key, parameter)

    def as_filter(self, predicate: Condition) -> Condition:
        """A predicate on rows that are found by their keys, written so that the planner uses no index for it."""
        return predicate.is_(sa.true()) if self.guesses_owners else predicate

    def after_values(self, columns: Expressions, values: Sequence[Any], *, falling: bool = False) -> Condition:
        """`(columns) > (values)`, or `<` if they fall, so that the search in an index over the columns begins there.

        Portable: written with AND and OR. Where the database `compares_rows`, every page would read the index from its
        beginning so.
        """
        further = operator.lt if falling else operator.gt
        if self.compares_rows:
            pairs = zip(values, columns, strict=True)
            given = [one if isinstance(one, sa.ColumnElement) else sa.literal(one, to.type) for one, to in pairs]
            return sa.tuple_(*columns) < sa.tuple_(*given) if falling else sa.tuple_(*columns) > sa.tuple_(*given)
        larger = [further(column, value) for column, value in zip(columns, values, strict=True)]
        same = [column == value for column, value in zip(columns, values, strict=True)]
        return sa.or_(*(sa.and_(*same[:index], larger[index]) for index in range(len(larger))))

    def as_compared(self, column: Expression) -> Expression:
        """A column as ORDER BY needs it, so that it sorts as `<` and `>` compare it."""
        return column

    def with_values(self, columns: Expressions, values: Expressions) -> Condition:
        """`(columns) = (values)` for a search through an index that has the rows of these values in order.

        After `=` the planner of a database that `compares_rows` takes the columns for constants, and may read an index
        of the rest of the order. If it believes that most rows have the values, and few have, it reads the whole table
        so (0.4 s for 3,000,000 rows).
        """
        if not self.compares_rows:
            return sa.and_(*(column == value for column, value in zip(columns, values, strict=True)))
        one, given = (columns[0], values[0]) if len(columns) == 1 else (sa.tuple_(*columns), sa.tuple_(*values))
        return sa.and_(one >= given, one <= given)

    # --- how rows are read -------------------------------------------------------------------------------

    def encoded(self, column: Expression) -> Expression:
        """A column in a form that the driver reads faster; `decoder` makes its value."""
        return column

    def decoder(self, column: sa.Column[Any]) -> Callable[[Any], Any] | None:
        """What makes the value of a column from what `encoded` returns. None: that is the column as it is."""
        return None

    def from_text(self, column: sa.Column[Any]) -> Callable[[str], Any] | None:
        """What makes the value of a column from its text, if the driver takes longer for the value than for a text.
        None: the column is read as it is."""
        return None

    def joined(self, columns: Expressions) -> sa.ColumnElement[str]:
        """Such columns as one text: their values with commas between them, and an empty value for NULL."""
        raise NotImplementedError

    def readable(self, key: Expressions) -> Sequence[Condition]:
        """The predicates of a row whose key Python can hold; none if it can hold all values of these types."""
        return ()

    def fetched(self, cursor: Any) -> Sequence[Any]:
        """All rows of a driver's cursor. A row with a value that Python cannot hold is a `PartlyRead`."""
        return cast("Sequence[Any]", cursor.fetchall())

    # --- the rows of a CTE -------------------------------------------------------------------------------

    # They need `claims_in_one_statement`. For a CTE whose LIMIT is a parameter the planner expects a tenth of the
    # table, and reads all of that for a hash join (with 20,000 waiting jobs and a batch of 100: 4 ms instead of 0.4).
    # For an array it expects ten rows.

    def numbered(self, rows: sa.CTE, name: str) -> sa.FromClause:
        """A CTE of a few rows, with the number of each in a column of this name."""
        names = [sa.column(column.name, column.type) for column in rows.c]
        few = sa.func.unnest(*map(self.array, rows.c)).table_valued(*names, with_ordinality=name, name="few")
        return few.render_derived()

    def array(self, column: Expression) -> Expression:
        """All values of a column of a CTE, as one value."""
        return sa.func.array(sa.select(column).scalar_subquery(), type_=self.array_type(column))

    def array_type(self, column: Expression) -> sa.ARRAY[Any]:
        """The type of an array of values of a column, which cuts none of them."""
        return sa.ARRAY(column.type)

    # --- keys as JSON ------------------------------------------------------------------------------------

    def json_of_keys(self, key: Expressions, parameter: str) -> Expression:
        """The keys of this parameter as one JSON document."""
        raise NotImplementedError

    def json_of_rows(self, key: Expressions) -> Expression:
        """The keys of all rows of a query as one JSON document, where the database `pipelines`."""
        raise NotImplementedError

    def keys_in_json(self, document: sa.Column[Any], key: Expressions) -> tuple[sa.FromClause, Expressions]:
        """The keys in a column of such documents: a table with a row for each, and its expressions for `key`."""
        raise NotImplementedError

    def keys_listed(self, document: sa.Column[Any], key: Expressions, predicate: Condition) -> sa.Select[Any]:
        """All keys in the documents of the rows that meet a predicate."""
        listed, values = self.keys_in_json(document, key)
        return sa.select(*values).select_from(document.table.join(listed, sa.true())).where(predicate)

    # --- finding and locking rows ------------------------------------------------------------------------

    def only_candidates(
        self, jobs: sa.Select[Any], key: Expressions, order: Expressions, index: str | None
    ) -> sa.Select[Any]:
        """Restrict a select to the candidates (parameter `candidates`), in their order.

        `index` as for `restrict_to_keys`.

        Portable: an IN list, sorted again. A LIMIT around it must limit the locks as well.
        """
        return jobs.where(self.among(key, "claimjobs_candidates")).order_by(*order)

    def join_in_order(self, wanted: sa.Select[Any], join: sa.Join, index: str | None) -> sa.Select[Any]:
        """Read the numbered rows on the left of a join in order, and find the columns `wanted` of each on the right.

        `index` as for `restrict_to_keys`. It needs `finds_and_locks_at_once`: a LIMIT around it must limit the locks.
        """
        raise NotImplementedError

    def restrict_to_keys(self, statement: Write, key: Expressions, index: str | None) -> Write:
        """Restrict a statement about one table to the rows of the parameter `keys`, and lock no other rows.

        The statement finds them through this index, whose first columns are the key's; None: the primary key.
        """
        return statement.where(self.among(key, "claimjobs_keys"))

    def by_key(self, statement: Write, index: str | None) -> Write:
        """Make a statement find its rows through this index; None: the primary key."""
        return statement

    # --- writing -----------------------------------------------------------------------------------------

    delete: ClassVar[type[sa.Delete]] = sa.Delete
    """The DELETE from a table, for `restrict_to_keys`."""

    def upsert(
        self,
        table: sa.Table,
        columns: Expressions,
        rows: sa.Select[Any],
        *,
        values: Mapping[sa.Column[Any], Any],
        guard: Condition,
    ) -> sa.Executable:
        """Insert `rows` into these columns of a table. An existing row with the same primary key stays as it is.

        If there are `values`, they are written into it, in their order, provided that it meets the `guard`.
        """
        raise NotImplementedError

    def insert_unless_there(self, table: sa.Table, columns: Expressions) -> sa.Insert:
        """An INSERT that leaves out a row if the table has one with its values of these columns.

        It needs `skips_duplicates`. It waits for rows that another transaction has inserted and not committed.
        """
        raise NotImplementedError

    def copyable(self, connection: sa.Connection, table: sa.Table) -> Mapping[str, Set[type]]:
        """The columns, by their keys, that `copy` can write as an INSERT would, each with the types of such values, as
        the column's type writes them for the driver.
        """
        return {}

    def copy(
        self, connection: sa.Connection, table: sa.Table, keys: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        """Send rows, as values of these columns, in the transaction of `connection`: all of them, or it raises."""
        raise NotImplementedError
