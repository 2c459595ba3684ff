"""Ranges: what a column can hold. Some databases say only that one of the values of a row is too large."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import sqlalchemy as sa

_BITS: Final = {
    "TINYINT": 8,
    "SMALLINT": 16,
    "MEDIUMINT": 24,
    "INTEGER": 32,
    "small_integer": 16,
    "integer": 32,
}
"""Bits of whole numbers, by the names of types of databases and of SQLAlchemy; other types have 64."""


_BYTES: Final = {"TINYTEXT": 255, "TINYBLOB": 255}
"""What types hold whose length is part of their name."""


def culprit(row: Mapping[str, Any], table: sa.Table) -> str | None:
    """The first column that cannot hold its value, and why; None: only the database can tell."""
    for name, value in row.items():
        if name in table.c and (flaw := misfit(table.c[name].type, value)):
            return f"column {name!r}: {flaw}"
    return None


def misfit(type_: sa.types.TypeEngine[Any], value: Any) -> str | None:
    """Why a column of this type cannot hold a value, as far as that is known without the database."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    if isinstance(type_, sa.Integer) and isinstance(value, int):
        return _whole(type_, value)
    return _decimal(type_, value) if isinstance(type_, sa.Numeric) and not isinstance(type_, sa.Float) else None


def _text(value: str) -> str | None:
    if "\0" in value:
        return "it cannot hold a text with a NUL character"
    surrogate = next((character for character in value if "\ud800" <= character <= "\udfff"), None)
    return None if surrogate is None else f"{surrogate!r} is half a character"


def integer_range(type_: sa.Integer) -> tuple[int, int]:
    """The smallest and the largest value of a column of this type."""
    bits = _BITS.get(type_.__visit_name__, 64)
    return (0, 2**bits - 1) if getattr(type_, "unsigned", False) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def cut(text: str, longest: int, type_: sa.types.TypeEngine[Any]) -> str:
    """A text of at most so many characters, and no longer than a column of this type holds."""
    holds = _BYTES.get(type_.__visit_name__)
    if isinstance(type_, sa.types._Binary):
        holds = type_.length
    elif length := getattr(type_, "length", None):
        longest = min(longest, length)
    kept = text if len(text) <= longest else text[: longest - 1] + "…"
    if holds is None or len(kept.encode()) <= holds:
        return kept
    return kept.encode()[: max(0, holds - len("…".encode()))].decode(errors="ignore") + "…"


def _whole(type_: sa.Integer, value: int) -> str | None:
    least, most = integer_range(type_)
    return None if least <= value <= most else f"{_short(value)} is out of its range, {least} to {most}"


def _decimal(type_: sa.Numeric[Any], value: float | Decimal) -> str | None:
    if type_.precision is None:
        return None
    digits = type_.precision - (type_.scale or 0)
    try:
        fits = abs(Decimal(value)) < 10**digits
    except InvalidOperation:  # a NaN
        return None
    return None if fits else f"{_short(value)} is out of its range, {digits} digits before the point"


def _short(value: Any) -> str:
    text = f"{value}"
    return text if len(text) <= 40 else f"{text[:37]}..."
