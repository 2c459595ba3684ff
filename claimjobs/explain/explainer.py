"""Explain: the checks of a queue, one after the other, on a connection of their own, and what they found."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.database.error_translation import reason
from claimjobs.dialects.inspection import VERDICTS, Finding, NotShown, Verdict
from claimjobs.errors import AccessDenied, BadPredicate, ClaimjobsError, SettingUnfit, UnfitTable
from claimjobs.explain import server
from claimjobs.explain.plans import SMALL, Planned, Subject, index_finding, plan_finding, plans, rights_finding
from claimjobs.explain.trials import claim_once

SECONDS: Final = 10.0
"""The longest that one statement may take, if the caller gives no time for all."""
FATAL = {UnfitTable: "table", BadPredicate: "predicate", SettingUnfit: "settings", AccessDenied: "rights"}
"""Errors that end every claim, and what each is about."""

Check = Callable[[sa.Connection, Subject], Iterable[Finding]]
CHECKS: Final[dict[str, Check]] = {
    "failures": server.failures,
    "states": server.states,
    "isolation": server.isolation,
    "primaries": server.primaries,
    "settings": server.settings,
    "time limits": server.time_limits,
    "old rows": server.old_rows,
    "snapshots": server.snapshots,
    "wake": server.wake,
}


@dataclass(frozen=True)
class Explanation:
    """What a queue's statements do on this database, and what the server's settings mean for them."""

    table: str
    findings: Sequence[Finding]
    phases: Sequence[Planned] = ()
    """Each statement of a claim and of a settle, as it is sent (`sql`), with its plan."""

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all findings."""
        return max((finding.verdict for finding in self.findings), key=VERDICTS.index, default="ok")

    def as_dict(self) -> dict[str, Any]:
        """Plain data: `table`, `verdict`, `findings` and `phases`."""
        phases = [{"name": phase.name, "sql": phase.sql, "plan": phase.plan.text} for phase in self.phases]
        findings = [asdict(finding) for finding in self.findings]
        return {"table": self.table, "verdict": self.verdict, "findings": findings, "phases": phases}


def cannot_work(table: str, error: ClaimjobsError) -> Explanation:
    """The explanation of a queue for which an error of `FATAL` ends every claim."""
    check = next(check for kind, check in FATAL.items() if isinstance(error, kind))
    return Explanation(table, (Finding(check, "will not work", str(error)),))


class Explainer:
    """Collects findings. What the server refuses to show becomes a finding, too."""

    def __init__(self, engine: sa.Engine, subject: Subject, *, seconds: float | None = None) -> None:
        """`seconds`: no check begins later, and no statement takes longer than a quarter of that time."""
        self._engine, self._subject = engine, subject
        self._ends = math.inf if seconds is None else time.monotonic() + seconds
        self._longest: float | None = (
            SECONDS if seconds is None else seconds / 4
        )  # of a statement; None: it is not limited
        self._findings: list[Finding] = []
        self._planned: list[Planned] = []

    def run(self, *, analyze: bool = False) -> Explanation:
        """All findings. `analyze`: claim once for real, and roll back. Raises ConnectionFailed."""
        checks = {"plan": self._plans, **CHECKS, **({"row locks": claim_once} if analyze else {})}
        backend = self._subject.backend
        with connected(self._engine) as pooled:
            connection = pooled.execution_options(isolation_level=backend.dialect.isolation)
            connection.detach()  # it is not given back to the pool of the engine, because its settings are changed
            with connection.begin():
                is_ours = backend.dialect.sessions.is_as_greeted(connection)
            if not (self._subject.inspection.limits_transaction or is_ours):
                self._longest = None  # another client of a pooler would inherit the limit
            for name, check in checks.items():
                if time.monotonic() <= self._ends:
                    self._add(connection, name, check)
        return Explanation(backend.source.name, tuple(self._findings), tuple(self._planned))

    def _add(self, connection: sa.Connection, name: str, check: Check) -> None:
        """Add what a check finds, in a transaction that is rolled back. A refusal by the server ends no other check."""
        try:
            with connection.begin() as transaction:
                if self._longest is not None:
                    self._subject.inspection.limit_time(connection, self._longest)
                self._findings.extend(check(connection, self._subject))
                transaction.rollback()
        except NotShown as hidden:
            self._findings.append(Finding(name, "not known", f"not known, because {hidden}"))
        except ClaimjobsError as error:
            self._findings.append(Finding(name, "will not work", str(error)))
        except sa.exc.DBAPIError as error:
            if error.connection_invalidated:
                raise
            self._findings.append(Finding(name, "not known", f"not known, because {reason(error)}"))

    def _plans(self, connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
        rows = subject.rows(connection)
        self._planned, refused = plans(connection, subject, has_rows=rows > 0)
        is_small, is_costly = rows < SMALL, any(found.costs for found in self._planned)
        yield from (plan_finding(found, is_small=is_small) for found in self._planned)
        if subject.backend.user_table is None:  # with a side-car the table must not be altered
            yield index_finding(connection, subject, is_costly=is_costly, is_small=is_small)
        yield rights_finding(refused)
