"""Settle a batch and claim the next one in one transaction.

That is one commit for each batch. Where the database can, it is also one statement and one round trip.
"""

from __future__ import annotations

from typing import Any, Protocol

import sqlalchemy as sa

from claimjobs.batch.settle import MANY, Outcomes, Settler
from claimjobs.claim.one_statement import SETTLED_COLUMNS, OneStatement
from claimjobs.claim.strategy import NOTHING, ClaimRequest, ClaimResult, ClaimStrategy
from claimjobs.dialects import Key
from claimjobs.statements.claim import settled_by_the_dead


class SettleAndClaim(Protocol):
    """A way to settle outcomes of jobs held by `owner`, and to claim for `me`, in the caller's transaction.

    Returns the keys that were not the owner's any more, and what was claimed. Raises SomeLost, OwnerDead or
    KeyNotUnique, after which the transaction must be rolled back, and the outcomes settled by themselves.
    """

    strategy: ClaimStrategy

    def is_one_statement(self, outcomes: Outcomes) -> bool:
        """Whether these outcomes, and the claim, are one statement, which needs no transaction around it."""

    def settle_and_claim(
        self, connection: sa.Connection, me: int, request: ClaimRequest, *, owner: int, outcomes: Outcomes
    ) -> tuple[set[Key], ClaimResult]: ...


class SettleThenClaim:
    """The statements of a settle, then those of a claim."""

    def __init__(self, settler: Settler, strategy: ClaimStrategy) -> None:
        self._settler = settler
        self.strategy = strategy

    def is_one_statement(self, outcomes: Outcomes) -> bool:
        del outcomes
        return False

    def settle_and_claim(
        self, connection: sa.Connection, me: int, request: ClaimRequest, *, owner: int, outcomes: Outcomes
    ) -> tuple[set[Key], ClaimResult]:
        lost = self._settler.settle_in(connection, owner, outcomes)
        return lost, self.strategy.claim(connection, me, request)


class SettleAndClaimInOne(SettleThenClaim):
    """One statement, where all jobs are done: the usual case."""

    def __init__(self, settler: Settler, strategy: OneStatement, settle: sa.Delete | sa.Update, keys: int) -> None:
        """`settle` is the settler's for done jobs, whose keys have so many columns."""
        super().__init__(settler, strategy)
        self._one = strategy
        self._told = SETTLED_COLUMNS + keys
        self._statement = strategy.statement(self._told, settle)

    def is_one_statement(self, outcomes: Outcomes) -> bool:
        return self._one.is_one_statement and outcomes.all_done and len(outcomes.done) <= MANY

    def settle_and_claim(
        self, connection: sa.Connection, me: int, request: ClaimRequest, *, owner: int, outcomes: Outcomes
    ) -> tuple[set[Key], ClaimResult]:
        if not self.is_one_statement(outcomes):
            return super().settle_and_claim(connection, me, request, owner=owner, outcomes=outcomes)
        if owner != me:  # we were declared dead since: what is ours must still be one statement
            return self._settler.settle_in(connection, owner, outcomes), NOTHING
        statement = self._statement
        settle = {"claimjobs_keys": outcomes.done, "claimjobs_meant": len(outcomes.done)}
        parameters = {**statement.parameters(me, request), **settle}
        rows = statement.of(request).rows(connection, parameters, statement.reader)
        count, *arrays = rows[0][: self._told]
        settled = settled_by_the_dead(count) if count < 0 else count
        lost = set() if settled == len(outcomes.done) else set(outcomes.done) - _keys(arrays)
        if count < 0:  # what is settled is settled; the next claim finds out under which id
            return lost, NOTHING
        return lost, self._one.result(connection, statement.reader, rows, owner=me, request=request)


def _keys(arrays: list[list[Any]]) -> set[Key]:
    return set(arrays[0]) if len(arrays) == 1 else set(zip(*arrays, strict=True))


def settle_and_claim_for(settler: Settler, strategy: ClaimStrategy) -> SettleAndClaim:
    """The fastest way that the database can do it."""
    settle = settler.in_one
    if isinstance(strategy, OneStatement) and settle is not None:
        return SettleAndClaimInOne(settler, strategy, settle, keys=strategy.key_columns)
    return SettleThenClaim(settler, strategy)
