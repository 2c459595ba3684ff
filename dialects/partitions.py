"""Partitions by time: each database names, makes, lists and drops them in its own way.

A row belongs to a partition by the day on which it was inserted, in UTC. One more partition has the rows of all other
times, so that no INSERT is refused because a partition is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import ClassVar, Final, Literal, get_args

import sqlalchemy as sa

Unit = Literal["day", "week", "month"]
UNITS: Final[tuple[Unit, ...]] = get_args(Unit)

AHEAD: Final[Mapping[Unit, int]] = {"day": 7, "week": 4, "month": 3}
"""So many partitions of coming time are made. A claim looks into each of them, so there are not many."""

_NAME: Final = re.compile(r"p(\d{8})")

NAMES_AS_TABLES: Final = re.compile(r".+_(p\d{8}|default)")
"""The names of our partitions on a database where each is a table of its own."""


@dataclass(frozen=True)
class Period:
    """The time of one partition: from the beginning of the day `first` until the beginning of the day `end`, in UTC."""

    first: date
    end: date

    @property
    def name(self) -> str:
        """The name of its partition, without the table's name."""
        return f"p{self.first:%Y%m%d}"


def period_at(unit: Unit, day: date) -> Period:
    """The period with this day: the day, its week from Monday, or its month."""
    if unit == "day":
        return Period(day, day + timedelta(days=1))
    if unit == "week":
        monday = day - timedelta(days=day.weekday())
        return Period(monday, monday + timedelta(weeks=1))
    first = day.replace(day=1)
    return Period(first, (first + timedelta(days=31)).replace(day=1))


def coming(unit: Unit, now: datetime) -> Iterator[Period]:
    """The period with the instant `now` (in UTC), and those of the coming time that have a partition."""
    day = now.date()
    for _ in range(1 + AHEAD[unit]):
        period = period_at(unit, day)
        yield period
        day = period.end


def period_named(unit: Unit, name: str) -> Period | None:
    """The period of the partition with this name; None for a partition that claimjobs has not named."""
    found = _NAME.fullmatch(name)
    try:
        return period_at(unit, datetime.strptime(found[1], "%Y%m%d").date()) if found else None  # noqa: DTZ007
    except ValueError:
        return None


class Partitions:
    """The partitions of a table, by their names without the table's name."""

    rest: ClassVar[str]
    """The partition for the rows of all other times."""

    moves_rows: ClassVar[bool]
    """Whether new partitions get their rows from `rest`. Otherwise there must be none of their time."""

    needs: ClassVar[str]
    """What an account needs to make and to drop partitions."""

    def names(self, connection: sa.Connection, table: sa.Table) -> Sequence[str]:
        """The names of the table's partitions."""
        raise NotImplementedError

    def shown(self, table: sa.Table, name: str) -> str:
        """A partition as it is called in the database."""
        raise NotImplementedError

    def part(self, table: sa.Table, name: str) -> sa.TableClause:
        """One partition, to select from. Its columns have no table's name before them."""
        raise NotImplementedError

    def additions(self, table: sa.Table, periods: Sequence[Period], *, has_rest: bool) -> Sequence[str]:
        """The statements that make the partitions of these periods, and `rest` unless the table has it."""
        raise NotImplementedError

    def removal(self, table: sa.Table, name: str) -> str:
        """The statement that drops a partition with all its rows."""
        raise NotImplementedError

    def locked(
        self, connection: sa.Connection, table: sa.Table, seconds: int, name: str | None = None
    ) -> AbstractContextManager[None]:
        """Wait for at most so many seconds until nobody else uses the table, and keep it so while the block lasts.

        `name`: a partition that nobody must use by its own name either. What the block reads was committed before. The
        connection must be detached from its pool, because its settings change.
        """
        raise NotImplementedError
