"""Reads rows value by value if psycopg cannot make all of their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg.adapt import Transformer
from psycopg.pq import Format

from claimjobs.job import PartlyRead, UnreadableValue


def rows_of(cursor: Any) -> Sequence[Any]:
    """All rows of the result of a cursor, with `UnreadableValue` in place of what Python cannot hold."""
    result, made = cursor.pgresult, Transformer.from_context(cursor)
    columns = [(result.ftype(i), Format(result.fformat(i))) for i in range(result.nfields)]
    rows = []
    for number in range(result.ntuples):
        sent = [result.get_value(number, i) for i in range(result.nfields)]
        values = tuple(_value(made, one, *column) for one, column in zip(sent, columns, strict=True))
        rows.append(PartlyRead(values) if any(isinstance(value, UnreadableValue) for value in values) else values)
    return rows


def _value(made: Any, sent: bytes | None, type_: int, format_: Format) -> Any:
    if sent is None:
        return None
    try:
        return made.get_loader(type_, format_).load(sent)
    except Exception as error:
        known = made.adapters.types.get(type_)
        text = bytes(sent).decode(errors="backslashreplace")
        return UnreadableValue(f"{text!r}, {known.name if known else type_}: {error}")
