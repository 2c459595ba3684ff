"""Converts values of a file to values of a column."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from claimjobs.dialects.types import Instant
from claimjobs.table.value_ranges import misfit

Read = Callable[[Any], Any]

TRUE = frozenset({"true", "t", "yes", "y", "1"})
FALSE = frozenset({"false", "f", "no", "n", "0"})


class BadValue(ValueError):
    """A value of a file does not fit the table; the message is the reason."""


class Values:
    """Reads rows for a table. Checks that required columns are given, before the database is asked."""

    def __init__(self, table: sa.Table, *, text: bool) -> None:
        """`text`: the format has no types (CSV): every value is text, and a missing value is an empty text."""
        self._columns = {column.name: _Column(column, text) for column in table.columns}
        optional = {column.name for column in table.columns if column.nullable or _has_default(column)}
        self._required = self._columns.keys() - optional

    def read(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row with Python values. Names that are no columns stay. Raises BadValue."""
        values = {name: self._value(name, value) for name, value in row.items()}
        given = {name: value for name, value in values.items() if value is not DEFAULT}
        if missing := self._required - given.keys():
            raise BadValue(f"column {min(missing)!r} is missing, and has no default")
        return given

    def _value(self, name: str, value: Any) -> Any:
        column = self._columns.get(name)
        try:
            return value if column is None else column.read(value)
        except (ValueError, ArithmeticError, RecursionError) as error:
            raise BadValue(f"column {name!r}: {error}") from error


def parsed_json(text: str, **options: Any) -> Any:
    """JSON with each number as it is written: one with a fraction or an exponent is a Decimal. Raises ValueError."""
    return json.loads(text, parse_float=_decimal, parse_constant=_no_number, **options)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:
        raise BadValue(f"is no JSON (nothing can hold the number {text})") from None


def _no_number(name: str) -> Any:
    raise BadValue(f"is no JSON ({name} is no number)")


DEFAULT = object()
"""Stands for an empty field of a column with a default: the field is left out."""


class _Column:
    """Reads the values of one column."""

    def __init__(self, column: sa.Column[Any], text: bool) -> None:
        self._column = column
        self._text = text
        self._read = reader(column.type, text=text)

    def read(self, value: Any) -> Any:
        if value is None or (self._text and value == ""):
            return self._nothing(value)
        return self._read(value)

    def _nothing(self, value: Any) -> Any:
        """An empty field: the default, NULL, or an empty text, the first of these that the column allows."""
        if self._text and _has_default(self._column):
            return DEFAULT
        if self._column.nullable:
            return None
        if value == "" and isinstance(self._column.type, sa.String):
            return value
        raise BadValue("must not be null")


def _has_default(column: sa.Column[Any]) -> bool:
    if isinstance(column.type, sa.Enum):  # left to the database: some take the first value
        return True
    defaults = (column.default, column.server_default, column.identity, column.computed)
    return any(default is not None for default in defaults) or column is column.table.autoincrement_column


# --- by type -------------------------------------------------------------------------------------------------


def reader(type_: sa.types.TypeEngine[Any], *, text: bool) -> Read:
    """What reads a value of this type and checks its range. A user's own type gets the value unchanged."""
    read = _reader(type_, text=text)
    return _within(type_, read) if isinstance(type_, sa.Integer | sa.Numeric) else read


def _within(type_: sa.types.TypeEngine[Any], read: Read) -> Read:
    def ranged(value: Any) -> Any:
        found = read(value)
        if flaw := misfit(type_, found):
            raise BadValue(flaw)
        return found

    return ranged


def _reader(type_: sa.types.TypeEngine[Any], *, text: bool) -> Read:
    if isinstance(type_, sa.TypeDecorator) and not isinstance(type_, Instant):
        return _float_if_exact
    if isinstance(type_, (sa.JSON, sa.ARRAY)):
        read = _document if isinstance(type_, sa.JSON) else _items
        return (lambda value: read(_parsed_text(value))) if text else read
    if isinstance(type_, sa.Enum):
        return _one_of(type_.enums)
    if isinstance(type_, (sa.DateTime, Instant)):
        return _instant(isinstance(type_, Instant) or bool(type_.timezone))
    if isinstance(type_, sa.String):
        return _text_up_to(type_.length)
    return (FROM_TEXT if text else FROM_JSON).get(_python_type(type_), _float_if_exact)


def _python_type(type_: sa.types.TypeEngine[Any]) -> type[Any]:
    try:
        return type_.python_type
    except NotImplementedError:
        return object


def _float_if_exact(value: Any) -> Any:
    """A number as JSON gives it to Python, unless that changes it; anything else is left as it is."""
    return float(value) if isinstance(value, Decimal) and _is_exact(value) else value


