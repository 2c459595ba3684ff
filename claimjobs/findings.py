"""Findings: what `explain` says about a queue, each with a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

Verdict = Literal["ok", "not known", "warning", "will not work"]
VERDICTS: Final[tuple[Verdict, ...]] = ("ok", "not known", "warning", "will not work")
"""From the best to the worst."""


@dataclass(frozen=True)
class Finding:
    """One thing that was checked, and what to do about it."""

    check: str
    """What was checked, in one or two words that stay the same: "index", "row locks"."""
    verdict: Verdict
    says: str
    """What was found, and the next step."""
    fix: tuple[str, ...] = ()
    """SQL that removes the cause. It can be run as it is."""


@dataclass(frozen=True)
class PhaseReport:
    """A statement of a claim or a settle, as it is sent, and its plan."""

    name: str
    sql: str
    plan: str
    """The plan as the database writes it: JSON, or a table."""


@dataclass(frozen=True)
class Explanation:
    """What a queue's statements do on this database, and what the server's settings mean for them."""

    table: str
    findings: Sequence[Finding]
    phases: Sequence[PhaseReport] = field(default=())

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all findings."""
        return max((finding.verdict for finding in self.findings), key=VERDICTS.index, default="ok")

    def as_dict(self) -> dict[str, Any]:
        """Plain data: `table`, `verdict`, `findings` and `phases`."""
        return {"table": self.table, "verdict": self.verdict} | {
            name: [asdict(item) for item in items]
            for name, items in (("findings", self.findings), ("phases", self.phases))
        }
