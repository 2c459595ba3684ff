"""Duplicates: what an enqueue does with jobs that the table has already, by a unique key."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Final, Literal, get_args

import sqlalchemy as sa

from claimjobs.dialects import Key
from claimjobs.dialects.types import database_now
from claimjobs.enqueue.rows import Chunk, Row
from claimjobs.enqueue.unique_key import UniqueKey
from claimjobs.errors import BadArgument
from claimjobs.job import key_of
from claimjobs.statements import duplicates as statements
from claimjobs.statements.job_rows import job_rows
from claimjobs.table.backend import Backend
from claimjobs.table.columns import CLAIMED, DEAD, DONE, UNCLAIMED

OnDuplicate = Literal["skip", "replace", "postpone", "again"]
"""Of a row whose unique key the table has: "skip" leaves it out. "replace" writes its values into a job that waits, and
"postpone" its `run_at`. "again" lets the job run once more, if it is claimed, done or dead."""
CHOICES: Final = get_args(OnDuplicate)
TRIES: Final = 5
"""How often a row is tried whose job is there and gone by turns."""


class Duplicates:
    """Changes the jobs that are there. Rows are locked first; what is seen of their states then is still so."""

    def __init__(self, backend: Backend, key: UniqueKey, how: OnDuplicate) -> None:
        """Raises ColumnMissing for a table that lacks a column for this, and BadArgument with a side-car."""
        if backend.user_table is not None:
            raise BadArgument(
                f"on_duplicate={how!r} cannot see the state of a job, which is kept in a side-car: leave out the rows "
                "that are there, by on_duplicate='skip'"
            )
        self._roles, self._dialect, self._key, self._how = backend.roles, backend.dialect, key, how
        roles, dialect, now = backend.roles, backend.dialect, database_now()
        self.keeps_last = how != "again"
        """Whether of several rows with one key the last one counts."""
        self._lock = statements.lock_there(roles, dialect, key.columns)
        self._states = statements.states(roles, dialect, job_rows(backend, now).state)
        self._now = now
        if how == "again":
            self._mark, self._renew = statements.mark(roles, dialect), statements.renew(roles, dialect, now)
        elif how == "postpone":
            self._run_at = roles.need("run_at", "postponing a job").key

    def lacks(self, row: Row) -> str | None:
        """Why rows of this shape do not fit; None: they do."""
        if self._how == "postpone" and self._run_at not in row:
            return f"column {self._run_at!r} is missing, to which a job that waits would be postponed"
        return None

    def change(self, connection: sa.Connection, chunk: Chunk, *, but: Container[Key]) -> tuple[int, Chunk]:
        """Change the jobs of these rows, `but` those with these keys, which were just inserted: how many were changed,
        and the rows whose job is gone meanwhile.
        """
        size, given = len(self._roles.key), [self._key.given(row) for row in chunk.rows]
        plain = [each if len(each) > 1 else each[0] for each in given]
        rows = [tuple(row) for row in connection.execute(self._lock, {"values": plain})]
        there = {self._key.comparable(row[size:]): key_of(row[:size]) for row in rows}
        keys = [there.get(self._key.comparable(values)) for values in given]
        if len(chunk) == 1 and len(rows) == 1:
            keys = [key_of(rows[0][:size])]  # the database may compare in another way than Python
        found = [key for key in keys if key is not None and key not in but]
        wanted = {key: row for key, row in zip(keys, chunk.rows, strict=True) if key in found}
        changed = self._change_all(connection, wanted) if found else 0
        return changed, chunk.only([key is None for key in keys])

    def _change_all(self, connection: sa.Connection, wanted: dict[Key, Row]) -> int:
        states: dict[str, list[Key]] = {}
        for state, *key in connection.execute(self._states, {"claimjobs_keys": list(wanted)}):
            states.setdefault(state, []).append(key_of(key))
        if self._how == "again":
            ended, claimed = [*states.get(DONE, ()), *states.get(DEAD, ())], states.get(CLAIMED, [])
            if self._roles.claim_rows is not None and connection.get_isolation_level() != self._dialect.isolation:
                claimed += states.get(UNCLAIMED, ())  # the claim row may be younger than the caller's snapshot
            for statement, some in ((self._mark, claimed), (self._renew, ended)):
                if some:
                    connection.execute(statement, {"claimjobs_keys": some})
            return len(ended) + len(claimed)
        waiting = states.get(UNCLAIMED, [])
        if waiting:
            self._overwrite(connection, waiting, wanted)
        return len(waiting)

    def _overwrite(self, connection: sa.Connection, keys: Sequence[Key], wanted: dict[Key, Row]) -> None:
        names = [self._run_at] if self._how == "postpone" else self._replaced(wanted[keys[0]])
        renews = self._how == "replace"
        statement = statements.overwrite(self._roles, self._now, names, renews=renews)
        parameters = [statements.overwriting(key, [wanted[key][name] for name in names]) for key in keys]
        connection.execute(statement, parameters)

    def _replaced(self, row: Row) -> list[str]:
        """The columns that are written: not those by which the job was found."""
        columns: dict[str, Any] = {name: self._roles.table.c[name] for name in row}
        kept = {*self._roles.key, *self._key.columns, self._roles.status}
        return [name for name, column in columns.items() if column not in kept]
