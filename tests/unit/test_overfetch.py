"""How many candidates a claim reads for each job it wants."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from claimjobs.claim.candidate_range import Overfetch
from claimjobs.claim.strategy import ClaimResult
from claimjobs.job import Job


def claimed(jobs: int, found: int, reach: int) -> ClaimResult:
    return ClaimResult([Job(key, {}) for key in range(jobs)], found, reach)


def test_it_starts_with_no_more_than_is_wanted() -> None:
    assert Overfetch().limit(100) == 100


def test_it_doubles_where_a_claim_falls_short_and_there_was_more() -> None:
    overfetch = Overfetch()
    limits = []
    for _ in range(3):
        limit = overfetch.limit(10)
        limits.append(limit)
        overfetch.learn(claimed(2, limit, limit), 10, limit)
    assert limits == [10, 20, 40]


def test_it_looks_much_further_where_everything_was_in_other_hands() -> None:
    overfetch = Overfetch()
    limits = []
    for _ in range(3):
        limit = overfetch.limit(10)
        limits.append(limit)
        overfetch.learn(claimed(0, limit, limit), 10, limit)
    assert limits == [10, 40, 160]


def test_it_stays_where_the_queue_itself_was_short() -> None:
    overfetch = Overfetch()
    overfetch.learn(claimed(2, 3, 3), 10, 10)
    overfetch.learn(claimed(0, 0, 0), 10, 10)
    assert overfetch.factor == 1.0


def test_it_goes_back_to_what_claims_need() -> None:
    overfetch = Overfetch()
    overfetch.factor = 16.0
    for _ in range(30):
        overfetch.learn(claimed(10, 160, 30), 10, overfetch.limit(10))
    assert overfetch.factor == 3.75 or abs(overfetch.factor - 3.75) < 0.1
    for _ in range(30):
        overfetch.learn(claimed(10, 38, 10), 10, overfetch.limit(10))
    assert overfetch.limit(10) == 10


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 500)), max_size=50))
def test_it_never_reads_less_than_is_wanted_nor_without_bounds(claims: list[tuple[int, int]]) -> None:
    overfetch = Overfetch()
    for jobs, beside in claims:
        limit = overfetch.limit(10)
        assert 10 <= limit <= 10 * max(Overfetch.LARGEST, 2 * Overfetch.LARGEST * Overfetch.SPARE)
        found = min(limit, jobs + beside)
        taken = min(jobs, found)
        overfetch.learn(claimed(taken, found, found), 10, limit)


def test_it_has_a_largest() -> None:
    overfetch = Overfetch()
    for _ in range(20):
        limit = overfetch.limit(10)
        overfetch.learn(claimed(0, limit, limit), 10, limit)
    assert overfetch.limit(10) == 10 * Overfetch.LARGEST
