"""How many bytes values have in a statement. Some servers close the connection of one that is larger than a limit.

The driver says then that the connection was lost, which looks like an outage: each further try would end so, and a
caller's transaction is gone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect, Key

MOST_BYTES: Final = 500_000
"""About the most bytes of errors, of results and of keys in one statement. The limit of a server is 1 MB or more."""
SMALL: Final = 100_000
"""Characters and bytes of a row that fits everywhere, however they are encoded and escaped."""
LONGEST_KEY: Final = 768
"""The most characters of a text in an index, at 4 bytes each."""
_HEAD: Final = 1_000
"""Bytes for the rest of the statement."""
_ESCAPED: Final = b"'\"\\\n\r\0\x1a"
"""Characters before which a driver may write another one."""
_TEXTS: Final = (str, bytes, bytearray, memoryview)
_DOCUMENTS: Final = (dict, list, tuple)


def bytes_of(value: Any) -> int:
    """The bytes of a value, if the driver writes it into the statement, and escapes what must be escaped."""
    if isinstance(value, _DOCUMENTS):
        with suppress(TypeError, ValueError, RecursionError):  # then its type does not write it as JSON
            value = json.dumps(value, default=str)
    text = value if isinstance(value, _TEXTS) else str(value)
    data = text.encode(errors="backslashreplace") if isinstance(text, str) else bytes(text)
    return len(data) + sum(map(data.count, _ESCAPED))


def size_of(row: Mapping[str, Any]) -> int:
    """The bytes of the values of a row; 0 for a row that is surely small, which is cheap to know."""
    long = [value for value in row.values() if isinstance(value, (*_TEXTS, *_DOCUMENTS))]
    if sum(len(value if isinstance(value, _TEXTS) else str(value)) for value in long) <= SMALL:
        return 0
    return sum(map(bytes_of, long))


def check_size(connection: sa.Connection, dialect: Dialect, size: int) -> None:
    """Raise StatementError, as for a value that cannot be sent, if the server takes no row of so many bytes."""
    sessions = dialect.sessions
    if sessions.statement_limit is None or size <= SMALL:
        return
    size, most = size + _HEAD, int(connection.scalar(sessions.largest_statement))
    if size > most:
        says = f"it has {size:,} bytes in a statement, and the server takes {most:,} ({sessions.statement_limit})"
        step = "store a reference to the data, or raise that limit"
        raise sa.exc.StatementError(f"{says}: {step}", None, None, None)


def most_keys(columns: Sequence[sa.ColumnElement[Any]], dialect: Dialect) -> float:
    """The most values of these columns in one statement. Infinite without texts, and where statements may have any
    size.
    """
    texts: list[Any] = [column.type for column in columns if isinstance(column.type, (sa.String, sa.types._Binary))]
    if not texts or dialect.sessions.statement_limit is None:
        return math.inf
    # A character is escaped in JSON, and then in the statement: four bytes, at worst seven.
    size = 20 * len(columns) + sum(4 * min(type_.length or LONGEST_KEY, LONGEST_KEY) for type_ in texts)
    return max(1, MOST_BYTES // size)


def cut(keys: Iterable[Key], size: float) -> Iterator[list[Key]]:
    """The keys in their order, in lists of `size`."""
    rest = iter(keys)
    while some := list(rest if size == math.inf else islice(rest, int(size))):
        yield some
