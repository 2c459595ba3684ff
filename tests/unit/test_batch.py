"""Batch without a database: the outcomes it hands to a settle that only writes them down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from claimjobs import Batch, Job, Retry, job_table
from claimjobs.batch.hold import Hold
from claimjobs.claim.strategy import ClaimResult
from claimjobs.errors import BatchMisused, ColumnMissing
from claimjobs.settle.failures import Failures, Hooks
from claimjobs.settle.outcomes import Outcomes
from claimjobs.signals import CANCEL_SIGNAL, Cancelled, cancel_here, on_signals, refuse_cancel, shielded
from claimjobs.table.roles import roles_of

ROLES = roles_of(job_table("emails", sa.MetaData(), sa.Column("address", sa.String(100))))
PLAIN = roles_of(
    sa.Table(
        "plain",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("status", sa.String(16)),
        sa.Column("owner_id", sa.Integer),
    )
)


class Settled(Hold):
    """A hold that writes down the outcomes it is to settle, and says which keys are lost."""

    keeps_locks = False
    owner_id = 7

    def __init__(self, lost: set[Any] | None = None) -> None:
        self.calls: list[Outcomes] = []
        self._lost = lost or set()

    def settle(self, claimed: ClaimResult, outcomes: Outcomes, next_claim: Any = None) -> set[Any]:
        with shielded():
            self.calls.append(outcomes)
            self.when_committed()
        return self._lost

    def when_committed(self) -> None:
        """Nothing happens."""

    def claim(self, size: int, plan: Any) -> ClaimResult:
        raise NotImplementedError

    _claim_once: Any = claim
    read_pause: Any = claim
    is_held: Any = claim

    def progress(self, claimed: ClaimResult) -> None:
        """Nobody is told."""

    give: Any = progress

    def restart_from_head(self) -> None:
        """There is no order."""

    _close = restart_from_head

    @property
    def outcomes(self) -> Outcomes:
        [only] = self.calls
        return only


def batch_of(settle: Any, count: int = 3, *, retry: Retry | None = None, attempts: int = 0) -> Batch:
    jobs = [Job(key, {"id": key, "attempts": attempts}) for key in range(1, count + 1)]
    return Batch(ClaimResult(jobs, count, count), settle, ROLES, retry or Retry(attempts=3, base=8, cap=100))


def test_what_is_committed_when_the_process_is_cancelled_is_noted_and_reported() -> None:
    class Cut(Settled):
        def when_committed(self) -> None:
            cancel_here()

    dead: list[Any] = []
    failures = Failures("emails", ROLES, Hooks(on_dead=lambda job, error: dead.append((job.key, error))))
    jobs = [Job(1, {"id": 1, "attempts": 0})]
    batch = Batch(ClaimResult(jobs, 1, 1), Cut(lost={1}), ROLES, Retry(attempts=1), failures=failures)
    batch.fail(jobs[0], "broken")
    with pytest.raises(Cancelled):
        batch.settle()
    assert (batch.settled, batch.lost, dead) == (True, batch.jobs, [(1, "broken")])


def test_what_an_error_has_kept_back_does_not_interrupt_a_process_that_closes() -> None:
    with pytest.raises(TypeError), shielded():
        len(cancel_here())  # type: ignore[arg-type, func-returns-value]
    with on_signals(lambda _number: None, CANCEL_SIGNAL):
        refuse_cancel()
        with shielded():
            pass


def test_it_settles_once_when_the_block_is_left() -> None:
    settle = Settled()
    with batch_of(settle) as batch:
        for job in batch:
            if job.key == 2:
                break
        assert settle.calls == []
    assert (list(settle.outcomes.done), list(settle.outcomes.released)) == ([1], [2, 3])


def test_an_empty_batch_settles_nothing() -> None:
    settle = Settled()
    with batch_of(settle, 0) as batch:
        batch.done()
    assert settle.calls == []
    assert batch.settled


def test_a_settle_that_fails_leaves_the_batch_open_to_be_settled_again() -> None:
    answers: Iterator[Any] = iter([OSError("gone"), {2}])

    class Fails(Settled):
        def settle(self, claimed: ClaimResult, outcomes: Outcomes, next_claim: Any = None) -> set[Any]:
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return {2}

    batch = batch_of(Fails())
    batch.done()
    with pytest.raises(OSError, match="gone"):
        batch.settle()
    assert not batch.settled
    batch.settle()
    assert [job.key for job in batch.lost] == [2]


def test_an_exception_of_the_handler_is_not_swallowed() -> None:
    settle = Settled()

    def handle() -> None:
        with batch_of(settle):
            raise KeyError("handler")

    with pytest.raises(KeyError, match="handler"):
        handle()
    assert list(settle.outcomes.suspects) == [1, 2, 3]
    assert settle.outcomes.suspects[1].error == "KeyError: 'handler'"


def test_a_job_named_twice_in_one_call_is_one_job() -> None:
    settle = Settled()
    with batch_of(settle) as batch:
        batch.done(batch[0], batch[0])
        batch.release(batch[1], batch[1])
    assert (list(settle.outcomes.done), list(settle.outcomes.released)) == ([1], [2, 3])


def test_a_failed_job_waits_within_the_bounds_of_retry() -> None:
    settle = Settled()
    with batch_of(settle, attempts=1) as batch:
        batch.fail(batch[0], "again")
        batch.fail(batch[1], "again", retry_in=7.5)
        batch.fail(batch[2], "again", retry=False)
    assert 8 <= settle.outcomes.retried[1].wait <= 16
    assert settle.outcomes.retried[2].wait == 7.5
    assert list(settle.outcomes.dead) == [3]


def test_the_last_failure_is_death_whatever_wait_was_asked_for() -> None:
    settle = Settled()
    with batch_of(settle, attempts=2) as batch:
        batch.fail(batch[0], "again")
        batch.fail(batch[1], "again", retry_in=5)
        batch.done()
    assert (list(settle.outcomes.dead), settle.outcomes.retried) == ([1, 2], {})


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("as it is", "as it is"),
        (ValueError("no such street"), "ValueError: no such street"),
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError(), "RuntimeError: "),
        ("x" * 2_000, "x" * 2_000),
        ("x" * 2_001, "x" * 1_999 + "…"),
        ("\ud800" * 2_000, ("\\ud800" * 2_000)[:1_999] + "…"),
        ("a\0b", "a\\0b"),
    ],
)
def test_an_error_is_kept_as_text(error: BaseException | str, text: str) -> None:
    settle = Settled()
    with batch_of(settle) as batch:
        batch.fail(batch[0], error)
    assert settle.outcomes.retried[1].error == text
    assert len(text) <= 2_000


def test_a_failure_that_is_taken_back_leaves_no_error_behind() -> None:
    settle = Settled()
    with batch_of(settle) as batch:
        batch.fail(batch[0], "broken")
        batch.fail(batch[1], "broken", retry=False)
        batch.done(batch[0], batch[1])
    assert settle.outcomes.failures == {}
    assert list(settle.outcomes.done) == [1, 2]


def test_a_job_of_another_batch_changes_nothing() -> None:
    settle = Settled()
    with batch_of(settle) as batch:
        stranger = Job(99, {"id": 99})
        for word in (batch.done, batch.release):
            with pytest.raises(BatchMisused, match="99"):
                word(batch[0], stranger)
        with pytest.raises(BatchMisused, match="99"):
            batch.fail(stranger, "broken")
        assert len(batch.undecided) == 3
    assert list(settle.outcomes.released) == [1, 2, 3]


def test_a_table_without_the_columns_cannot_hold_a_failure() -> None:
    batch = Batch(ClaimResult([Job(1, {"id": 1})], 1, 1), Settled(), PLAIN, Retry())
    with pytest.raises(ColumnMissing, match="ALTER TABLE plain ADD COLUMN attempts INTEGER"):
        batch.fail(batch[0], "broken")
    assert len(batch.undecided) == 1


def test_its_repr_says_how_far_it_is() -> None:
    batch = batch_of(Settled())
    assert repr(batch) == "<Batch of 3 jobs, 3 undecided>"
    batch.done(batch[0])
    assert repr(batch) == "<Batch of 3 jobs, 2 undecided>"
    batch.settle()
    assert repr(batch) == "<Batch of 3 jobs, settled>"


# --- any sequence of words ---------------------------------------------------------------------------------

COUNT = 5
JOB = st.integers(0, COUNT - 1)
WORD = st.one_of(
    st.tuples(st.sampled_from(["done", "release"]), st.lists(JOB, max_size=COUNT)),
    st.tuples(st.sampled_from(["fail", "bury"]), st.lists(JOB, min_size=1, max_size=1)),
    st.tuples(st.just("loop"), st.lists(JOB, min_size=1, max_size=1)),  # and a break after so many
)


def expected(words: list[tuple[str, list[int]]]) -> dict[int, str]:
    """The outcomes by the plainest model: a dictionary from each job to the last word said of it."""
    said: dict[int, str] = {}
    for word, jobs in words:
        if word == "loop":
            undecided = [job for job in range(COUNT) if job not in said]
            said.update(dict.fromkeys(undecided[: jobs[0]], "done"))
        else:
            said.update(dict.fromkeys(jobs or [job for job in range(COUNT) if job not in said], word))
    return {job: said.get(job, "release") for job in range(COUNT)}


@given(st.lists(WORD, max_size=12))
def test_each_job_has_exactly_one_outcome_and_it_is_the_last_word(words: list[tuple[str, list[int]]]) -> None:
    settle = Settled()
    with batch_of(settle, COUNT) as batch:
        for word, places in words:
            say(batch, word, places)
    found = settle.outcomes
    outcomes = [
        *((key, "done") for key in found.done),
        *((key, "release") for key in found.released),
        *((key, "fail") for key in found.retried),
        *((key, "bury") for key in found.dead),
    ]
    assert sorted(outcomes) == [(job + 1, word) for job, word in sorted(expected(words).items())]
    assert set(found.failures) == {*found.retried, *found.dead}
    assert sorted(found.keys()) == list(range(1, COUNT + 1))


def say(batch: Batch, word: str, places: list[int]) -> None:
    jobs = [batch[place] for place in places]
    if word == "fail":
        batch.fail(jobs[0], "again", retry_in=1)
    elif word == "bury":
        batch.fail(jobs[0], "never", retry=False)
    elif word == "loop":
        for number, _ in enumerate(batch):
            if number == places[0]:
                break
    else:
        getattr(batch, word)(*jobs)


@given(st.sets(st.integers(1, COUNT)))
def test_what_is_lost_is_told_in_the_order_of_the_batch(lost: set[int]) -> None:
    with batch_of(Settled(lost), COUNT) as batch:
        batch.done()
    assert [job.key for job in batch.lost] == sorted(lost)
    with pytest.raises(BatchMisused):
        batch.done()
