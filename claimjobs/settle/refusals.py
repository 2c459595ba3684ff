"""What a database refuses: which errors are about a row, and writes in halves until the bad row is alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

import sqlalchemy as sa

from claimjobs.database.error_translation import reason
from claimjobs.dialects import Dialect, Key
from claimjobs.errors import StatementTimedOut, WriteSwallowed

REFUSALS: Final = (sa.exc.StatementError, StatementTimedOut, UnicodeError, WriteSwallowed)
"""What a write may raise for a row of it. UnicodeError is a driver's own, if its encoding has no such character."""

SHORTER: Final = (150, 0)
"""If a row is refused, so many characters of its error are stored, in ASCII: a column or its index may hold less than
the whole, or not have such characters. At last none is stored."""

SWALLOWED: Final = (
    "the database wrote nothing into its row: a trigger or a rule swallows the write, or its key is unequal"
)


def is_of_a_row(error: Exception, dialect: Dialect) -> bool:
    """Whether a single row may be the cause why a write was refused or swallowed."""
    return not isinstance(error, sa.exc.DBAPIError) or dialect.errors.may_be_of_a_row(error)


class WriteInHalves:
    """Keys to be written: all at once, and what the database refuses in halves, until the bad row is alone.

    `for keys in parts:` write them, and call `refuse` where the database refuses that.
    """

    def __init__(
        self, keys: Sequence[Key], dialect: Dialect, refused: dict[Key, str], *, table: str | None = None
    ) -> None:
        """`refused` collects the keys that were refused alone, with the reason.

        `table`: the name of the table. If the account may not write it, that is not about single rows.
        """
        self._dialect, self._table = dialect, table
        self.refused = refused
        self.unwritten: set[Key] = set()
        """The keys of rows in which nothing was written without an error, as far as the writer says it."""
        self._parts = [keys] if keys else []
        self._is_written = False
        self.has_written = False
        """Whether some part was written before the present one."""
        self._error: Exception | None = None
        self.duplicates: set[Key] = set()
        """The keys that were refused alone by a unique index."""

    def __iter__(self) -> Iterator[Sequence[Key]]:
        while self._parts:
            before, self._is_written = self.has_written, True
            yield self._parts.pop()
            self.has_written = self._is_written = self._is_written or before

    @property
    def refused_all(self) -> Exception | None:
        """The error by which the keys were refused, if none was written, and the error does not say that it is about a
        row."""
        error = self._error
        certain = not isinstance(error, sa.exc.DBAPIError) or self._dialect.errors.refuses_row(error)
        return None if self._is_written or certain else error

    @contextlib.contextmanager
    def writing(self, keys: Sequence[Key]) -> Iterator[None]:
        """A block that writes these keys. What the database refuses in it is tried in halves."""
        try:
            yield
        except sa.exc.DBAPIError as error:
            self.refuse(keys, error)

    def write_last(self, keys: Sequence[Key]) -> None:
        """Write these keys, which were not written now, after all others."""
        self._is_written = False
        self._parts.insert(0, keys)

    def refuse(self, keys: Sequence[Key], error: Exception) -> None:
        """These keys were refused: their halves are next. Raises an error that is not about single rows."""
        errors = self._dialect.errors
        is_denied = self._table is not None and errors.denied_table(error) == self._table
        if is_denied or not is_of_a_row(error, self._dialect):
            raise error
        self._is_written, self._error = False, error
        if len(keys) == 1:
            self.refused[keys[0]] = SWALLOWED if isinstance(error, WriteSwallowed) else reason(error)
            if isinstance(error, sa.exc.DBAPIError) and errors.code(error) in errors.duplicate:
                self.duplicates.add(keys[0])
        else:
            middle = len(keys) // 2
            self._parts += [keys[middle:], keys[:middle]]
