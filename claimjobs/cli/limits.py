"""The limits of `claimjobs status --check`, and which of them a queue exceeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import Any

import click

from claimjobs.admin.stats import Stats
from claimjobs.cli.console import age, number
from claimjobs.cli.durations import Duration
from claimjobs.cli.numbers import WholeNumber
from claimjobs.cli.options import AnyCommand


@dataclass(frozen=True)
class Limits:
    """What is still healthy. None: this is not checked."""

    max_age: timedelta | None
    max_dead: int | None
    max_waiting: int | None
    min_owners: int | None

    @property
    def given(self) -> bool:
        """Whether there is any limit."""
        return any(limit is not None for limit in astuple(self))

    def exceeded(self, stats: Stats) -> Iterator[str]:
        """What is wrong, with the limit that says so."""
        yield from self._too_old(stats)
        if self.max_dead is not None and stats.dead > self.max_dead:
            yield f"{number(stats.dead, 'dead job')} (--max-dead {self.max_dead})"
        if self.max_waiting is not None and stats.unclaimed > self.max_waiting:
            yield f"{number(stats.unclaimed, 'unclaimed job')} (--max-waiting {self.max_waiting})"
        living = sum(not owner.dead for owner in stats.owners)
        if self.min_owners is not None and living < self.min_owners:
            yield f"{number(living, 'living owner')} (--min-owners {self.min_owners})"

    def _too_old(self, stats: Stats) -> Iterator[str]:
        if self.max_age is None:
            return
        limit = f"(--max-age {age(self.max_age.total_seconds())})"
        if stats.oldest is None and stats.due:
            yield f"no run_at says how long jobs have been due: name it in [columns] of the --map file {limit}"
        elif stats.oldest is not None and stats.oldest > self.max_age.total_seconds():
            yield f"the oldest job has been due for {age(stats.oldest)} {limit}"


def limit_options(command: AnyCommand) -> AnyCommand:
    """Add the options for the limits."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def _option(name: str, **attributes: Any) -> Callable[[AnyCommand], AnyCommand]:
    return click.option(name, **attributes)


OPTIONS = (
    _option("--max-age", type=Duration(), metavar="DURATION", help="The longest time that a job may be due: 90s, 5m."),
    _option("--max-dead", type=WholeNumber(0), metavar="JOBS", help="The most dead jobs."),
    _option("--max-waiting", type=WholeNumber(0), metavar="JOBS", help="The most unclaimed jobs, due or not."),
    _option("--min-owners", type=WholeNumber(0), metavar="OWNERS", help="The fewest owners that are not dead."),
)
