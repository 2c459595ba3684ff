"""Charts: lines over an axis, panels side by side, as an SVG that loads nothing and reads on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

PANEL = (460, 300)
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 34, 46
"""Margins of a panel, around the lines."""
LEGEND = 22
"""A line of the legend, below the panels."""
FEW = 12
"""A line of so few points shows each of them; an axis of so few values names each of them."""
COLOURS = ("#777777", "#c2410c", "#2563eb", "#15803d", "#7e22ce", "#b45309")
STYLE = "font-family:sans-serif;font-size:12px;fill:#222"


@dataclass(frozen=True)
class Line:
    """Points of a name, from left to right."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """A panel."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    logarithmic: bool = False
    """The axis from left to right; the other one begins at 0."""


def svg(charts: Sequence[Chart]) -> str:
    """The panels, with one legend for all: a name has the same colour in each."""
    names = list(dict.fromkeys(line.name for chart in charts for line in chart.lines))
    width, height = PANEL[0] * len(charts), PANEL[1] + LEGEND * math.ceil(len(names) / len(charts)) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="{STYLE}" role="img">',
        f"<title>{escape('; '.join(chart.title for chart in charts))}</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for number, chart in enumerate(charts):
        parts += [f'<g transform="translate({number * PANEL[0]} 0)">', *_panel(chart, names), "</g>"]
    return "\n".join([*parts, *_legend(names, len(charts)), "</svg>", ""])


def _panel(chart: Chart, names: Sequence[str]) -> Iterator[str]:
    right, bottom = PANEL[0] - RIGHT, PANEL[1] - BOTTOM
    along = _Axis([x for line in chart.lines for x, _ in line.points], LEFT, right, logarithmic=chart.logarithmic)
    up = _Axis([0, *(y for line in chart.lines for _, y in line.points)], bottom, TOP)
    yield _text(LEFT, 18, chart.title, text_anchor="start", font_weight="bold")
    yield _text((LEFT + right) / 2, PANEL[1] - 10, chart.x)
    yield _text(14, (TOP + bottom) / 2, chart.y, transform=f"rotate(-90 14 {(TOP + bottom) / 2:g})")
    for value in up.ticks():
        yield f'<path d="M{LEFT} {up(value):.1f}H{right}" stroke="#ddd"/>'
        yield _text(LEFT - 6, up(value) + 4, short(value), text_anchor="end")
    for value in along.ticks():
        yield _text(along(value), bottom + 18, short(value))
    for line in chart.lines:
        yield from _line(line, COLOURS[names.index(line.name) % len(COLOURS)], along, up)


def _line(line: Line, colour: str, along: _Axis, up: _Axis) -> Iterator[str]:
    points = [(along(x), up(y)) for x, y in line.points]
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>'
    if len(points) <= FEW:
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)


def _legend(names: Sequence[str], columns: int) -> Iterator[str]:
    for number, name in enumerate(names):
        x, y = LEFT + number % columns * PANEL[0], PANEL[1] + number // columns * LEGEND + 12
        colour = COLOURS[number % len(COLOURS)]
        yield f'<path d="M{x} {y - 4}h24" stroke="{colour}" stroke-width="3"/>'
        yield _text(x + 32, y, name, text_anchor="start")


class _Axis:
    """From values to places."""

    def __init__(self, values: Sequence[float], begin: float, end: float, *, logarithmic: bool = False) -> None:
        self._scale = math.log10 if logarithmic else float
        self._values = sorted(set(values))
        self._begin, self._end = begin, end
        self._upright = end < begin
        self._step = _above(self._values[-1] / 5) if self._upright else 10.0
        self._last = _multiple_above(self._values[-1], self._step) if self._upright else self._values[-1]

    def __call__(self, value: float) -> float:
        first, last = self._scale(self._values[0]), self._scale(self._last)
        part = (self._scale(value) - first) / ((last - first) or 1)
        return self._begin + (self._end - self._begin) * part

    def ticks(self) -> list[float]:
        """The values that are named: round ones, or each that there is, where they are few."""
        if not self._upright and len(self._values) <= FEW:
            return self._values
        return [self._step * number for number in range(int(self._last / self._step + 1e-9) + 1)]


def _multiple_above(value: float, step: float) -> float:
    return step * max(1, math.ceil(value / step - 1e-9))


def _above(value: float) -> float:
    """The next round number: 1, 2, 2.5 or 5 with zeros."""
    power = 10.0 ** math.floor(math.log10(value or 1))
    return next(round_one * power for round_one in (1, 2, 2.5, 5, 10) if value <= round_one * power * (1 + 1e-9))


def short(value: float) -> str:
    """1,500 as 1.5k."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _text(x: float, y: float, text: str, **more: str) -> str:
    given = {"text-anchor": "middle", **{name.replace("_", "-"): value for name, value in more.items()}}
    attributes = " ".join(f'{name}="{value}"' for name, value in given.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(text)}</text>'
