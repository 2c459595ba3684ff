"""Which strategy claims: by what the user chose, and by what the table and the database can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.claim.batch_claims import BatchClaims
from claimjobs.claim.batch_statement import batch_statement
from claimjobs.claim.claimed_values import ClaimedValues
from claimjobs.claim.find_and_lock import LockStrategy, lock_strategy
from claimjobs.claim.one_statement import OneStatement
from claimjobs.claim.recheck import RecheckedLocks
from claimjobs.claim.replica import FindOnReplica, Replica
from claimjobs.claim.strategy import ClaimStrategy
from claimjobs.claim.two_phases import LockOnly, TwoPhases
from claimjobs.options import HoldKind, LockKind
from claimjobs.statements.find import Selection
from claimjobs.table.backend import Backend


def strategy_for(
    backend: Backend,
    selection: Selection,
    now: sa.ColumnElement[Any],
    *,
    hold: HoldKind = "lease",
    lock: LockKind = "rows",
    session_lock: bool | None = None,
    lock_before_mark: bool = False,
    replica: Replica | None = None,
) -> ClaimStrategy:
    """The strategy for these settings. Strategies that most users do not need are imported only when they are chosen.

    `session_lock`: whether a session of the database belongs to this connection alone (see `Liveness`). None: a claim
    by advisory locks asks each new session.

    `replica`: where candidates are found; None: where they are locked.

    `lock_before_mark`: a claim by lease locks rows in a statement before the one that marks them. So it raises Unmarked
    if the database swallows the mark. A statement that checks and marks at once cannot distinguish that from rows that
    others have claimed.
    """
    if lock == "advisory":
        from claimjobs.claim.advisory_locks import advisory_strategy  # noqa: PLC0415

        return advisory_strategy(
            backend, selection, now, hold, session_lock=session_lock, lock_before_mark=lock_before_mark
        )
    if (batches := backend.roles.batches) is not None:
        simple = backend.user_table is None and replica is None and not selection.reads_other_rows
        at_once = batch_statement(backend, selection, batches) if simple else None
        return BatchClaims(backend, batches, _locks(backend, selection, now, replica=replica), at_once)
    if hold == "transaction":
        return LockOnly(_locks(backend, selection, now, replica=replica))
    in_one = backend.dialect.claims_in_one_statement and not selection.reads_other_rows
    if in_one and not lock_before_mark and replica is None:
        return OneStatement(backend, selection, now)
    values = ClaimedValues(backend.roles)
    return TwoPhases(backend, _locks(backend, selection, now, replica=replica, known=values.names), values, now)


def _locks(
    backend: Backend,
    selection: Selection,
    now: sa.ColumnElement[Any],
    *,
    replica: Replica | None,
    known: Sequence[str] = (),
) -> LockStrategy:
    """How jobs are found and locked. `known`: names of columns that are not read, because the claim writes them."""
    locks = _plain_locks(backend, selection, now, replica=replica, known=known)
    return RecheckedLocks(backend, selection, locks) if selection.reads_other_rows else locks


def _plain_locks(
    backend: Backend,
    selection: Selection,
    now: sa.ColumnElement[Any],
    *,
    replica: Replica | None,
    known: Sequence[str],
) -> LockStrategy:
    if backend.user_table is not None:
        from claimjobs.claim.side_car import side_car_locks  # noqa: PLC0415

        return side_car_locks(backend, selection, now)
    if replica is not None:
        return FindOnReplica(backend, selection, replica, known)
    return lock_strategy(backend, selection, known)
