"""How values are read from MySQL: PyMySQL makes every value in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects.types import Instant
from claimjobs.dialects.value_encoding import ValueEncoding


class MySQLEncoding(ValueEncoding):
    def encoded(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        # PyMySQL parses a datetime with a regular expression: as much work as five other values.
        return sa.cast(column, sa.CHAR) if isinstance(column.type, sa.DateTime | Instant) else column

    def decoder(self, column: sa.Column[Any]) -> Callable[[Any], Any] | None:
        return _instant if isinstance(column.type, sa.DateTime | Instant) else None

    def joins_columns(self, column: sa.Column[Any]) -> bool:
        # PyMySQL does the same work for each value, however short it is.
        return isinstance(column.type, sa.Integer | sa.DateTime | Instant)

    def joined(self, columns: Sequence[sa.ColumnElement[Any]]) -> sa.ColumnElement[str]:
        # An empty text that MariaDB's EMPTY_STRING_IS_NULL does not read as NULL.
        nothing: sa.ColumnElement[str] = sa.literal_column("space(0)")
        comma: sa.ColumnElement[str] = sa.literal_column("','")
        values = [sa.func.ifnull(one, nothing) if getattr(one, "nullable", True) else one for one in columns]
        return sa.func.concat_ws(comma, *values, type_=sa.Text)

    def joined_decoder(self, column: sa.Column[Any]) -> Callable[[str], Any]:
        return int if isinstance(column.type, sa.Integer) else _instant


def _instant(text: str) -> datetime | str:
    """An invalid date stays text, as with the drivers."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text
