"""Glances: what an owner looks at now and then while it sleeps, as statements."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.backend import Backend
from claimjobs.statements import sleepers as statements


class Glances:
    """The statements of a glance, each built once while what is looked for stays the same."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._work: sa.ColumnElement[Any] | None = None
        self._built: dict[tuple[bool, bool], sa.Select[Any]] = {}

    def __call__(self, work: sa.ColumnElement[Any] | None, *, careful: bool) -> sa.Select[Any]:
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

    def given(self, me: int) -> dict[str, Any]:
        """The parameters of each."""
        return {"claimjobs_me": me, "claimjobs_claims": self._backend.roles.name}
