"""Durations as a person writes them: 90s, 15m, 12h, 7d, 2w."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    Parameter = click.ParamType[timedelta]
else:
    Parameter = click.ParamType  # generic since click 8.4

UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Duration(Parameter):
    """A number and a unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", value.strip())
        if found is None:
            self.fail(f"{value!r} is no duration: write a number and a unit, such as 90s, 15m, 12h, 7d or 2w")
        try:
            return timedelta(**{UNITS[found[2]]: float(found[1])})
        except OverflowError:
            self.fail(f"{value!r} is too long: give less than {timedelta.max.days:,}d")
