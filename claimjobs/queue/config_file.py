"""Reads a TOML file that describes a queue, and checks it. An error names the line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from claimjobs.errors import BadMap
from claimjobs.table.columns import STATES, Columns

Check = Callable[[Any], Any]


def read(path: str | Path) -> dict[str, Any]:
    """The contents of the file, as arguments of `Shape.over`. Raises BadMap."""
    page = _Page(str(path), _text_of(path))
    given = page.parsed()
    roles, states = given.pop("columns", {}), given.pop("states", {})
    return {
        **page.checked(given, _CHECKS, "is not known here"),
        "roles": page.checked(page.section("columns", roles), ROLES, "is no role"),
        "states": page.checked(page.section("states", states), STATE_VALUES, "is no state"),
    }


def _text_of(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadMap(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}): check the path") from None


class _Page:
    """A TOML text and its name, for messages with line numbers."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text

    def parsed(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            raise BadMap(f"{self._name} is no TOML: {error}: correct it there; text stands in quotes") from None

    def section(self, name: str, found: Any) -> Mapping[str, Any]:
        if not isinstance(found, dict):
            raise BadMap(f"{self._where(name)}: {name!r} is a section: write a line [{name}], and its names below")
        return found

    def checked(self, given: Mapping[str, Any], checks: Mapping[str, Check], unknown: str) -> dict[str, Any]:
        """The checked values. Each name must have a check."""
        return {name: self._checked(name, value, checks, unknown) for name, value in given.items()}

    def _checked(self, name: str, value: Any, checks: Mapping[str, Check], unknown: str) -> Any:
        if name not in checks:
            known = (*checks, "columns", "states") if checks is _CHECKS else tuple(checks)
            raise BadMap(f"{self._where(name)}: {name!r} {unknown}: choose one of {', '.join(known)}")
        try:
            return checks[name](value)
        except Misfit as error:
            raise BadMap(f"{self._where(name)}: {name} = {value!r}: {error}") from None

    def _where(self, name: str) -> str:
        found = re.search(rf"""^[ \t]*\[?[ \t]*["']?{re.escape(name)}["']?[ \t]*[]=]""", self._text, re.MULTILINE)
        return f"{self._name}, line {self._text.count(chr(10), 0, found.start()) + 1}" if found else self._name


# --- checks: each returns the value to use, or raises Misfit ----------------------------------------------------------


class Misfit(ValueError):
    """A value is wrong. The message is the next step."""


def _column(value: Any) -> Any:
    if not isinstance(value, str):
        raise Misfit('give the name of one column in quotes, or "" for none')
    return value or None


def _key(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(name, str) and name for name in value):
        return tuple(value)
    if not isinstance(value, str):
        raise Misfit('give the name of a column in quotes, or several as ["a", "b"]')
    return value or None


def _state(value: Any) -> Any:
    if not isinstance(value, (str, int, float, bool)):
        raise Misfit("give a number, true, false or a text in quotes")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise Misfit("give a text in quotes")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Misfit("give true or false")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, value if isinstance(value, list) else [value]))


def _one_of(allowed: Collection[str]) -> Check:
    def check(value: Any) -> Any:
        if value not in allowed:
            raise Misfit(f"give one of {', '.join(map(repr, allowed))}")
        return value

    return check


HOLDS: Final = ("lease", "transaction")
CLAIMS: Final = ("rows", "batches")
LOCKS: Final = ("rows", "advisory")
ON_DONE: Final = ("delete", "keep", "leave")

ROLES: Final[dict[str, Check]] = {
    field.name: _key if field.name == "key" else _column for field in fields(Columns) if field.name != "states"
}
STATE_VALUES: Final[dict[str, Check]] = dict.fromkeys(STATES, _state)
_CHECKS: Final[dict[str, Check]] = {
    "table": _text,
    "hold": _one_of(HOLDS),
    "claims": _one_of(CLAIMS),
    "lock": _one_of(LOCKS),
    "side_car": _truth,
    "order_by": _texts,
    "where": _text,
    "on_done": _one_of(ON_DONE),
}
