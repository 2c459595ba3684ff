"""Which strategy claims: by what the user chose, and by what the table and the database can do."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.claim.batch_statement import batch_statement
from claimjobs.claim.locking import JobLocks, Locking, RecheckedLocks, RowLocks, SideCarLocks, TwoPhases
from claimjobs.claim.one_statement import OneStatement
from claimjobs.claim.record import ClaimRecord
from claimjobs.claim.strategy import ClaimStrategy
from claimjobs.statements.find import Selection
from claimjobs.table.backend import Backend


def strategy_for(
    backend: Backend,
    selection: Selection,
    record: ClaimRecord,
    now: sa.ColumnElement[Any],
    *,
    locking: Locking | None = None,
    lock_before_mark: bool = False,
) -> ClaimStrategy:
    """`locking`: how jobs are found and locked; None: by row locks, together with the mark where the database can.

    `lock_before_mark`: a claim by lease locks rows in a statement before the one that marks them. So it finds out if
    the database swallows the mark. A statement that checks and marks at once cannot distinguish that from rows that
    others have claimed.
    """
    may_be_one = locking is None and not selection.reads_other_rows and backend.user_table is None
    if may_be_one and record.names_owner and backend.dialect.claims_in_one_statement and not lock_before_mark:
        return OneStatement(backend, selection, record, now)
    claim_rows = backend.roles.claim_rows
    at_once = batch_statement(backend, selection, claim_rows) if may_be_one and claim_rows is not None else None
    locking = locking or RowLocks()
    locks: JobLocks
    if backend.user_table is not None:
        locks = SideCarLocks(backend, selection, now, locking)
    else:
        locks = locking.locks(backend, selection, known=list(record.values_of(0)))
    if selection.reads_other_rows:
        locks = RecheckedLocks(backend, selection, locks)
    return TwoPhases(locks, record, at_once)
