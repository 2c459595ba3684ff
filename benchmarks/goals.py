"""Goals: what was to be reached, in ratios of one run on one server, and whether it was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.report import Figure

CONSUMERS = (1, 2, 4, 8)
"""At which the drain is held to its goals."""


@dataclass(frozen=True)
class Goal:
    """One bound, and the figure that it was held against."""

    point: int
    """Of the list in docs/benchmarks.md."""
    what: str
    figure: float
    bound: float
    at_least: bool = True
    """Or at most."""

    @property
    def reached(self) -> bool:
        return self.figure >= self.bound if self.at_least else self.figure <= self.bound

    def line(self) -> tuple[str, ...]:
        """Point, what, bound, figure, verdict."""
        sign = "at least" if self.at_least else "at most"
        verdict = "reached" if self.reached else "not reached"
        return str(self.point), self.what, f"{sign} {self.bound:g}", f"{self.figure:.3g}", verdict


class Found:
    """Figures, by contestant and place."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self._figures = {(figure.contestant, figure.at): figure for figure in figures}

    def __contains__(self, place: tuple[str, float]) -> bool:
        return place in self._figures

    def value(self, contestant: str, at: float) -> float:
        return self._figures[contestant, at].value

    def also(self, contestant: str, at: float, name: str) -> float:
        """Something else that was seen there, which is a number."""
        value = self._figures[contestant, at].also[name]
        assert isinstance(value, float | int)
        return value

    def places(self, contestant: str) -> list[float]:
        """Where it was measured."""
        return [at for name, at in self._figures if name == contestant]
