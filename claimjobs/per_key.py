"""PerKey: limits, order, turns and rates for each value of a column of the jobs, such as their customer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, get_args

AfterFailure = Literal["wait", "skip"]
"""What a failed job does to later jobs of its key: they wait for its next attempt, or do not."""
UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
MOST: Final = 100_000
"""The largest limit, and the largest rate a second."""


class Rate(NamedTuple):
    interval: float
    """Seconds from one to the next, on average."""
    burst: int
    """How many may begin at once, after a time without any."""


@dataclass(frozen=True)
class PerKey:
    """What holds for each value of these columns (each *key*), over all consumers on all machines.

    `at_most`: so many jobs of a key are claimed at any moment. `in_order`: one at a time, in the order of the queue; a
    failed one is waited for until it is done or dead, or not with `after_failure="skip"`. `rate`: so many are claimed
    in each second, minute, hour or day, such as "100/min"; `burst` of them at once, by default as many as in one
    second. `fair`: keys take turns, and one claim takes at most its own size of a key; without it the key that has
    waited longest goes on until it has no job. `weights`: how much a key gets in its turn, in proportion to 1; a
    claim is then at most half of one key.

    Raises ValueError for values that do not go together.
    """

    columns: str | Sequence[str]
    at_most: int | None = None
    in_order: bool = False
    fair: bool = True
    rate: str | None = None
    burst: int | None = None
    weights: Mapping[Any, float] = field(default_factory=dict)
    after_failure: AfterFailure = "wait"

    def __post_init__(self) -> None:
        if not self.names or not all(isinstance(name, str) and name for name in self.names):
            raise ValueError(f"per_key columns={self.columns!r}: give the name of a column, or several")
        for name in ("at_most", "burst"):
            given = getattr(self, name)
            if given is not None and not (
                isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= MOST
            ):
                raise ValueError(f"per_key {name}={given!r}: give a whole number from 1 to {MOST:,}")
        if self.in_order and self.at_most not in (None, 1):
            raise ValueError(f"per_key in_order=True is one job at a time, not at_most={self.at_most}: leave that out")
        if self.after_failure not in get_args(AfterFailure) or (self.after_failure == "skip" and not self.in_order):
            raise ValueError(f"per_key after_failure={self.after_failure!r}: give 'wait' or 'skip', with in_order=True")
        if self.burst is not None and self.rate is None:
            raise ValueError(f"per_key burst={self.burst} is that of a rate: give rate, too")
        if self.weights and not (self.fair and all(_is_weight(one) for one in self.weights.values())):
            raise ValueError("per_key weights are numbers above 0, up to 1,000, with fair=True")
        _ = self.pace  # raises for a rate that cannot be read

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)

    @property
    def limit(self) -> int | None:
        """How many jobs of a key may be claimed at once; None: any number."""
        return 1 if self.in_order else self.at_most

    @property
    def waits(self) -> bool:
        """Whether a failed job is waited for."""
        return self.in_order and self.after_failure == "wait"

    @cached_property
    def pace(self) -> Rate | None:
        """The rate. Raises ValueError if it cannot be read."""
        if self.rate is None:
            return None
        found = re.fullmatch(r"\s*(\d+)\s*/\s*(s|min|h|d)\s*", str(self.rate))
        per_second = int(found[1]) / UNITS[found[2]] if found else 0.0
        if not 0 < per_second <= MOST:
            raise ValueError(f"per_key rate={self.rate!r}: give a number for a time, such as 10/s, 100/min, 5/h or 1/d")
        return Rate(1 / per_second, self.burst or max(1, int(per_second)))

    def share(self, weight: float, size: int) -> int:
        """How many jobs a claim of `size` takes of a key of this weight at most. With weights it is at most half of the
        claim: a turn that has no room for its share would get less than that.
        """
        if not self.weights:
            return size
        largest = max(1.0, *self.weights.values())
        return max(1, round(size / 2 * weight / largest))


def _is_weight(given: Any) -> bool:
    return isinstance(given, (int, float)) and not isinstance(given, bool) and 0 < given <= 1_000
