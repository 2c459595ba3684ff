"""Values that users give, as values of a column: in Python, in JSON or as text."""

from __future__ import annotations

import json
import math
from base64 import b64decode
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from claimjobs.dialects.types import Instant
from claimjobs.key_text import plain
from claimjobs.table.acceptance import integer_range


def parsed_json(text: str) -> Any:
    """JSON with each number as it is written: one that Python's JSON would change is a Decimal.

    Raises ValueError, ArithmeticError or RecursionError.
    """
    return json.loads(
        text, parse_float=Decimal, parse_int=_whole, parse_constant=_no_number, object_pairs_hook=_distinct
    )


def value_for(column: sa.Column[Any], given: Any) -> Any:
    """The value for a column, from a text or a part of a JSON document. Raises ValueError, with the reason.

    A number is taken as it is written; one that would change is refused. A type of the user's own gets the value.
    """
    if isinstance(column.type, sa.JSON):
        return json.loads(json.dumps(given, default=_double_in_json))
    kind = _kind(column.type)
    if given is None or kind not in FORMS:
        return given
    accepted, read, form = FORMS[kind]
    if type(given) not in (str, *accepted):
        raise ValueError(f"{str(given)[:60]!r} is no {form}")
    try:
        found = read(given)
    except (ValueError, ArithmeticError, LookupError):
        raise ValueError(f"{str(given)[:60]!r} is no {form}") from None
    if flaw := misfit(column.type, found):
        raise ValueError(flaw)
    if kind is datetime:  # a column without zones holds UTC, as those of claimjobs do
        type_: Any = column.type
        has_zone = isinstance(type_, Instant) or type_.timezone
        if has_zone and found.tzinfo is None:
            raise ValueError(f"{found} has no time zone: write it as 2026-01-31T12:00:00Z or with +01:00")
        found = found if has_zone or found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
    return found


def key_part(column: sa.Column[Any], given: Any) -> Any:
    """A part of a key of a job: a value of the column's type, or a text, as a command takes it; an instant is in UTC if
    no other zone is given. Raises ValueError, with the reason.

    A database compares a value of another type in its own way: by rounding, for example, and finds another job.
    """
    kind: Any = _kind(column.type)
    is_nan = isinstance(given, float) and kind is Decimal and math.isnan(given)
    if given is None or is_nan or isinstance(given, Mapping | sa.ClauseElement) or not isinstance(given, Hashable):
        raise ValueError("it is no value")
    if isinstance(column.type, sa.Enum) and not isinstance(given, Enum) and given not in column.type.enums:
        raise ValueError(f"it is none of {', '.join(map(repr, column.type.enums))}")
    if kind is int and isinstance(given, (float, Decimal)) and math.isfinite(given) and int(given) == given:
        given = int(given)
    is_number, is_instant = isinstance(given, (int, float, Decimal)), isinstance(column.type, Instant)
    if kind in FORMS and type(given) is not kind and not isinstance(given, Enum) and (kind is not str or is_number):
        given = value_for(sa.Column(column.name, sa.DateTime()) if is_instant else column, plain(given))
    if is_instant and given.tzinfo is None:
        given = given.replace(tzinfo=UTC)
    # Some databases hold a NUL: see `Dialect.holds_nul`.
    if flaw := misfit(column.type, given.replace("\0", "") if isinstance(given, str) else given):
        raise ValueError(flaw)
    return given


def misfit(type_: sa.types.TypeEngine[Any], value: Any) -> str | None:
    """Why a column of this type cannot hold a value, as far as that is known without the database."""
    if isinstance(value, str) and "\0" in value:
        return "it cannot hold a text with a NUL character"
    if isinstance(value, str) and (halves := [one for one in value if "\ud800" <= one <= "\udfff"]):
        return f"{halves[0]!r} is half a character"
    if not isinstance(value, int) or isinstance(value, bool) or not isinstance(type_, sa.Integer):
        return None
    least, most = integer_range(type_)
    return None if least <= value <= most else f"{value} is out of its range, {least} to {most}"


def is_sql(value: Any, type_: sa.types.TypeEngine[Any]) -> bool:
    """Whether this is an expression, which a driver may write as its text, and no value for a column of this type."""
    is_null = isinstance(value, sa.Null) and isinstance(type_, sa.JSON)  # SQLAlchemy takes it for no document
    return (isinstance(value, sa.ClauseElement) or hasattr(value, "__clause_element__")) and not is_null


def _kind(type_: sa.types.TypeEngine[Any]) -> type[Any]:
    if isinstance(type_, sa.TypeDecorator):
        return datetime if isinstance(type_, Instant) else object
    try:
        return str if isinstance(type_, sa.Enum) else type_.python_type
    except NotImplementedError:
        return object


def _whole(text: str) -> int | Decimal:
    """A whole number; a Decimal if no database's JSON has it as a whole number."""
    return found if -(2**63) <= (found := int(text)) < 2**64 else Decimal(found)


def _double_in_json(given: Decimal) -> float:
    found = float(given)
    if not math.isfinite(found) or Decimal(repr(found)) != given:
        raise ValueError(f"{str(given)[:60]} would change, because JSON has numbers of 64 bits: write it in quotes")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"is no JSON ({name} is no number)")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"one of these names is there twice: {', '.join(found)}")
    return found


def _double(given: Any) -> float:
    if math.isinf(found := float(given)):
        raise ValueError
    return found


def _truth(given: Any) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[str(given).lower()]


FORMS: Final[dict[type[Any], tuple[tuple[type[Any], ...], Callable[[Any], Any], str]]] = {
    int: ((int,), int, "whole number"),
    float: ((int, Decimal), _double, "number that it can hold"),
    Decimal: ((int, Decimal), Decimal, "number"),
    bool: ((bool,), _truth, "truth: write true or false"),
    str: ((), str, "text: put it in quotes"),
    datetime: ((), datetime.fromisoformat, "instant: write it as 2026-01-31T12:00:00Z"),
    date: ((), date.fromisoformat, "date: write it as 2026-01-31"),
    time: ((), time.fromisoformat, "time: write it as 12:00:00"),
    UUID: ((), UUID, "UUID"),
    bytes: ((), lambda text: b64decode(text, validate=True), "base64"),
}
"""For each type in Python: what JSON may have for it beside a text, what reads a text, and what that must be."""
