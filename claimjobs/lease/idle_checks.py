"""IdleChecks: the statements that an owner sends now and then while it sleeps."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from claimjobs.statements import idle as statements
from claimjobs.table.backend import Backend


class IdleChecks:
    """The statements of a glance, each built once while what is looked for stays the same."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._work: sa.ColumnElement[Any] | None = None
        self._built: dict[tuple[bool, bool], sa.Select[Any]] = {}

    def statement(self, work: sa.ColumnElement[Any] | None, *, careful: bool) -> sa.Select[Any]:
        """The statement that looks for this work, if any; `careful`: and for owners that seem dead."""
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
        return statements.glance(backend.owners, work)

    def parameters(self, me: int) -> dict[str, Any]:
        """The parameters of each."""
        return {"claimjobs_me": me, "claimjobs_claims": self._backend.roles.name}


@dataclass(frozen=True)
class WakeCondition:
    """What a loop without work waits for."""

    work: sa.ColumnElement[Any] | None
    """NULL where there is none; None: only a claim can tell."""
    first: float
    every: float
    """Seconds until the first look for it, and between two at last: not all work comes with a call."""


class CheckSchedule:
    """When to look for work that came without a call: ever later, at last every so many seconds."""

    def __init__(self, condition: WakeCondition) -> None:
        self._every = condition.every
        self._pause = min(condition.first, condition.every)
        self._due = time.monotonic() + self._pause

    @property
    def left(self) -> float:
        """Seconds until the next one."""
        return max(0.0, self._due - time.monotonic())

    def is_due(self, almost: float, *, rarer: float) -> bool:
        """Whether it is time, or almost; then the next one comes after twice the time, and that much rarer at last."""
        if self.left > almost:
            return False
        self._pause = min(2 * self._pause, rarer * self._every)
        self._due = time.monotonic() + self._pause * random.uniform(0.9, 1.0)  # noqa: S311
        return True
