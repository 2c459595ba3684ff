"""RowSizes: refuses a row that is larger than a statement may be, before it is sent.

Some servers answer a statement that is too large by closing the connection. The driver says then that it was lost,
which looks like an outage, and the caller's transaction is gone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.enqueue.bulk_insert import Row

SMALL: Final = 100_000
"""Characters and bytes of a row that fits everywhere, however they are encoded and escaped."""
_HEAD: Final = 1_000
"""Bytes for the rest of the statement."""
_ESCAPED: Final = "'\"\\\n\r\0\x1a"


class RowSizes:
    """Compares rows with the largest statement that the server takes."""

    def __init__(self, dialect: Dialect) -> None:
        self._sessions = dialect.sessions
        self._largest: int | None = None

    def check(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        """Raise ValueError if a row is too large for a statement of its own."""
        if self._sessions.statement_limit is None:
            return
        for row in rows:
            if sum(map(_length, row.values())) > SMALL:
                self._check_large(connection, row)

    def _check_large(self, connection: sa.Connection, row: Row) -> None:
        if self._largest is None:
            self._largest = self._sessions.largest_statement(connection)
        size = _HEAD + sum(map(_bytes, row.values()))
        if size > self._largest:
            raise ValueError(
                f"it has {size:,} bytes in a statement, and the server takes {self._largest:,} "
                f"({self._sessions.statement_limit}): store a reference to the data, or raise that limit"
            )


def _length(value: Any) -> int:
    """Characters or bytes of a value, as far as it is cheap to know; 0 for numbers and instants."""
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    return len(str(value)) if isinstance(value, (dict, list, tuple)) else 0


def _bytes(value: Any) -> int:
    """The bytes of a value in a statement, about."""
    if isinstance(value, (bytes, bytearray)):
        return len(value) + sum(value.count(character.encode()) for character in _ESCAPED)
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return len(text.encode(errors="replace")) + sum(map(text.count, _ESCAPED))
