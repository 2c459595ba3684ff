"""A Locking of a user's own: candidates are found and locked by it, whatever records the claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from claimjobs.claim.find_and_lock import FindThenLock
from claimjobs.claim.locking import JobLocks, Locking
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


def _done(batch: Any) -> list[str]:
    with batch:
        batch.done()
    return names(batch)