def _is_exact(value: Decimal) -> bool:
    """Whether Python writes the nearest double with the digits of this number."""
    nearest = float(value)
    return math.isfinite(nearest) and Decimal(repr(nearest)) == value


def _document(value: Any) -> Any:
    """A JSON document for the database. Raises BadValue for a number in it that would change on the way."""
    if isinstance(value, Mapping):
        return {name: _document(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_document(part) for part in value]
    if not isinstance(value, bool) and isinstance(value, (int, Decimal)) and not _is_kept(value):
        raise BadValue(f"{_shown(value)} would change, because JSON has numbers of 64 bits: write it in quotes")
    return _float_if_exact(value)


def _is_kept(value: int | Decimal) -> bool:
    return -(2**63) <= value < 2**64 if isinstance(value, int) else _is_exact(value)


def _items(value: Any) -> Any:
    """The items of an array. The database converts a number as it is written."""
    return [_items(part) for part in value] if isinstance(value, list) else _float_if_exact(value)


def _must_be_text(value: Any, wanted: str) -> str:
    if not isinstance(value, str):
        raise BadValue(f"{_shown(value)} is no {wanted}: put it in quotes")
    return value


def _parsed_text(value: str) -> Any:
    try:
        return parsed_json(value)
    except ValueError as error:
        raise BadValue(f"{_shown(value)} is no JSON ({error})") from None


def _double(value: Any) -> float:
    """The nearest double. Raises BadValue for a number that none is near; `inf` is none, and stays."""
    found = float(value)
    if math.isinf(found) and "inf" not in str(value).lower():
        raise BadValue(f"{_shown(value)} is out of its range")
    return found


def _one_of(allowed: list[str]) -> Read:
    def read(value: Any) -> Any:
        if value not in allowed:
            raise BadValue(f"{_shown(value)} is none of {', '.join(allowed)}")
        return value

    return read


def _text_up_to(length: int | None) -> Read:
    def read(value: Any) -> str:
        text = _must_be_text(value, "text")
        if length is not None and len(text) > length:
            raise BadValue(f"{len(text)} characters are too long for it, it holds {length}")
        return text

    return read


def _instant(has_zone: bool) -> Read:
    def read(value: Any) -> datetime:
        instant: datetime = _iso(datetime, "2026-01-31T12:00:00Z")(value)
        if has_zone and instant.tzinfo is None:
            raise BadValue(f"{_shown(value)} has no time zone: write it as 2026-01-31T12:00:00Z or with +01:00")
        # A column without zones holds UTC, as those of claimjobs do.
        return instant if has_zone or instant.tzinfo is None else instant.astimezone(UTC).replace(tzinfo=None)

    return read


def _iso(kind: Any, example: str) -> Read:
    def read(value: Any) -> Any:
        try:
            return kind.fromisoformat(_must_be_text(value, kind.__name__))
        except ValueError:
            raise BadValue(f"{_shown(value)} is no {kind.__name__}: write it as {example}") from None

    return read


def _parsed(parse: Read, wanted: str) -> Read:
    def read(value: Any) -> Any:
        try:
            return parse(value)
        except BadValue:
            raise
        except (ValueError, ArithmeticError):
            raise BadValue(f"{_shown(value)} is no {wanted}") from None

    return read


def _number(kind: Read, accepted: tuple[type[Any], ...], wanted: str) -> Read:
    """A number of JSON. For Python a bool is a number, too; here it is not."""

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, accepted):
            raise BadValue(f"{_shown(value)} is no {wanted}")
        return kind(value)

    return read


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadValue(f"{_shown(value)} is neither true nor false")
    return value


def _boolean_word(value: str) -> bool:
    if value.lower() not in TRUE | FALSE:
        raise BadValue(f"{_shown(value)} is neither true nor false")
    return value.lower() in TRUE


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


WRITTEN: dict[Any, Read] = {
    date: _iso(date, "2026-01-31"),
    time: _iso(time, "12:00:00"),
    UUID: _parsed(lambda value: UUID(_must_be_text(value, "UUID")), "UUID"),
    bytes: _parsed(lambda value: base64.b64decode(_must_be_text(value, "base64"), validate=True), "base64"),
}
"""Types that are text in both JSON and CSV."""

FROM_TEXT: dict[Any, Read] = {
    **WRITTEN,
    int: _parsed(int, "whole number"),
    float: _parsed(_double, "number"),
    Decimal: _parsed(Decimal, "number"),
    bool: _boolean_word,
}

FROM_JSON: dict[Any, Read] = {
    **WRITTEN,
    int: _number(int, (int,), "whole number"),
    float: _number(_double, (int, Decimal), "number"),
    Decimal: _parsed(_number(Decimal, (int, Decimal, str), "number"), "number"),
    bool: _boolean,
}
