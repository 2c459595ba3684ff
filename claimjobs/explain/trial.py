"""A claim that is made once for real, and rolled back: how many rows it locks, and how many it reads."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from claimjobs.claim.strategy import ClaimRequest
from claimjobs.dialects.inspection import NotShown
from claimjobs.explain.subject import NOBODY, SIZE, Subject
from claimjobs.findings import Finding
from claimjobs.statements import owners

CONSTANT: Final = 10
"""A claim may lock so many rows more than it takes, and read so many times as many rows."""


def trial(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Claim in a transaction that the caller rolls back. Meanwhile other consumers skip the rows that it locks."""
    inspection, table = subject.inspection, subject.table
    owner = _register(connection, subject)
    before = inspection.rows_read(connection, table)
    result = subject.plan.strategy.claim(connection, owner, ClaimRequest(SIZE, SIZE))
    read = inspection.rows_read(connection, table) - before
    jobs = len(result.jobs)
    if not jobs:
        raise NotShown("no job is due, or other consumers have locked all of them: there was none to claim")
    yield _read(jobs, read)
    yield _locked(jobs, inspection.row_locks(connection, table))


def _register(connection: sa.Connection, subject: Subject) -> int:
    """An owner that nobody else sees: its row is rolled back."""
    if not subject.backend.by_lease:
        return NOBODY
    row = {
        "host": socket.gethostname()[:255],
        "pid": os.getpid(),
        "claims": subject.backend.roles.claims,
        "lease": subject.liveness.lease,
    }
    inserted = connection.execute(owners.register(subject.backend.owners), row)
    return int(inserted.inserted_primary_key[0])  # type: ignore[index]  # one row was inserted


def _locked(jobs: int, locks: int) -> Finding:
    says = f"a claim of {jobs} jobs locks {locks:,} rows"
    if locks <= jobs + CONSTANT:
        return Finding("row locks", "ok", says)
    says = f"{says}: other consumers skip all of them until it is committed; see the plan of what locks"
    return Finding("row locks", "warning", says)


def _read(jobs: int, read: int) -> Finding:
    says = f"a claim of {jobs} jobs reads {read:,} rows"
    if read <= CONSTANT * (jobs + SIZE):
        return Finding("rows read", "ok", says)
    return Finding("rows read", "warning", f"{says}: see the findings on the index, on old rows and on snapshots")
