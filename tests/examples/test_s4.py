"""S4: each step of the naive statements goes wrong as the article says, and none of ours does."""

from __future__ import annotations

import pytest

from benchmarks.article import Connection
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from examples.s4_tiikkaja import naive, ours, scenes
from examples.s4_tiikkaja import run as example
from tests.backends import Backend
from tests.examples.conftest import Small

pytestmark = pytest.mark.thorough("an example of an article, as a whole")

ITEMS = 20
LOCKS = {"advisory": AdvisoryLocks(), "rows": None}


@pytest.fixture
def url(database: Backend) -> str:
    scenes.setup(database.url, ITEMS)
    return database.url


@pytest.mark.requires("named lock table")
def test_all_of_it(database: Backend, small: Small) -> None:
    figures = small(example, claims=50, consumers=3)
    assert figures["... left after 50 claims"] == "0"


# --- the snapshot race ---------------------------------------------------------------------------------------


def test_two_sessions_read_the_same_row(url: str) -> None:
    assert scenes.read_twice(url) == 2


def test_a_lock_without_a_recheck_gives_a_row_twice(url: str) -> None:
    assert scenes.snapshot_race(url, recheck=False) == 2


def test_with_a_recheck_once(url: str) -> None:
    assert scenes.snapshot_race(url, recheck=True) == 1


@pytest.mark.parametrize("lock", LOCKS)
def test_ours_gives_no_row_twice_whatever_is_taken_between_its_steps(url: str, lock: str) -> None:
    assert ours.snapshot_race(url, ITEMS, locking=LOCKS[lock]) == 0


# --- the convoy ----------------------------------------------------------------------------------------------


def test_all_others_wait_for_the_first_row(url: str) -> None:
    assert scenes.convoy(url, 4) == 3


@pytest.mark.parametrize("lock", LOCKS)
def test_nobody_waits_for_ours(url: str, lock: str) -> None:
    assert ours.convoy(url, 4, locking=LOCKS[lock]) == 0


# --- locks ---------------------------------------------------------------------------------------------------


@pytest.mark.requires("named lock table")
def test_a_sort_locks_every_row(database: Backend, url: str) -> None:
    assert scenes.locks_of_a_sorted_claim(url) == ITEMS


@pytest.mark.requires("named lock table")
def test_a_failed_recheck_forgets_its_lock(database: Backend, url: str, db: Connection) -> None:
    assert scenes.locks_after_a_failed_recheck(url) == 1
    database.wait_for(lambda: naive.held(db) == 0, "the session's end ends its locks")


def test_two_queues_with_one_lock_key_are_in_each_others_way(url: str) -> None:
    assert not scenes.same_number_in_two_queues(url)


def test_ours_are_not(url: str) -> None:
    assert ours.same_number_in_two_queues(url)


@pytest.mark.requires("named lock table")
def test_ours_locks_what_it_claims(database: Backend, url: str) -> None:
    assert ours.locks_while_claimed(url) == 1
    assert ours.locks_while_claimed(url, locking=None) == 0


@pytest.mark.requires("named lock table")
def test_ours_leaves_no_lock_behind(database: Backend, url: str) -> None:
    assert ours.locks_left(url, ITEMS) == 0


@pytest.mark.parametrize("lock", LOCKS)
def test_the_row_of_a_killed_consumer_comes_back(url: str, lock: str) -> None:
    assert ours.after_a_death(url, locking=LOCKS[lock]) < ours.SECONDS
