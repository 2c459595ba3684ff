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
from claimjobs.explain.checks import durability, failures, time_limits, wake
from claimjobs.explain.plans import Planned, index_finding, plan_finding, planned
from claimjobs.explain.rights import rights
from claimjobs.explain.server import any_order, isolation, primaries, snapshots
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
        self._may_limit = False
        """Whether the time of a statement can be limited, and no other client of a pooler inherits the limit."""

    def run(self, *, analyze: bool = False) -> Explanation:
        """All findings. `analyze`: claim once for real, and roll back. Raises ConnectionFailed."""
        subject = self._subject
        with self._session() as session:
            self._add(session, "plan", self._plans)
            self._add(session, "durability", lambda connection: durability(connection, subject))
            self._add(session, "failures", lambda connection: failures(connection, subject))
            self._add(session, "any order", lambda _: any_order(subject))
            self._add(session, "rights", lambda connection: rights(connection, subject))
            self._add(session, "isolation", lambda connection: isolation(connection, subject))
            self._add(session, "primaries", lambda connection: primaries(connection, subject))
            self._add(session, "settings", self._settings)
            self._add(session, "time limits", lambda connection: time_limits(connection, subject))
            self._add(session, "old rows", lambda connection: subject.inspection.garbage(connection, subject.table))
            self._add(session, "snapshots", lambda connection: snapshots(connection, subject))
            self._add(session, "wake", lambda connection: wake(connection, subject))
            if analyze:
                self._add(session, "row locks", lambda connection: trial(connection, subject))
        reports = [found.report for found in self._planned]
        return Explanation(self._subject.backend.source.name, tuple(self._findings), tuple(reports))

    @contextmanager
    def _session(self) -> Iterator[sa.Connection]:
        """A connection that is not given back to the pool of the engine, because its settings are changed."""
        dialect = self._subject.backend.dialect
        with connected(self._engine) as pooled:
            connection = pooled.execution_options(isolation_level=dialect.isolation)
            connection.detach()
            with connection.begin():
                ours = dialect.sessions.is_as_greeted(connection)
                self._may_limit = self._subject.inspection.limits_transaction or ours
            yield connection

    def _add(self, connection: sa.Connection, check: str, find: Callable[[sa.Connection], Iterable[Finding]]) -> None:
        """Add what a check finds, in a transaction that is rolled back. A refusal by the server ends no other check."""
        if time.monotonic() > self._ends:
            return
        try:
            with connection.begin() as transaction:
                if self._may_limit:
                    self._subject.inspection.limit_time(connection, self._longest)
                self._findings.extend(find(connection))
                transaction.rollback()
        except NotShown as hidden:
            self._findings.append(Finding(check, "not known", f"not known, because {hidden}"))
        except ClaimjobsError as error:
            self._findings.append(Finding(check, "will not work", str(error)))
        except sa.exc.DBAPIError as error:
            if error.connection_invalidated:
                raise
            self._findings.append(Finding(check, "not known", f"not known, because {reason(error)}"))

    def _settings(self, connection: sa.Connection) -> Iterator[Finding]:
        return self._subject.inspection.settings(connection, by_lease=self._subject.backend.by_lease)

    def _plans(self, connection: sa.Connection) -> Iterator[Finding]:
        self._planned.extend(planned(connection, self._subject))
        is_small = self._subject.is_small(connection)
        is_costly = any(found.is_costly for found in self._planned)
        yield from (plan_finding(found, is_small=is_small) for found in self._planned)
        if self._subject.backend.user_table is None:  # with a side-car the table must not be altered
            yield index_finding(connection, self._subject, is_costly=is_costly, is_small=is_small)
