"""How a table in use is altered: each database has its own DDL that leaves consumers at work, and its own locks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Dialect as SQLAlchemyDialect

LOCK_TIMEOUT: Final = 2
"""Seconds for which a statement waits for its lock. All statements that come later wait behind it."""

METADATA: Final = "metadata only"


@dataclass(frozen=True)
class Change:
    """A statement that alters a table."""

    statement: str
    locks: str
    """What it locks, and what that keeps out."""
    work: str = METADATA
    """What it does under the lock: its time depends on that."""
    waits: bool = False
    """Whether it may wait for its lock without a limit, because nothing that consumers do waits behind it."""


class OnlineDDL:
    """The statements of an upgrade. A lock that is refused, or work that is not possible online, raises an error."""

    def alter(self, statement: str, *, computes: bool = False) -> Change:
        """An ALTER TABLE that needs to change metadata only.

        `computes`: it adds a column whose default is an expression.
        """
        raise NotImplementedError

    def comment(self, statement: str) -> Change:
        """The change of a comment."""
        raise NotImplementedError

    def lock_timeout(self, change: Change) -> str:
        """The statement that limits for how long this session waits for the locks of a change."""
        raise NotImplementedError

    @contextmanager
    def limited(self, connection: sa.Connection) -> Iterator[None]:
        """In this block a statement waits LOCK_TIMEOUT seconds for its lock at most. The session is as it was after it.

        It is within a transaction.
        """
        raise NotImplementedError
        yield

    def lock_holder(self, connection: sa.Connection, table: sa.Table) -> str | None:
        """A session that has a lock on this table, for a message; None: the server shows none to this user."""
        raise NotImplementedError

    def named_with(self, connection: sa.Connection, words: str) -> Sequence[str]:
        """The tables of the connection's schema whose comments contain these words."""
        raise NotImplementedError

    def invalid_indexes(self, connection: sa.Connection, table: sa.Table) -> Collection[str]:
        """The indexes that an interrupted statement has left, and that no query uses."""
        del connection, table
        return ()

    def index_changes(
        self, wanted: sa.Index, fits: Collection[str], there: Collection[str], *, dialect: SQLAlchemyDialect
    ) -> list[Change]:
        """The changes after which a table has this index, while its queries always have an index.

        `fits`: the table's valid indexes that begin with its columns. `there`: all its indexes.
        """
        raise NotImplementedError


def create_index(index: sa.Index, name: str, dialect: SQLAlchemyDialect, how: str = "") -> str:
    """CREATE INDEX under another name."""
    made = str(sa.schema.CreateIndex(index).compile(dialect=dialect)).strip()
    columns = made[made.index("(") :]
    quote = dialect.identifier_preparer
    return f"CREATE INDEX {how}{quote.quote(name)} ON {quote.format_table(_table(index))} {columns}"


def _table(index: sa.Index) -> sa.Table:
    assert index.table is not None  # noqa: S101 - it was made with columns
    return index.table
