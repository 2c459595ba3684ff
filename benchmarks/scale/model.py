"""Model: N consumers take turns at a station, here the cores of a primary, and are away between two turns.

This is a closed queueing network of a delay and one station whose rate depends on how many consumers are at it, also
known as the finite-source queue or the machine repairman. With n consumers at the station, N - n are away, so

    p(n) = p(n - 1) * (N - n + 1) / away / rate(n)

and the throughput is the mean of rate(n). It is exact for a station that is shared by all who are at it, as the cores
of a machine are, whatever the distribution of the times. A station whose rates were measured stands for a whole
subsystem (flow equivalence). Source: Lazowska, Zahorjan, Graham, Sevcik, Quantitative System Performance, 1984,
chapters 5 (bounds) and 8 (flow equivalence).

Mean value analysis gives the same figures. Its recursion for such a station subtracts from 1 what is almost 1 when the
station is busy, and so loses its digits; the weights above are only added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol


class Station(Protocol):
    """Where consumers compete."""

    def rate(self, consumers: int) -> float:
        """Turns a second while so many consumers are at it, at least one."""


@dataclass(frozen=True)
class Curve:
    """Measured points, from left to right: a line between two, and constant before the first and after the last."""

    points: Sequence[tuple[float, float]]

    def at(self, x: float) -> float:
        """The value at a place."""
        for (left, low), (right, high) in pairwise(self.points):
            if left <= x <= right:
                return low + (high - low) * (x - left) / (right - left)
        return self.points[0 if x < self.points[0][0] else -1][1]

    def times(self, factor: float) -> Curve:
        """Each value multiplied."""
        return Curve([(x, value * factor) for x, value in self.points])


@dataclass(frozen=True)
class Cores:
    """Cores that a turn needs for some seconds of CPU; a consumer uses one core at a time."""

    cores: float
    demand: Curve
    """CPU seconds of a turn, by how many consumers are at it: those who compete cost each other."""

    def rate(self, consumers: int) -> float:
        return min(consumers, self.cores) / self.demand.at(consumers)

    @property
    def most(self) -> float:
        """Turns a second with more consumers than were ever measured."""
        return self.cores / self.demand.points[-1][1]


@dataclass(frozen=True)
class Measured:
    """A system whose turns a second were measured with so many consumers that were never away."""

    rates: Curve

    def rate(self, consumers: int) -> float:
        return self.rates.at(consumers)


def throughput(consumers: int, away: float, station: Station) -> float:
    """Turns a second of so many consumers, each of whom is `away` for so many seconds between two turns."""
    if not away:
        return station.rate(consumers)
    rates = [station.rate(here) for here in range(1, consumers + 1)]
    logarithms = [0.0]
    for here, rate in enumerate(rates, 1):
        logarithms.append(logarithms[-1] + math.log((consumers - here + 1) / away / rate))
    top = max(logarithms)
    weights = [math.exp(logarithm - top) for logarithm in logarithms]
    return sum(weight * rate for weight, rate in zip(weights[1:], rates, strict=True)) / sum(weights)


def consumers_for(turns: float, away: float, station: Cores) -> int:
    """The fewest consumers that make so many turns a second, which the station must be able to carry for ever."""
    if turns >= station.most:
        raise ValueError(f"{turns:g} turns a second are more than the station carries, {station.most:g}")
    few, many = 0, 1
    while throughput(many, away, station) < turns:
        few, many = many, many * 2
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if throughput(middle, away, station) >= turns else (middle, many)
    return many
