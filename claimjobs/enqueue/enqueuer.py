"""Delivery: rows become jobs in a transaction, a caller's or one of our own; then those that sleep are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized

import sqlalchemy as sa
from sqlalchemy.orm import Session

from claimjobs.database.connect import commits_by_itself, connected, isolation_of
from claimjobs.database.savepoint import undoing
from claimjobs.dialects import Dialect
from claimjobs.enqueue.bulk_insert import Row
from claimjobs.enqueue.insert import OnBad
from claimjobs.enqueue.notifier import Notifier

Rows = Row | Iterable[Row]
AUTOCOMMIT = "AUTOCOMMIT"


class Enqueuer:
    """One way to insert rows, and to call for them."""

    def __init__(
        self, engine: sa.Engine, dialect: Dialect, ringer: Notifier, insert: Callable[..., int], *, rereads: bool
    ) -> None:
        """`insert` is `enqueue.enqueue` for a table; `rereads`: it must see what others commit meanwhile."""
        self._engine = engine
        self._dialect = dialect
        self._ringer = ringer
        self._insert = insert
        self._rereads = rereads

    def into(self, transaction_of: sa.Connection | Session, rows: Rows, on_bad: OnBad | None) -> int:
        """Insert in the transaction of a caller, who commits; return how many came in."""
        given = transaction_of.connection() if isinstance(transaction_of, Session) else transaction_of
        count = self._insert(given, rows=rows, on_bad=on_bad)
        self._ringer.call_later(given, count)
        return count

    def alone(self, rows: Rows, on_bad: OnBad | None) -> int:
        """Insert and commit, all or none; return how many came in."""
        with connected(self._engine) as own:
            if level := self._level(own, rows):
                own.execution_options(isolation_level=level)
            count = self._insert(own, rows=rows, on_bad=on_bad, undo=undoing)
            own.commit()
            if level != AUTOCOMMIT and self._dialect.switches_autocommit_freely:
                own.execution_options(isolation_level=AUTOCOMMIT)
            self._ringer.call(own, count)
            return count

    def _level(self, own: sa.Connection, rows: Rows) -> str | None:
        """What to set the connection to; None: as it is will do, and nothing is sent for that."""
        isolation, found = self._dialect.isolation, isolation_of(own)
        if self._rereads:
            return isolation
        if self._dialect.switches_autocommit_freely:
            return AUTOCOMMIT if found == isolation and _is_single(rows) else isolation
        unfit = found is None or found in self._dialect.reads_that_lock
        # Also where the engine's default is AUTOCOMMIT, in which nothing could be taken back.
        return isolation if unfit or commits_by_itself(own) else None


def _is_single(rows: Rows) -> bool:
    """Whether they are one statement, which needs no transaction around it."""
    return isinstance(rows, Mapping) or (isinstance(rows, Sized) and len(rows) == 1)
