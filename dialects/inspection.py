"""What a server says of itself to a DBA: plans, row locks, settings, sessions.

A server may refuse to show something to this user. Then a method raises the driver's error, and the caller says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa


@dataclass(frozen=True)
class TableRead:
    """How a plan reads one table."""

    table: str
    index: str | None
    """The index through which rows are found; None: the table itself is read."""
    is_scan: bool
    """Whether the whole table is read."""
    rows: int | None
    """How many rows the planner expects."""


@dataclass(frozen=True)
class Plan:
    """How the database would run a statement."""

    reads: tuple[TableRead, ...]
    """Of real tables only: no subqueries, no lists of keys."""
    sorts: bool
    """Whether rows of a real table are sorted before the statement has taken what it wants."""
    text: str
    """The plan as the database writes it."""


class Inspection:
    """Reads what differs between databases. Each method sends one statement or a few."""

    def limit_time(self, connection: sa.Connection, seconds: float) -> None:
        """End each later statement of this session that takes longer."""
        raise NotImplementedError

    def plan(self, connection: sa.Connection, sql: str, parameters: Any) -> Plan:
        """The plan of a statement, given as the driver gets it. The statement is not run."""
        raise NotImplementedError
