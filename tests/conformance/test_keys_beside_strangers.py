"""Limits per key while another program has jobs locked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import PerKey
from claimjobs.claim.key_locking import KEYS_BEHIND
from tests.backends import Backend
from tests.conformance.jobs import before_the_lock
from tests.conformance.test_per_key import KINDS, MAILS, finish, ids, mails


@contextmanager
def stranger_locks(backend: Backend, jobs: Iterable[int]) -> Iterator[None]:
    """A transaction of another program."""
    with backend.engine.connect().execution_options(isolation_level="READ COMMITTED") as other, other.begin():
        for number in jobs:
            other.execute(sa.select(MAILS).where(MAILS.c.id == number).with_for_update()).all()
        yield


@KINDS
def test_a_key_whose_first_jobs_a_stranger_has_locked_gives_those_behind_them(
    backend: Backend, kind: dict[str, Any]
) -> None:
    two = PerKey("customer", at_most=2)
    queue = mails(backend, two, [7] * 30 + [8], kind)
    with stranger_locks(backend, range(1, 21)):
        found = queue.claim(10)
        assert ids(found) == [21, 22, 31]
        assert not queue.claim(10)
    finish(found)
    assert ids(queue.claim(10)) == [1, 2]


def test_a_free_job_is_found_behind_many_keys_that_a_stranger_has_locked_as_a_whole(backend: Backend) -> None:
    queue = mails(backend, PerKey("customer", at_most=2), [*range(3 * KEYS_BEHIND), *[99] * 5])
    with stranger_locks(backend, range(1, 3 * KEYS_BEHIND + 4)):
        backend.wait_for(lambda: queue.claim(4), "a job of the last key is claimed")


@pytest.mark.parametrize(
    "per_key", [PerKey("customer", at_most=2), PerKey("customer"), PerKey("customer", in_order=True)]
)
def test_a_drain_waits_for_the_jobs_that_a_stranger_has_locked(backend: Backend, per_key: PerKey) -> None:
    queue = mails(backend, per_key, [7] * 3)
    with stranger_locks(backend, [1, 2, 3]):
        assert [queue.claim(10).contended for _ in range(3)] == [True] * 3
    for batch in queue.batches(10, drain=True):
        finish(batch)
    assert queue.stats().left == 0


def test_jobs_in_order_wait_for_the_stranger_who_has_the_first_one_locked(backend: Backend) -> None:
    queue = mails(backend, PerKey("customer", in_order=True), [7, 7])
    with stranger_locks(backend, [1]):
        assert not queue.claim(10)
    assert ids(queue.claim(10)) == [1]


@KINDS
def test_a_job_whose_key_changes_before_it_is_locked_keeps_to_the_limit_of_the_new_one(
    backend: Backend, kind: dict[str, Any]
) -> None:
    """An enqueue by "replace" may do that."""
    queue = mails(backend, PerKey("customer", at_most=1), [8, 7], kind, bind=backend.new_engine())
    first = queue.claim(1, where="customer = 8")
    with before_the_lock(queue.engine, "mails", lambda: backend.run("UPDATE mails SET customer = 8 WHERE id = 2")):
        assert not queue.claim(10)
    finish(first)
    assert ids(queue.claim(10)) == [2]
