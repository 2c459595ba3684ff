"""Settle a batch and claim the next one in one transaction.

That is one commit for each batch. Where the database can, it is also one statement and one round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.claim.batch_statement import BatchStatement
from claimjobs.claim.one_statement import SETTLED_COLUMNS, OneStatement
from claimjobs.claim.record import NUMBERS
from claimjobs.claim.strategy import NOTHING, ClaimRequest, ClaimResult, ClaimStrategy
from claimjobs.claim.two_phases import TwoPhases
from claimjobs.database.compiled_statement import CompiledStatement, PlainReader, Sent, rows_together
from claimjobs.database.transactions import commits_by_itself
from claimjobs.dialects import Key
from claimjobs.settle.outcomes import MANY, Outcomes
from claimjobs.settle.settler import Settler, SomeLost, batch_parameters
from claimjobs.statements.claim import settled_by_the_dead
from claimjobs.statements.claim_rows import settle_and_check


class SettleAndClaim:
    """First the statements of a settle, then those of a claim."""

    def __init__(self, settler: Settler, strategy: ClaimStrategy) -> None:
        self._settler, self._strategy = settler, strategy

    def needs_no_transaction(self, outcomes: Outcomes) -> bool:
        """Whether these outcomes and the claim need no transaction around them."""
        del outcomes
        return False

    def settle_and_claim(
        self, connection: sa.Connection, me: int, request: ClaimRequest, *, owner: int, outcomes: Outcomes
    ) -> tuple[set[Key], ClaimResult]:
        """Settle jobs of `owner`, and claim jobs for `me`, in the caller's transaction: the keys of the rows that
        were not written, and the claim.

        Raises SomeLost, OwnerDead or KeyUnfit: roll back then, and settle without a claim.
        """
        unwritten = self._settler.settle_in(connection, owner, outcomes)
        return unwritten, self._strategy.claim(connection, me, request)


class SettleAndClaimInOne(SettleAndClaim):
    """One statement if all jobs are done, which is the usual case."""

    def __init__(self, settler: Settler, strategy: OneStatement, settle: sa.Delete | sa.Update, keys: int) -> None:
        """`settle`: the settler's statement for done jobs."""
        super().__init__(settler, strategy)
        self._one = strategy
        self._settle_columns = SETTLED_COLUMNS + keys
        self._statement = strategy.statement(self._settle_columns, settle)

    def needs_no_transaction(self, outcomes: Outcomes) -> bool:
        return self._one.needs_no_transaction and outcomes.all_done and len(outcomes.done) <= MANY

    def settle_and_claim(
        self, connection: sa.Connection, me: int, request: ClaimRequest, *, owner: int, outcomes: Outcomes
    ) -> tuple[set[Key], ClaimResult]:
        if not self.needs_no_transaction(outcomes):
            return super().settle_and_claim(connection, me, request, owner=owner, outcomes=outcomes)
        if owner != me:  # declared dead meanwhile: without BEGIN only one statement can be sent, and that is the settle
            return self._settler.settle_in(connection, owner, outcomes), NOTHING
        statement = self._statement
        settle = {"claimjobs_keys": outcomes.done, "claimjobs_meant": len(outcomes.done)}
        parameters = {**statement.parameters(me, request), **settle}
        rows = statement.of(request).rows(connection, parameters, statement.reader)
        count, *arrays = rows[0][: self._settle_columns]
        settled = settled_by_the_dead(count) if count < 0 else count
        whole = settled == len(outcomes.done)
        unwritten = set() if whole else self._settler.missing(outcomes.done, _keys(arrays))
        if count < 0:  # the owner was declared dead: the settle stands, and the next claim registers a new id
            return unwritten, NOTHING
        return unwritten, self._one.result(connection, statement, rows, owner=me, request=request)


class SettleAndClaimInPipeline(SettleAndClaim):
    """Two statements in one round trip, if all jobs of a batch are done. The first claims the next batch. The second
    settles the last one, and looks at the claim rows again: it begins when the jobs are locked.

    In autocommit a pipeline is one transaction. So BEGIN and COMMIT are not sent either.
    """

    def __init__(
        self, settler: Settler, strategy: ClaimStrategy, claim: BatchStatement, settle: sa.Delete | sa.Update
    ) -> None:
        """`settle`: the settler's statement for a batch whose jobs are all done."""
        super().__init__(settler, strategy)
        self._claim = claim
        self._settle = CompiledStatement(settle_and_check(settle, claim.claim_rows))
        self._were_together = False
        """Whether the last statements were sent together: SQLAlchemy, which must send some, knows no pipeline."""

    def needs_no_transaction(self, outcomes: Outcomes) -> bool:
        return self._were_together and outcomes.is_done_batch

    def settle_and_claim(
        self, connection: sa.Connection, me: int, request: ClaimRequest, *, owner: int, outcomes: Outcomes
    ) -> tuple[set[Key], ClaimResult]:
        if not outcomes.is_done_batch:
            return super().settle_and_claim(connection, me, request, owner=owner, outcomes=outcomes)
        number = next(NUMBERS)
        new = {"claimjobs_new_me": me, "claimjobs_new_number": number}
        mine = {**self._claim.parameters(me, request), "claimjobs_number": number}
        claim = Sent(self._claim.of(request), mine, self._claim.reader)
        settle = Sent(self._settle, {**batch_parameters(owner, outcomes), **new}, PlainReader())
        rows, [(_, taken)] = self._answers(connection, claim, settle)
        following = self._claim.batch_result(connection, rows, request, owner=me, number=number)
        return set(), self._claim.without_taken(connection, following, request) if taken else following

    def _answers(self, connection: sa.Connection, *sent: Sent) -> list[Sequence[Any]]:
        """The rows of these statements. Raises SomeLost if they cannot be sent together, though the connection is in
        autocommit: each would be a transaction.
        """
        rows = rows_together(connection, self._claim.sessions, sent) if self._claim.reader.knows_columns else None
        self._were_together = rows is not None
        if rows is None and commits_by_itself(connection, unknown=False):
            raise SomeLost
        return rows or [each.statement.rows(connection, each.given, each.reader) for each in sent]


def _keys(arrays: list[list[Any]]) -> set[Key]:
    return set(arrays[0]) if len(arrays) == 1 else set(zip(*arrays, strict=True))


def settle_and_claim_for(settler: Settler, strategy: ClaimStrategy) -> SettleAndClaim:
    """The way with the fewest statements that the database can do."""
    if isinstance(strategy, TwoPhases) and strategy.at_once is not None and settler.settle_batch is not None:
        return SettleAndClaimInPipeline(settler, strategy, strategy.at_once, settler.settle_batch)
    settle = settler.in_one
    if isinstance(strategy, OneStatement) and settle is not None:
        return SettleAndClaimInOne(settler, strategy, settle, keys=strategy.key_columns)
    return SettleAndClaim(settler, strategy)
