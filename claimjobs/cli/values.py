"""Values as JSON or a text writes them, as values of a column."""

from __future__ import annotations

import json
import math
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from claimjobs.dialects.types import Instant
from claimjobs.enqueue.bad_rows import misfit


def value_for(column: sa.Column[Any], given: Any) -> Any:
    """The value for a column, from a text or a part of a JSON document. Raises ValueError, with the reason.

    A number is taken as it is written; one that would change is refused. A type of the user's own gets the value.
    """
    if isinstance(column.type, sa.JSON):
        return _document(given)
    kind = _kind(column.type)
    if given is None or kind not in FORMS:
        return _plain(given)
    found = _read(kind, given)
    if flaw := misfit(column.type, found):
        raise ValueError(flaw)
    return _in_zone(column.type, found) if kind is datetime else found


def parsed_json(text: str) -> Any:
    """JSON with each number as it is written: one with a fraction or an exponent is a Decimal.

    Raises ValueError, ArithmeticError or RecursionError.
    """
    return json.loads(text, parse_float=Decimal, parse_constant=_no_number, object_pairs_hook=_distinct)


def _kind(type_: sa.types.TypeEngine[Any]) -> type[Any]:
    if isinstance(type_, sa.TypeDecorator):
        return datetime if isinstance(type_, Instant) else object
    try:
        return str if isinstance(type_, sa.Enum) else type_.python_type
    except NotImplementedError:
        return object


def _read(kind: type[Any], given: Any) -> Any:
    accepted, read, form = FORMS[kind]
    if type(given) in (str, *accepted):
        with suppress(ValueError, ArithmeticError, LookupError):
            return read(given)
    raise ValueError(f"{str(given)[:60]!r} is no {form}")


def _in_zone(type_: Any, found: datetime) -> datetime:
    """An instant as its column needs it: a column without zones holds UTC, as those of claimjobs do."""
    has_zone = isinstance(type_, Instant) or type_.timezone
    if has_zone and found.tzinfo is None:
        raise ValueError(f"{found} has no time zone: write it as 2026-01-31T12:00:00Z or with +01:00")
    return found if has_zone or found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)


def _document(given: Any) -> Any:
    """A JSON document for the database. Raises ValueError for a number in it that would change on the way."""
    if isinstance(given, Mapping):
        return {name: _document(part) for name, part in given.items()}
    if isinstance(given, list):
        return [_document(part) for part in given]
    plain = _plain(given)
    if isinstance(plain, Decimal) or (isinstance(plain, int) and not -(2**63) <= plain < 2**64):
        raise ValueError(f"{str(given)[:60]} would change, because JSON has numbers of 64 bits: write it in quotes")
    return plain


def _plain(given: Any) -> Any:
    """A number as Python's JSON has it, unless that changes it; also within an array."""
    if isinstance(given, list):
        return [_plain(part) for part in given]
    nearest = float(given) if isinstance(given, Decimal) else math.nan
    return nearest if math.isfinite(nearest) and Decimal(repr(nearest)) == given else given


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


def _bytes(given: str) -> bytes:
    return b64decode(given, validate=True)


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
    bytes: ((), _bytes, "base64"),
}
"""By the type in Python: what JSON may have for it beside a text, what reads that, and what it must be."""
