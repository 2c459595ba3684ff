"""How values are read: some drivers take long for some types, and some values exist in the database but not in Python.

The encodings are optimisations (docs/decisions/0025).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa


class ValueEncoding:
    """The portable way: every column is read as it is."""

    def encoded(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """A column in the form that the driver reads fastest. `decoder` makes the value from it."""
        return column

    def decoder(self, column: sa.Column[Any]) -> Callable[[Any], Any] | None:
        """Makes the value that the driver would have returned from an encoded one. None: the column is not encoded."""
        return None

    def joins_columns(self, column: sa.Column[Any]) -> bool:
        """Whether the driver reads several columns of this type faster as one text."""
        return False

    def joined(self, columns: Sequence[sa.ColumnElement[Any]]) -> sa.ColumnElement[str]:
        """Such columns as one text: their values with commas between them, and an empty value for NULL."""
        raise NotImplementedError

    def joined_decoder(self, column: sa.Column[Any]) -> Callable[[str], Any]:
        """Makes the value that the driver would have returned from the text of a joined one."""
        raise NotImplementedError

    def readable(self, key: Sequence[sa.Column[Any]]) -> Sequence[sa.ColumnElement[bool]]:
        """The predicates of a row whose key Python can hold; none if it can hold all values of these types."""
        return ()

    def fetched(self, cursor: Any) -> Sequence[Any]:
        """All rows of a driver's cursor. A row with a value that Python cannot hold is a `PartlyRead`."""
        rows: Sequence[Any] = cursor.fetchall()
        return rows
