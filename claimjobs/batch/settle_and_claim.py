"""Settle a batch and claim the next one in one transaction.

That is one commit for each batch. Where the database can, it is also one statement or one round trip.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.claim.claim_plan import ClaimPlan
from claimjobs.claim.one_statement import OneStatement
from claimjobs.claim.record import NUMBERS
from claimjobs.claim.strategy import NOTHING, ClaimRequest, ClaimResult
from claimjobs.database.compiled_statement import CompiledStatement, Sent, rows_together
from claimjobs.database.transactions import commits_by_itself
from claimjobs.dialects import Key
from claimjobs.errors import key_unequal
from claimjobs.settle.outcomes import Outcomes
from claimjobs.settle.settler import Settler, SomeLost, batch_parameters
from claimjobs.statements.claim_rows import settle_and_check


class SettleAndClaim:
    """First the statements of a settle, then those of a claim. If all jobs are done, which is the usual case:

    - With claims in rows one statement does both, where the database can claim in one.
    - With claim rows two statements are sent together, where the driver can. The first claims the next batch. The
      second settles the last one, and looks at the claim rows again: it begins when the jobs are locked. In autocommit
      they are one transaction. So BEGIN and COMMIT are not sent either.
    """

    def __init__(self, settler: Settler, plan: ClaimPlan) -> None:
        self.plan, self._settler, self._strategy = plan, settler, plan.strategy
        self._one = self._claim = None
        done, strategy = settler.settle_done, plan.strategy
        if done is not None and isinstance(strategy, OneStatement) and strategy.needs_no_transaction:
            self._one = strategy.settling(done.statement)
        elif done is not None and plan.batch_claim is not None:
            self._claim = plan.batch_claim
            self._settle = CompiledStatement(settle_and_check(done.statement, self._claim.claim_rows))
        self._were_together = False
        """Whether the last two statements were sent together: SQLAlchemy, which must send some, knows no pipeline."""

    def may_autocommit(self, outcomes: Outcomes) -> bool:
        """Whether these outcomes and the claim need no transaction around them."""
        if self._one is not None:
            return outcomes.are_done_at_once
        return self._were_together and outcomes.is_one_claim_row_done

    def settle_and_claim(
        self, connection: sa.Connection, me: int, request: ClaimRequest, *, owner: int, outcomes: Outcomes
    ) -> tuple[set[Key], ClaimResult]:
        """Settle jobs of `owner`, and claim jobs for `me`, in the caller's transaction: the keys of the rows that
        were not written, and the claim.

        Raises SomeLost, OwnerDead or KeyUnfit: roll back then, and settle without a claim.
        """
        if self._one is not None and outcomes.are_done_at_once:
            if owner != me:  # `owner` was declared dead, so that a settle and a claim are two statements
                raise SomeLost
            one, done = self._one, list(outcomes.done)
            given = {**one.parameters(me, request), "claimjobs_keys": done, "claimjobs_meant": len(done)}
            rows = one.form_for(request).rows(connection, given, one.reader)
            count, *keys = rows[0][: one.settled_columns]
            settled = -1 - count if count < 0 else count
            unwritten: set[Key] = set()
            if settled < len(done):
                written = set(keys[0] if len(keys) == 1 else zip(*keys, strict=True))
                unwritten = set(done) - written
                if not written <= set(done):
                    raise key_unequal(self._settler.table.name, sorted(unwritten, key=str))
            # A negative count: the owner was declared dead. The settle stands, and the next claim registers a new id.
            return unwritten, NOTHING if count < 0 else one.result(connection, rows, request, owner=me)
        if self._claim is not None and outcomes.is_one_claim_row_done:
            return set(), self._in_one_round_trip(connection, me, request, owner=owner, outcomes=outcomes)
        unwritten = self._settler.write(connection, owner, outcomes)
        return unwritten, self._strategy.claim(connection, me, request)

    def _in_one_round_trip(
        self, connection: sa.Connection, me: int, request: ClaimRequest, *, owner: int, outcomes: Outcomes
    ) -> ClaimResult:
        claim, number = self._claim, next(NUMBERS)
        assert claim is not None  # noqa: S101 - the caller has asked
        mine = {**claim.parameters(me, request), "claimjobs_number": number}
        new: dict[str, Any] = {"claimjobs_new_me": me, "claimjobs_new_number": number}
        sent = (
            Sent(claim.form_for(request), mine, claim.reader),
            Sent(self._settle, {**batch_parameters(owner, outcomes), **new}),
        )
        answers = rows_together(connection, claim.sessions, sent) if claim.reader.knows_columns else None
        self._were_together = answers is not None
        if answers is None and commits_by_itself(connection, unknown=False):
            raise SomeLost  # sent one by one, each would be a transaction
        rows, [(_, taken)] = answers or [each.statement.rows(connection, each.given, each.reader) for each in sent]
        if taken:  # another claim has some of the jobs: the new claim row was deleted; the next claim finds the rest
            return NOTHING._replace(candidates=request.limit, owner=me)
        if rows[0][0] < 0:  # the owner was declared dead: the next claim registers a new id
            return NOTHING
        claimed = claim.result(connection, rows, request, owner=me)
        return claimed._replace(claim_row=number if claimed.jobs else 0)
