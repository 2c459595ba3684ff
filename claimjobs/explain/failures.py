"""Failures: whether the table can store one."""

from __future__ import annotations

from collections.abc import Iterator

from claimjobs.errors import StateMissing
from claimjobs.explain.subject import Subject
from claimjobs.findings import Finding
from claimjobs.table.failures import AGAIN, lacking


def failures(subject: Subject) -> Iterator[Finding]:
    """What the table lacks to store a failure. None for a table that has it all."""
    for lack in lacking(subject.backend.roles):
        fails = "fails for the last time" if isinstance(lack, StateMissing) else "fails"
        yield Finding("failures", "warning", f"a job that {fails} {AGAIN}, because {lack}")
