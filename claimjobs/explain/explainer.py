"""Explain: the checks of a queue, one after the other, on a connection of their own, and what they found."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.database.error_translation import reason
from claimjobs.dialects.inspection import VERDICTS, Finding, NotShown, Verdict
from claimjobs.errors import AccessDenied, BadPredicate, ClaimjobsError, SettingUnfit, UnfitTable
from claimjobs.explain import server
from claimjobs.explain.plans import Planned, Subject, plan_findings

STATEMENT_SECONDS: Final = 10.0
"""The longest that one statement may take, if the caller gives no time for all."""
FATAL = {UnfitTable: "table", BadPredicate: "predicate", SettingUnfit: "settings", AccessDenied: "rights"}
"""Errors that end every claim, and what each is about."""

Check = Callable[[sa.Connection, Subject], Iterable[Finding]]
Checks = dict[str, Check]
CHECKS: Final[Checks] = {
    "plan": plan_findings,
    "failures": server.failures,
    "settings": server.settings,
    "snapshots": server.snapshots,
    "wake": server.wake,
    "time limits": server.open_transactions,
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


def explain(engine: sa.Engine, subject: Subject, *, analyze: bool, seconds: float | None) -> Explanation:
    """All findings. `analyze`: claim once for real, and roll back. `seconds`: no check begins later, and no statement
    takes longer than a quarter of that time. Raises ConnectionFailed.
    """
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    longest: float | None = STATEMENT_SECONDS if seconds is None else seconds / 4
    findings: list[Finding] = []
    backend = subject.backend
    with connected(engine) as pooled:
        connection = pooled.execution_options(isolation_level=backend.dialect.isolation)
        connection.detach()  # it is not given back to the pool of the engine, because its settings are changed
        with connection.begin():
            is_ours = backend.dialect.sessions.is_as_greeted(connection)
        if not (subject.inspection.limits_transaction or is_ours):
            longest = None  # another client of a pooler would inherit the limit
        trial: Checks = {"row locks": server.claim_once} if analyze else {}
        for name, check in {**CHECKS, **trial}.items():
            if time.monotonic() <= deadline:
                findings.extend(_found(name, check, connection, subject, longest=longest))
    return Explanation(backend.source.name, tuple(findings), tuple(subject.planned))


def _found(
    name: str, check: Check, connection: sa.Connection, subject: Subject, *, longest: float | None
) -> Iterable[Finding]:
    """What a check finds, in a transaction that is rolled back. What the server refuses to show is a finding, too, and
    ends no other check.
    """
    found: list[Finding] = []
    try:
        with connection.begin() as transaction:
            if longest is not None:
                subject.inspection.limit_time(connection, longest)
            found.extend(check(connection, subject))
            transaction.rollback()
    except NotShown as hidden:
        found.append(Finding(name, "not known", f"not known, because {hidden}"))
    except ClaimjobsError as error:
        found.append(Finding(name, "will not work", str(error)))
    except sa.exc.DBAPIError as error:
        if error.connection_invalidated:
            raise
        found.append(Finding(name, "not known", f"not known, because {reason(error)}"))
    return found
