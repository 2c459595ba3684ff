"""A unique key, and what an enqueue does with a row whose values of its columns are in the table already."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable
from datetime import datetime
from typing import Any, Final, Literal, get_args

import sqlalchemy as sa

from claimjobs.database.statement_size import most_keys
from claimjobs.database.transactions import HELD
from claimjobs.dialects import Key
from claimjobs.dialects.types import database_now
from claimjobs.enqueue.rows import Chunk, Row
from claimjobs.errors import ColumnMissing, SettingUnfit, UnfitTable, unique_index
from claimjobs.instants import in_utc
from claimjobs.job import key_of
from claimjobs.statements import enqueue
from claimjobs.statements.job_rows import job_rows
from claimjobs.table.backend import Backend
from claimjobs.table.columns import CLAIMED, ENDED, UNCLAIMED
from claimjobs.table.definitions import not_unique_by
from claimjobs.table.roles import is_partial

OnDuplicate = Literal["skip", "replace", "postpone", "again"]
"""Of a row whose unique key the table has: "skip" leaves it out. "replace" writes its values into a job that waits, and
"postpone" its `run_at`. "again" lets the job run once more, if it is claimed, done or dead."""
CHOICES: Final = get_args(OnDuplicate)
NULL: Final = sa.null()
"""What a row may have in a column of JSON, of which None is the null of JSON."""


class UniqueKey:
    """Columns with a unique index over them. It changes jobs that are there: rows are locked first, so what is seen of
    their states is still so.
    """

    def __init__(
        self, connection: sa.Connection, backend: Backend, names: tuple[str, ...], on_duplicate: OnDuplicate
    ) -> None:
        """Raises ColumnMissing; BadArgument for a column that claimjobs writes; or UnfitTable with the statement that
        creates the index.
        """
        # The caller's connection may have another driver than the queue, which takes other parameters.
        roles, dialect = backend.source, type(backend.dialect)(connection.dialect.driver)
        for name in names:
            if name not in roles.table.c:
                raise ColumnMissing(roles.name, name, "enqueueing by a unique key", roles.quote)
            if roles.table.c[name] not in (*roles.key, *roles.payload):
                raise not_unique_by(roles.name, name)
        self.names, self._how, self._roles, self._dialect = names, on_duplicate, roles, dialect
        self._columns = columns = tuple(roles.table.c[name] for name in names)
        self.most = most_keys((*roles.key, *columns), dialect)
        """The most rows of one chunk, whose values are sent to find their jobs."""
        found = _unique_indexes(connection, roles.table, {column.name for column in columns}, dialect.primary)
        inexact = dialect.table_rules.inexact_indexes(connection, roles.table)
        self._indexes = {name: equal for name, equal in found.items() if name not in inexact}
        if not self._indexes:
            unfit = f" that compares whole values at once (drop {', '.join(map(str, found))})" if found else ""
            raise UnfitTable(
                f"table {roles.name!r} has no unique index over {', '.join(names)}{unfit}, so nothing keeps a second "
                f"such job out: {unique_index(roles.name, names, roles.quote)}"
            )
        insert = dialect.insert_unless_there(roles.table, columns) if dialect.skips_duplicates else None
        self.insert = None if insert is None else insert.returning(*roles.key)
        """Inserts rows, and leaves out those that are there. None: an INSERT of such a row is refused."""
        self._there = enqueue.there(roles, dialect, columns)
        self.changes = on_duplicate != "skip"
        if not self.changes:
            return
        if any(self._indexes.values()) and any(column.nullable for column in columns):
            raise UnfitTable(
                f"a unique index of table {roles.name!r} over {', '.join(names)} takes NULLs for equal (NULLS NOT "
                f"DISTINCT), and on_duplicate={on_duplicate!r} finds no job by NULL: make these columns NOT NULL"
            )
        self._now = now = database_now()
        self._lock = enqueue.lock_there(roles, dialect, columns)
        self._states = enqueue.states(roles, dialect, job_rows(backend, now).state)
        if on_duplicate == "again":
            self._mark, self._renew = enqueue.set_run_again(roles, dialect), enqueue.renew(roles, dialect, now)
        elif on_duplicate == "postpone":
            self._run_at = roles.need("run_at", "postponing a job").key

    def misfit(self, row: Row) -> str | None:
        """Why rows with the columns of this one do not fit."""
        if missing := next((name for name in self.names if name not in row), None):
            return f"column {missing!r} of the unique key is missing"
        if self._how == "postpone" and self._run_at not in row:
            return f"column {self._run_at!r} is missing, to which a job that waits would be postponed"
        return None

    def distinct(self, chunk: Chunk) -> Chunk:
        """The last row of each key, if that one is written into its job, else the first. Only the database finds rows
        that are equal by its collation.
        """
        seen: set[Hashable] = set()
        new: list[bool] = []
        step = -1 if self._how in ("replace", "postpone") else 1
        for values in map(self._comparable_of, chunk.rows[::step]):
            new.append(values is None or values not in seen)
            seen.add(values)
        return chunk.only(new[::step])

    # --- rows that are in the table ----------------------------------------------------------------------

    def new_ones(self, connection: sa.Connection, chunk: Chunk, refusal: Exception) -> Chunk:
        """The rows that are not in the table, as far as Python can tell, of a chunk that was refused for a duplicate.

        The rows that are there get a shared lock. Only keys that a plain read found are locked: a locking read of other
        keys locks the gaps into which other producers insert. A single row is there if the key refused it. A look-up
        would not find one that was deleted since, nor a value that the column rounds or trims.
        """
        if len(chunk) == 1:
            return chunk.only(
                [self._dialect.errors.refusing_index(refusal, self._roles.table.name) not in self._indexes]
            )
        given = [self._given(row) for row in chunk.rows if self._comparable_of(row)]
        seen = _rows_with(connection, self._there, given)
        found = set(map(_comparable, _rows_with(connection, self._there.with_for_update(read=True), seen)))
        return chunk.only([self._comparable_of(row) not in found for row in chunk.rows])

    def change(self, connection: sa.Connection, chunk: Chunk, *, but: Container[Key]) -> tuple[int, Chunk]:
        """Change the jobs of these rows, `but` those with these keys, which were just inserted: how many were changed,
        and the rows for which no job was found: it is gone meanwhile, or only the database knows that it is theirs.
        """
        chunk = chunk.only([None not in self._given(row) for row in chunk.rows])  # equal to none, so it was inserted
        size, given = len(self._roles.key), [self._given(row) for row in chunk.rows]
        rows = _rows_with(connection, self._lock, given)
        there = {_comparable(row[size:]): key_of(row[:size]) for row in rows}
        there.pop(None, None)
        keys = [there.get(_comparable(values)) for values in given]
        if len(chunk) == 1 and len(rows) == 1:
            keys = [key_of(rows[0][:size])]  # the database may compare in another way than Python
        wanted = {key: row for key, row in zip(keys, chunk.rows, strict=True) if key is not None and key not in but}
        changed = self._change_all(connection, wanted) if wanted else 0
        return changed, chunk.only([key is None for key in keys])

    def _change_all(self, connection: sa.Connection, wanted: dict[Key, Row]) -> int:
        states: dict[str, list[Key]] = {}
        for state, *key in connection.execute(self._states, {"claimjobs_keys": list(wanted)}):
            states.setdefault(state, []).append(key_of(key))
        held_of, jobs = connection.info.get(HELD, (None, ()))
        mine = {job.key for job in jobs} if held_of == self._roles.name else set()
        unclaimed = states.get(UNCLAIMED, [])
        waiting = [key for key in unclaimed if key not in mine]
        is_older = self._roles.claim_rows is not None and connection.get_isolation_level() != self._dialect.isolation
        may_be_claimed = waiting if is_older else []
        if self._how == "again":
            ended = [key for state in ENDED for key in states.get(state, ())]
            claimed = states.get(CLAIMED, []) + [key for key in unclaimed if key in mine]
            claimed += may_be_claimed  # a claim row may be younger than the caller's snapshot
            for statement, some in ((self._mark, claimed), (self._renew, ended)):
                if some:
                    connection.execute(statement, {"claimjobs_keys": some})
            return len(ended) + len(claimed)
        if may_be_claimed:
            raise SettingUnfit(
                f"a transaction above {self._dialect.isolation} does not show which jobs of {self._roles.name!r} were "
                f"just claimed, and {self._how!r} changes none of them: set that level, or give no connection"
            )
        if waiting:
            names = [self._run_at] if self._how == "postpone" else list(wanted[waiting[0]])
            found_by = {*self._roles.key, *self._columns, self._roles.status}
            names = [name for name in names if self._roles.table.c[name] not in found_by]
            overwrite = enqueue.overwrite(self._roles, self._now, names, renews=self._how == "replace")
            values = [enqueue.overwriting(key, [wanted[key][name] for name in names]) for key in waiting]
            if overwrite is not None:
                connection.execute(overwrite, values)
        return len(waiting)

    # --- values ------------------------------------------------------------------------------------------

    def _given(self, row: Row) -> tuple[Any, ...]:
        return tuple(None if (value := row[name]) is NULL else value for name in self.names)

    def _comparable_of(self, row: Row) -> Hashable:
        """The values that Python compares; None where a value is NULL, because NULL equals nothing, or has no hash."""
        given = self._given(row)
        return None if None in given else _comparable(given)


def _comparable(values: Iterable[Any]) -> Hashable:
    """The values, with instants in UTC, because not every column keeps the zone; None if a value has no hash."""
    plain = tuple(in_utc(value) if isinstance(value, datetime) else value for value in values)
    return plain if all(isinstance(value, Hashable) for value in plain) else None


def _rows_with(
    connection: sa.Connection, statement: sa.Select[Any], values: list[tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    keys = [each if len(each) > 1 else each[0] for each in values]
    return [tuple(row) for row in connection.execute(statement, {"values": keys})] if keys else []


def _unique_indexes(
    connection: sa.Connection, table: sa.Table, columns: set[str], primary: str | None
) -> dict[str | None, bool]:
    """The unique indexes over these columns: the name of each, and whether it takes NULLs for equal. `primary` is the
    name of a primary key without one.
    """
    found = sa.inspect(connection)
    key = found.get_pk_constraint(table.name, table.schema)
    indexes: dict[str | None, bool] = {}
    if set(key["constrained_columns"]) == columns:
        indexes[primary if key["name"] is None else key["name"]] = False
    for index in found.get_indexes(table.name, table.schema):
        if index["unique"] and not is_partial(index) and set(index["column_names"]) == columns:
            options = index.get("dialect_options", {})
            indexes[index["name"]] = any(options[name] for name in options if name.endswith("nulls_not_distinct"))
    return indexes
