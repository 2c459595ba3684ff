"""A Locking of a user's own: candidates are found and locked by it, whatever records the claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs.claim.locking import FindThenLock, JobLocks, Locking
from claimjobs.errors import ClaimsDiffer
from claimjobs.options import HOLDS, HoldKind
from claimjobs.statements.find import Selection
from claimjobs.table.backend import Backend as Tables
from tests.backends import Backend
from tests.conformance.jobs import jobs, names

WAYS: dict[str, dict[str, Any]] = {
    "rows": {"claims": "rows"},
    "batches": {"claims": "batches"},
    "transaction": {"hold": "transaction"},
}


class TwoStatements(Locking):
    """The statements that every database with SKIP LOCKED understands, also where one would do."""

    holds: Sequence[HoldKind] = HOLDS

    def __init__(self) -> None:
        self.closed = 0

    def locks(self, backend: Tables, selection: Selection, known: Sequence[str] = ()) -> JobLocks:
        return FindThenLock(backend, selection, known)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("way", WAYS)
def test_jobs_are_claimed_by_a_locking_of_the_users_own(backend: Backend, way: str) -> None:
    locking = TwoStatements()
    queue, other = (backend.queue(bind=backend.new_engine(), locking=each, **WAYS[way]) for each in (locking, None))
    queue.enqueue(jobs(6))
    assert [phase.name for phase in queue.explain().phases][:2] == ["find", "lock"]
    with queue.claim(2) as mine, other.claim(2) as theirs:
        assert [names(mine), names(theirs)] == [["0000", "0001"], ["0002", "0003"]]
        mine.done()
        theirs.done()
    assert [name for batch in queue.batches(2, drain=True) for name in _done(batch)] == ["0004", "0005"]
    assert (queue.report.lost, backend.rows()) == (0, [])
    queue.close()
    assert locking.closed


class TransactionOnly(TwoStatements):
    """One that does not say that it locks the rows."""

    holds = ("transaction",)


@pytest.mark.parametrize("claims", ["rows", "batches"])
def test_one_that_does_not_say_that_it_locks_the_rows_is_for_no_claim_by_lease(anywhere: Backend, claims: str) -> None:
    with pytest.raises(ValueError, match="locking=TransactionOnly needs hold='transaction'"):
        anywhere.queue(claims=claims, locking=TransactionOnly())


def test_one_that_does_not_lock_the_rows_is_refused_beside_owners_by_lease(backend: Backend) -> None:
    by_lease = backend.queue()
    by_lease.enqueue(jobs(2))
    other = backend.bare_queue(bind=backend.new_engine(), hold="transaction", locking=TransactionOnly())
    with by_lease.claim(1) as batch:
        for use in (other.claim, other.check, other.stats):
            with pytest.raises(ClaimsDiffer, match="has 1 owner with claims="):
                use()
        batch.done()
    by_lease.close()
    assert len(other.claim(1)) == 1


def test_a_claim_by_lease_is_refused_beside_one_that_works_and_does_not_lock_the_rows(backend: Backend) -> None:
    other = backend.queue(bind=backend.new_engine(), hold="transaction", locking=TransactionOnly())
    other.enqueue(jobs(2))
    by_lease = backend.bare_queue()
    with other.claim(1) as batch:
        with pytest.raises(ClaimsDiffer, match="has 1 owner with a Locking that locks no rows"):
            by_lease.claim(1)
        batch.done()
    other.close()
    with by_lease.claim(1) as batch:
        assert len(batch) == 1


def test_a_claim_by_lease_is_refused_beside_an_idle_one_that_does_not_lock_the_rows(backend: Backend) -> None:
    backend.make()
    other = backend.bare_queue(bind=backend.new_engine(), hold="transaction", locking=TransactionOnly())
    assert other._consumer.hold.sleeper is not None
    by_lease, same = backend.bare_queue(), backend.bare_queue(hold="transaction", locking=TransactionOnly())
    with pytest.raises(ClaimsDiffer, match="has 1 owner with a Locking that locks no rows"):
        by_lease.claim()
    with same.claim() as batch:
        assert not batch
    same.close()
    owners = other._access.backend.owners
    with backend.engine.begin() as connection:
        left = connection.execute(sa.select(owners)).mappings().one()
    other.close()
    with backend.engine.begin() as connection:  # as after a crash: its row is there, and its session lock is not
        connection.execute(sa.insert(owners), dict(left))
    with by_lease.claim() as batch:
        assert not batch
    backend.run("DELETE FROM claimjobs_owners WHERE kind = 'nothing'")


def _done(batch: Any) -> list[str]:
    with batch:
        batch.done()
    return names(batch)
