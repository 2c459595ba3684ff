"""IdleChecks: the statements by which an idle owner checks for work and for dead owners, and when it sends them."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from claimjobs.statements import idle as statements
from claimjobs.table.backend import Backend


class IdleChecks:
    """The statements of a check. They are built again when the work to check for changes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._work: sa.ColumnElement[Any] | None = None
        self._built: dict[tuple[bool, bool], sa.Select[Any]] = {}

    def statement(self, work: sa.ColumnElement[Any] | None, *, careful: bool) -> sa.Select[Any]:
        """The statement that checks for this work, if any; with `careful`, also for owners that seem dead."""
        if work is not None and work is not self._work:
            self._work, self._built = work, {}
        kind = (work is not None, careful)
        if kind not in self._built:
            self._built[kind] = self._build(work, careful)
        return self._built[kind]

    def _build(self, work: sa.ColumnElement[Any] | None, careful: bool) -> sa.Select[Any]:
        backend = self._backend
        if careful:
            return statements.careful(backend.owners, work, dialect=backend.dialect, roles=backend.roles)
        return statements.check(backend.owners, work)

    def parameters(self, me: int) -> dict[str, Any]:
        """The parameters of the statements."""
        return {"claimjobs_me": me, "claimjobs_claims": self._backend.roles.claims}


@dataclass(frozen=True)
class WakeCondition:
    """What an idle loop waits for, and how often to check for it: not all work comes with a wake."""

    work: sa.ColumnElement[Any] | None
    """A scalar that is NULL when there is no work. None: only a claim finds out."""
    first: float
    """Seconds until the first check."""
    every: float
    """The longest pause between two checks, in seconds."""


class CheckSchedule:
    """When to check for work: the pauses between checks double up to the longest one."""

    def __init__(self, condition: WakeCondition) -> None:
        self._every = condition.every
        self._pause = min(condition.first, condition.every)
        self._due = time.monotonic() + self._pause

    @property
    def left(self) -> float:
        """Seconds until the next check."""
        return max(0.0, self._due - time.monotonic())

    def is_due(self, almost: float, *, rarer: float) -> bool:
        """Whether a check is due within `almost` seconds. If so, the next one is planned.

        `rarer`: a factor for the longest pause.
        """
        if self.left > almost:
            return False
        self._pause = min(2 * self._pause, rarer * self._every)
        self._due = time.monotonic() + self._pause * random.uniform(0.9, 1.0)  # noqa: S311
        return True
