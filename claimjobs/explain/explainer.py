"""Explainer: runs the checks of a queue, one after the other, on a connection of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.database.error_translation import reason
from claimjobs.explain.plans import Planned, index_finding, plan_finding, planned
from claimjobs.explain.subject import Subject
from claimjobs.findings import Explanation, Finding

SECONDS: Final = 10.0
"""The longest that one statement of `explain` may take."""


class Explainer:
    """Collects findings. What the server refuses to show becomes a finding, too."""

    def __init__(self, engine: sa.Engine, subject: Subject, *, seconds: float = SECONDS) -> None:
        """`seconds`: the longest that one statement may take."""
        self._engine, self._subject, self._seconds = engine, subject, seconds
        self._findings: list[Finding] = []
        self._planned: list[Planned] = []

    def run(self) -> Explanation:
        """All findings. Raises ConnectionFailed."""
        with self._session() as connection:
            self._add("plan", lambda: self._plans(connection))
        reports = [found.report for found in self._planned]
        return Explanation(self._subject.backend.source.name, tuple(self._findings), tuple(reports))

    @contextmanager
    def _session(self) -> Iterator[sa.Connection]:
        """A connection whose settings nobody else gets: it is not given back to the pool."""
        with connected(self._engine) as pooled:
            connection = pooled.execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()
            self._subject.inspection.limit_time(connection, self._seconds)
            yield connection

    def _add(self, check: str, find: Callable[[], Iterable[Finding]]) -> None:
        """Add what a check finds. A refusal of the server ends this check only."""
        try:
            self._findings.extend(find())
        except sa.exc.DBAPIError as error:
            if error.connection_invalidated:
                raise
            self._findings.append(Finding(check, "not known", f"not known, because {reason(error)}"))

    def _plans(self, connection: sa.Connection) -> Iterator[Finding]:
        self._planned.extend(planned(connection, self._subject))
        is_small = self._subject.is_small(connection)
        is_costly = any(found.is_costly for found in self._planned)
        yield from (plan_finding(found, is_small=is_small) for found in self._planned)
        if self._subject.backend.user_table is None:  # with a side-car the table must not be altered
            yield index_finding(connection, self._subject, is_costly=is_costly, is_small=is_small)
