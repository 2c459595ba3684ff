"""Which strategy claims: by what the user chose, and by what the table and the database can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.claim.batch_claims import BatchClaims, batch_statement
from claimjobs.claim.find_and_lock import RowLocks
from claimjobs.claim.locking import JobLocks, Locking, RecheckedLocks
from claimjobs.claim.one_statement import OneStatement
from claimjobs.claim.strategy import ClaimStrategy
from claimjobs.claim.two_phases import LockOnly, TwoPhases
from claimjobs.claim.written_claim import ClaimedValues
from claimjobs.options import HoldKind
from claimjobs.statements.find import Selection
from claimjobs.table.backend import Backend


def strategy_for(
    backend: Backend,
    selection: Selection,
    now: sa.ColumnElement[Any],
    *,
    hold: HoldKind = "lease",
    locking: Locking | None = None,
    lock_before_mark: bool = False,
) -> ClaimStrategy:
    """The strategy for these settings.

    `locking`: how jobs are found and locked; None: by row locks, together with the mark where the database can.

    `lock_before_mark`: a claim by lease locks rows in a statement before the one that marks them. So it raises Unmarked
    if the database swallows the mark. A statement that checks and marks at once cannot distinguish that from rows that
    others have claimed.
    """
    may_be_one = locking is None and not selection.reads_other_rows
    if (claim_rows := backend.roles.claim_rows) is not None:
        at_once = batch_statement(backend, selection, claim_rows) if may_be_one and backend.user_table is None else None
        return BatchClaims(backend, claim_rows, _locks(backend, selection, now, locking), at_once)
    if hold == "transaction":
        return LockOnly(_locks(backend, selection, now, locking))
    if may_be_one and backend.dialect.claims_in_one_statement and not lock_before_mark:
        return OneStatement(backend, selection, now)
    values = ClaimedValues(backend.roles)
    locks = _locks(backend, selection, now, locking, known=values.names)
    return TwoPhases(backend, locks, values, now)


def _locks(
    backend: Backend,
    selection: Selection,
    now: sa.ColumnElement[Any],
    locking: Locking | None,
    *,
    known: Sequence[str] = (),
) -> JobLocks:
    """How jobs are found and locked. `known`: names of columns that are not read, because the claim writes them."""
    locks: JobLocks
    if backend.user_table is not None:
        from claimjobs.claim.side_car import side_car_locks  # noqa: PLC0415 - most users need no side-car

        locks = side_car_locks(backend, selection, now)
    else:
        locks = (locking or RowLocks()).locks(backend, selection, known)
    return RecheckedLocks(backend, selection, locks) if selection.reads_other_rows else locks
