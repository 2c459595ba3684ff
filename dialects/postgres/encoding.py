"""How values are read from Postgres, which has instants that Python does not have: 'infinity', and years BC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects.types import Instant
from claimjobs.dialects.value_encoding import ValueEncoding

_ZERO: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""Postgres counts microseconds from this instant."""

_INFINITE: Final = {2**63 - 1: "infinity", -(2**63): "-infinity"}
"""These numbers of microseconds have a name."""


class PostgresEncoding(ValueEncoding):
    def encoded(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        # For each value psycopg looks up the time zone: as much work as the other columns of a job together. As text,
        # the server would do as much (docs/decisions/0024). The binary form of the server is a number.
        is_instant = isinstance(column.type, Instant)
        return sa.func.timestamptz_send(column, type_=sa.LargeBinary) if is_instant else column

    def decoder(self, column: sa.Column[Any]) -> Callable[[Any], Any] | None:
        return _instant if isinstance(column.type, Instant) else None

    def readable(self, key: Sequence[sa.Column[Any]]) -> Sequence[sa.ColumnElement[bool]]:
        return [
            column.between(*_ends(column.type)) for column in key if isinstance(column.type, (sa.Date, sa.DateTime))
        ]

    def fetched(self, cursor: Any) -> Sequence[Any]:
        # psycopg makes the values of a row when the row is fetched, and raises for a date that Python does not have.
        try:
            return super().fetched(cursor)
        except Exception:
            if not hasattr(cursor, "pgresult"):  # another driver, which does not keep the values as they were sent
                raise
            from claimjobs.dialects.postgres import partial_rows  # noqa: PLC0415 - psycopg is slow to import

            return partial_rows.rows_of(cursor)


def _instant(sent: bytes) -> datetime:
    since = int.from_bytes(sent, "big", signed=True)
    try:
        return _ZERO + timedelta(microseconds=since)
    except OverflowError as error:
        raise ValueError(f"{_INFINITE.get(since, 'a year')!r}, timestamptz: {error}") from error


def _ends(type_: sa.types.TypeEngine[Any]) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    """The first and the last value of a type that Python has too. In some time zones it lacks the first or last day."""
    if isinstance(type_, sa.Date):
        first, last = "DATE '0001-01-01'", "DATE '9999-12-31'"
    elif type_.timezone:  # type: ignore[attr-defined]  # a DateTime
        first, last = "TIMESTAMPTZ '0001-01-02 00:00:00+00'", "TIMESTAMPTZ '9999-12-30 23:59:59+00'"
    else:
        first, last = "TIMESTAMP '0001-01-01 00:00:00'", "TIMESTAMP '9999-12-31 23:59:59.999999'"
    return sa.literal_column(first), sa.literal_column(last)
