"""Cases: tables that claimjobs did not make. One case a row; each must end in "works" or in a clear refusal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pytest

from claimjobs import Columns
from claimjobs.errors import ClaimjobsError
from tests.flavours import FAMILIES, Family

Way = Literal["lease", "transaction", "side-car", "advisory"]
WAYS: Final[tuple[Way, ...]] = ("lease", "transaction", "side-car", "advisory")
"""How a table is claimed from. `advisory` holds by transaction, with locks on the keys in place of row locks."""

MYSQL: Final[tuple[Family, ...]] = ("mysql", "mariadb")
POSTGRES: Final[tuple[Family, ...]] = ("postgres",)

Refusal = type[ClaimjobsError]

_COLUMNS = (
    "n INTEGER NOT NULL, status VARCHAR(16) NOT NULL DEFAULT 'unclaimed', owner_id INTEGER, "
    "attempts INTEGER NOT NULL DEFAULT 0, last_error TEXT, run_at {instant}"
)
QUEUE: Final[Mapping[Family, str]] = {
    "postgres": _COLUMNS.format(instant="TIMESTAMP WITH TIME ZONE"),
    "mysql": _COLUMNS.format(instant="DATETIME(6)"),
    "mariadb": _COLUMNS.format(instant="DATETIME(6)"),
}
"""The columns of a queue: `{queue}` in the SQL of a case. `n` numbers the rows, from 0."""


@dataclass(frozen=True)
class Case:
    """A table, rows in it, and how a queue of it must end."""

    what: str
    make: str | Sequence[str]
    """SQL that makes it. `{t}` is its name as it is written in SQL, `{queue}` the columns of a queue."""
    rows: str = "INSERT INTO {t} (id, n) VALUES (1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5), (7, 6), (8, 7)"
    """SQL that enqueues. Empty: none."""
    count: int = 8
    """How many rows there are then. Each must be handled once."""
    unclaimed: int = 0
    """How many of them, the last ones, no claim ever takes."""
    on: tuple[Family, ...] = FAMILIES
    ways: tuple[Way, ...] = WAYS
    refused: Refusal | Mapping[Way, Refusal] | None = None
    """The error that refuses it, for every way or for some. None: it works."""
    names: str = ""
    """What the message of the refusal names. Empty: the table."""
    table: str = ""
    """What the table's name begins with."""
    schema: str | None = None
    """The schema of the table, in which its owners must be. None: that of the database."""
    columns: Columns | None = None
    settings: Sequence[str] = ()
    """SQL that is run on every new connection of the consumers."""
    undo: Sequence[str] = field(default=())
    """SQL that removes what is not the table's, such as a setting of the whole server."""
    left: str = "SELECT count(*) FROM {t}"
    """SQL that counts the rows."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the Queue."""

    def refusal(self, way: Way) -> Refusal | None:
        """The error that must refuse it where it is claimed from in this way."""
        return self.refused.get(way) if isinstance(self.refused, Mapping) else self.refused


def key(type_: str, *values: str, on: tuple[Family, ...] = FAMILIES, **more: Any) -> Case:
    """A table whose primary key has this type, with a row for each of these values, as they are written in SQL."""
    rows = ", ".join(f"({value}, {n})" for n, value in enumerate(values))
    return Case(
        what=more.pop("what", type_),
        make=f"CREATE TABLE {{t}} (id {type_} PRIMARY KEY, {{queue}})",
        rows=f"INSERT INTO {{t}} (id, n) VALUES {rows}",
        count=len(values),
        on=on,
        **more,
    )


def each(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """The decorator that runs a test for each case, on each of its databases, in each of its ways."""
    runs = [pytest.param(*run, id="-".join((run[0], run[1], run[2].what))) for run in _runs(cases)]
    return pytest.mark.parametrize(("family", "way", "case"), runs)


def _runs(cases: Sequence[Case]) -> Iterator[tuple[Family, Way, Case]]:
    for family in FAMILIES:
        for case in cases:
            if family in case.on:
                yield from ((family, way, case) for way in case.ways)


def table(
    what: str, made: str | Sequence[str] = "CREATE TABLE {t} (id INTEGER PRIMARY KEY, {queue})", **more: Any
) -> Case:
    """A table with eight rows."""
    return Case(what, made, **more)


def tally(cases: Sequence[Case]) -> tuple[int, int]:
    """How many runs of these cases work, and how many are refused."""
    refusals = [case.refusal(way) for _, way, case in _runs(cases)]
    return refusals.count(None), len(refusals) - refusals.count(None)
