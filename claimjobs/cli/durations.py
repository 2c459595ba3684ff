"""Spans of time as a person writes them: 90s, 15m, 12h, 7d, 2w."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Final

import click

UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Duration(click.ParamType[timedelta]):
    """A number and a unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", value.strip())
        if found is None:
            self.fail(f"{value!r} is no span of time: write a number and a unit, such as 90s, 15m, 12h, 7d or 2w")
        try:
            return timedelta(**{UNITS[found[2]]: float(found[1])})
        except OverflowError:
            self.fail(f"{value!r} is longer than time itself: give less than {timedelta.max.days:,}d")
