"""Outcomes: whether the table can store a failure, and whether it is known what happens to done jobs."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from claimjobs.errors import StateMissing
from claimjobs.explain.subject import Subject
from claimjobs.findings import Finding
from claimjobs.table.failures import AGAIN, lacking
from claimjobs.table.on_done import MARK_LOST, lost_mark


def failures(subject: Subject) -> Iterator[Finding]:
    """What the table lacks to store a failure. None for a table that has it all."""
    for lack in lacking(subject.backend.roles):
        fails = "fails for the last time" if isinstance(lack, StateMissing) else "fails"
        yield Finding("failures", "warning", f"a job that {fails} {AGAIN}, because {lack}")


def comments(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Whether the comment is lost that says that claimjobs made the table."""
    if fix := lost_mark(connection, subject.table):
        yield Finding("comments", "warning", MARK_LOST, (fix,))
