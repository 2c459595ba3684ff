"""Types of numbers on the command line, each with its bounds."""

from __future__ import annotations

import math
from typing import Any, Final

import click

LARGEST: Final = 2**31 - 1
"""The largest whole number: the columns that are compared with it hold no larger one."""
LONGEST: Final = 31_622_400.0
"""The longest duration: a year, in seconds. Timers of the system accept no longer ones."""
MOST_PROCESSES: Final = 1_000
LARGEST_PORT: Final = 65_535


class WholeNumber(click.IntRange):
    """A whole number from `least` on, up to a bound."""

    def __init__(self, least: int, most: int = LARGEST) -> None:
        super().__init__(least, most)


class Number(click.FloatRange):
    """A number above 0, or from `least` on, up to a bound; not infinite and not NaN."""

    def __init__(self, least: float = 0, most: float = LONGEST) -> None:
        super().__init__(least, most, min_open=not least)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number
