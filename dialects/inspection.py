"""What a server says of itself to a DBA: plans, row locks, settings, sessions.

A server may refuse to show something to this user. Then a method raises the driver's error, and the caller says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Protocol

import sqlalchemy as sa

Verdict = Literal["ok", "not known", "warning", "will not work"]
VERDICTS: Final[tuple[Verdict, ...]] = ("ok", "not known", "warning", "will not work")
"""From the best to the worst."""


@dataclass(frozen=True)
class Finding:
    """One thing that `explain` has checked, and what to do about it."""

    check: str
    """What was checked, in one or two words that stay the same: "index", "row locks"."""
    verdict: Verdict
    says: str
    """What was found, and the next step."""
    fix: tuple[str, ...] = ()
    """SQL that removes the cause. It can be run as it is."""


class NotShown(Exception):
    """The server does not show something, without an error. The text says why."""


@dataclass(frozen=True)
class TableRead:
    """How a plan reads one table."""

    table: str
    index: str | None
    """The index through which rows are found; None: the table itself is read."""
    is_scan: bool
    """Whether the whole table is read, or all of some partitions. Not those that are so small that it costs little."""
    rows: int | None
    """How many rows the planner expects."""
    partitions: tuple[str, ...] = ()
    """Those that are read; none: the table has none, or the server does not say."""
    are_small: bool = False
    """Whether they are so small that they are read as a whole, and sorted, whatever indexes there are."""


@dataclass(frozen=True)
class Plan:
    """How the database would run a statement."""

    reads: tuple[TableRead, ...]
    """Of real tables only: no subqueries, no lists of keys."""
    sorts: bool
    """Whether rows of a real table are sorted before the statement has taken what it wants."""
    text: str
    """The plan as the database writes it."""


@dataclass(frozen=True)
class Pin:
    """Who keeps old versions of rows from being removed: a session, a prepared transaction, a replication slot."""

    who: str
    seconds: float | None
    """Since when; None: that is not known."""


class Inspection(Protocol):
    """Reads what differs between databases. Each method sends one statement or a few."""

    limits_transaction: ClassVar[bool] = False
    """Whether `limit_time` counts until the transaction ends. Otherwise it counts until the session ends."""
    time_limit: ClassVar[str]
    """The statement of `limit_time`, of the parameters `seconds`, `whole` (seconds, at least 1) and `ms`."""
    snapshots: ClassVar[sa.TextClause]
    """Asks for `pins`: who, and the seconds."""
    hidden: ClassVar[sa.TextClause | None] = None
    """Asks why `pins` may be incomplete; NULL if they are complete."""

    def limit_time(self, connection: sa.Connection, seconds: float) -> None:
        """End each later statement that takes longer."""
        whole, ms = max(1, round(seconds)), max(1, round(seconds * 1000))
        connection.exec_driver_sql(self.time_limit.format(seconds=seconds, whole=whole, ms=ms)).close()

    def plan(self, connection: sa.Connection, sql: str, parameters: Any) -> Plan:
        """The plan of a statement, given as the driver gets it. The statement is not run."""

    def rows_read(self, connection: sa.Connection, table: sa.Table) -> int:
        """A count that grows with each row of the table that this transaction reads."""

    def row_locks(self, connection: sa.Connection, table: sa.Table) -> int:
        """How many rows of the table this transaction has locked or written."""

    def settings(self, connection: sa.Connection, *, by_lease: bool) -> Iterator[Finding]:
        """Settings of the server that matter to claims."""
        yield from ()

    def garbage(self, connection: sa.Connection, table: sa.Table) -> Iterator[Finding]:
        """How well the server removes the old versions of rows that claims would read."""

    def pins(self, connection: sa.Connection) -> Sequence[Pin]:
        """Who keeps old versions of rows, the oldest first. Raises NotShown if nobody is shown, but some are hidden."""
        found = [Pin(row.who, row.seconds) for row in connection.execute(self.snapshots)]
        if not found and self.hidden is not None and (why := connection.scalar(self.hidden)):
            raise NotShown(why)
        return found
