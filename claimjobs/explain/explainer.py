"""Explainer: runs the checks of a queue, one after the other, on a connection of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.database.error_translation import reason
from claimjobs.dialects.inspection import NotShown
from claimjobs.errors import ClaimjobsError
from claimjobs.explain.holders import lease, wake
from claimjobs.explain.plans import Planned, index_finding, plan_finding, planned
from claimjobs.explain.rights import rights
from claimjobs.explain.server import isolation, snapshots
from claimjobs.explain.subject import Subject
from claimjobs.explain.trial import trial
from claimjobs.findings import Explanation, Finding

SECONDS: Final = 10.0
"""The longest that one statement may take, if the caller gives no time for all."""


class Explainer:
    """Collects findings. What the server refuses to show becomes a finding, too."""

    def __init__(self, engine: sa.Engine, subject: Subject, *, seconds: float | None = None) -> None:
        """`seconds`: no check begins later, and no statement takes longer than a quarter of that time."""
        self._engine, self._subject = engine, subject
        self._ends = math.inf if seconds is None else time.monotonic() + seconds
        self._longest = SECONDS if seconds is None else seconds / 4
        self._findings: list[Finding] = []
        self._planned: list[Planned] = []

    def run(self, *, analyze: bool = False) -> Explanation:
        """All findings. `analyze`: claim once for real, and roll back. Raises ConnectionFailed."""
        subject = self._subject
        with self._session("AUTOCOMMIT") as connection:
            self._add("plan", lambda: self._plans(connection))
            self._add("rights", lambda: rights(connection, subject))
            self._add("isolation", lambda: isolation(connection, subject))
            self._add("settings", lambda: subject.inspection.settings(connection, by_lease=subject.backend.by_lease))
            self._add("old rows", lambda: subject.inspection.garbage(connection, subject.table))
            self._add("snapshots", lambda: snapshots(connection, subject))
            self._add("lease", lambda: lease(connection, subject))
            self._add("wake", lambda: wake(connection, subject))
        if analyze:
            with self._session(subject.backend.dialect.isolation) as connection:
                self._add("row locks", lambda: trial(connection, subject))
        reports = [found.report for found in self._planned]
        return Explanation(self._subject.backend.source.name, tuple(self._findings), tuple(reports))

    @contextmanager
    def _session(self, isolation: str) -> Iterator[sa.Connection]:
        """A connection whose settings nobody else gets: it is not given back to the pool."""
        with connected(self._engine) as pooled:
            connection = pooled.execution_options(isolation_level=isolation)
            connection.detach()
            with connection.begin():
                self._subject.inspection.limit_time(connection, self._longest)
            yield connection

    def _add(self, check: str, find: Callable[[], Iterable[Finding]]) -> None:
        """Add what a check finds. A refusal of the server ends this check only."""
        if time.monotonic() > self._ends:
            return
        try:
            self._findings.extend(find())
        except NotShown as hidden:
            self._findings.append(Finding(check, "not known", f"not known, because {hidden}"))
        except ClaimjobsError as error:
            self._findings.append(Finding(check, "will not work", str(error)))
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
