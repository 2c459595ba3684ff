"""RowIsolation: claims around a row that no claim can take, and leaves it.

A claim reads and writes rows. One row can make that fail for all: a generated column that cannot be computed, a trigger
that raises, a text that the client's encoding does not have, a value that is too large to be sent.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import Final

import sqlalchemy as sa

from claimjobs.claim.claim_plan import ClaimPlan, ClaimPlans
from claimjobs.claim.strategy import NOTHING, ClaimResult
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Key
from claimjobs.errors import ClaimjobsError, ClaimRefused, ServerUnreachable, StatementTimedOut
from claimjobs.job import key_of
from claimjobs.key_text import key_in_message
from claimjobs.lease.lease_hold import LeaseHold
from claimjobs.lease.transaction_hold import TransactionHold
from claimjobs.log_events import JOBS_UNCLAIMABLE
from claimjobs.queue.access import Access
from claimjobs.table.predicates import Where

MOST_CANDIDATES: Final = 64
"""The most candidates that are tried after an error."""
COMMON_CAUSE_ROWS: Final = 5
"""If so many rows or more cannot be claimed, and this Queue has not claimed any other, the cause is no single row."""

ERRORS: Final = (sa.exc.DBAPIError, ClaimRefused, StatementTimedOut, UnicodeError)
"""What a claim raises if one of its rows cannot be read or written. See `RowIsolation.may_be_a_row`."""

log = logging.getLogger("claimjobs.claim")


class RowIsolation:
    """After an error it claims the candidates by halves, until one half succeeds or the row is alone that does not."""

    def __init__(self, access: Access, plans: ClaimPlans, hold: LeaseHold | TransactionHold) -> None:
        self._access, self._plans, self._hold = access, plans, hold

    def claim(self, size: int, where: Where, error: Exception) -> ClaimResult:
        """Claim after this error. Raises the error if no row can be the cause; ClaimRefused if no row can be claimed;
        and what the search itself raises: then the predicate or the order is at fault.

        If each row takes too long, or the search, or nobody answers, it is the server: the claim is tried again until
        the patience is over, as after an outage.
        """
        deadline = time.monotonic() + self._access.settings.liveness.patience
        while True:
            if not self._may_be_a_row(error):
                raise error
            plan = self._plans.plan(where)
            try:
                return self._claim_by_halves(size, plan, error)
            except (StatementTimedOut, ServerUnreachable):
                if self._access.control.stopping or time.monotonic() >= deadline:
                    raise
            try:
                return self._hold.claim(size, replace(plan, divisible=False))
            except ERRORS as again:
                error = again

    def _may_be_a_row(self, error: Exception) -> bool:
        """Whether a claim of other rows may succeed after this error. What may pass was tried again before."""
        if not isinstance(error, sa.exc.DBAPIError):
            return True
        backend, errors = self._access.backend, self._access.backend.dialect.errors
        code, tables = errors.code(error), {backend.source.table.name, backend.roles.table.name, backend.owners.name}
        if code is None or code in errors.missing_table or errors.denied_table(error) in tables:
            return False
        return errors.may_be_of_a_row(error) and errors.unfit_setting(error) is None

    def _claim_by_halves(self, size: int, plan: ClaimPlan, error: Exception) -> ClaimResult:
        candidates = self._candidates(plan, max(COMMON_CAUSE_ROWS, min(size, MOST_CANDIDATES)), error)
        groups, alone, too_slow = [candidates], dict[Key, Exception](), 0
        while groups and (group := groups.pop()):
            try:
                claimed = self._hold.claim(min(size, len(group)), self._only(plan, group))
            except ERRORS as failed:
                too_long = isinstance(failed, StatementTimedOut)
                if not self._may_be_a_row(failed) or (too_long and self._access.control.stopping):
                    raise
                if len(group) == 1:
                    alone[group[0]] = failed
                    too_slow += too_long
                if too_slow == COMMON_CAUSE_ROWS:  # if it is the server, a row far behind them takes too long as well
                    too_slow, groups = too_slow + 1, [self._candidates(plan, MOST_CANDIDATES, failed)[-1:]]
                    continue
                half = len(group) // 2
                groups += [group[half:], group[:half]] if half else []
            else:
                if claimed.jobs:
                    self.leave(alone)
                    return claimed
        return self._claimed_none(candidates, alone, error)

    def _claimed_none(self, candidates: list[Key], alone: dict[Key, Exception], error: Exception) -> ClaimResult:
        """Each candidate was refused, or others hold it."""
        for slow in alone.values():
            if isinstance(slow, StatementTimedOut):
                raise slow  # no other row shows that it is not the server
        if not candidates or (len(alone) >= COMMON_CAUSE_ROWS and not self._access.report.claimed):
            if isinstance(error, StatementTimedOut):
                raise error
            raise ClaimRefused(self._access.backend.source.name, _cause(error)) from error
        self.leave(alone)
        return NOTHING._replace(candidates=len(candidates) - len(alone))

    def _candidates(self, plan: ClaimPlan, most: int, error: Exception) -> list[Key]:
        """The keys of the first candidates. Nothing else of these rows is read. It raises what is wrong with every row,
        as a column that is missing, or `error` if it is the search that takes too long.
        """
        if self._plans.tried:
            return [*self._plans.tried[:most]]
        source, selection = self._access.backend.source, plan.selection
        found = sa.select(*source.key).where(selection.candidate).order_by(*selection.order)
        with self._access.connected_in_utc() as connection:
            connection.execute(sa.select(*source.table.columns).where(selection.candidate).limit(0))
            try:
                return [key_of(row) for row in connection.execute(found.limit(most))]
            except sa.exc.DBAPIError as failed:
                if self._access.backend.dialect.errors.timed_out(failed):
                    raise error from failed
                raise

    def _only(self, plan: ClaimPlan, keys: list[Key]) -> ClaimPlan:
        backend = self._access.backend
        these = backend.dialect.listed(backend.source.key, sa.bindparam("claimjobs_tried", keys, expanding=True))
        selection = replace(plan.selection, due=sa.and_(plan.selection.due, these), in_sweeps=False)
        return replace(plan, selection=selection, strategy=self._plans.strategy(selection), divisible=len(keys) > 1)

    def leave(self, alone: dict[Key, Exception]) -> None:
        """Claim these rows no more, and tell it: in the log, in the report, and, if there is an owner, in its row."""
        name = self._access.backend.source.name
        for key, error in alone.items():
            self._plans.leave(key)
            self._access.report.unclaimable += 1
            why = _cause(error)
            words = (
                "table %s: the row with the key %s cannot be claimed: %s; this consumer leaves it, and goes on with "
                "others: correct the row, or what refuses it, and start the consumer again"
            )
            fields = {"event": JOBS_UNCLAIMABLE, "queue": name, "jobs": 1, "keys": [key], "error": why}
            log.warning(words, name, key_in_message(key), why, extra=fields)
        if alone and self._hold.owner is not None:
            with suppress(sa.exc.SQLAlchemyError, ClaimjobsError):  # the claim goes on if that cannot be written
                self._hold.owner.row.note_unclaimable(len(self._plans.unclaimable))


def _cause(error: Exception) -> str:
    """What the database says. ClaimRefused has it in a message of its own."""
    return reason(error.__cause__ if isinstance(error, ClaimRefused) and error.__cause__ else error)
