"""S5: the article's loop, and what can be done to break its statement."""

from __future__ import annotations

import pytest

from benchmarks.article import Connection, connected
from examples.harness import rows
from examples.s5_leontrolski import author, bonus, ours, plans
from examples.s5_leontrolski import run as example
from examples.s5_leontrolski.events import setup, statuses
from tests.backends import Backend

pytestmark = pytest.mark.thorough("an example of an article, as a whole")

EVENTS = 60


def test_the_loop_processes_each_event_once(database: Backend) -> None:
    for contestant in example.contestants():
        shares = example.empty(database.url, contestant, 2, EVENTS)
        assert sum(len(share.keys) for share in shares) == EVENTS


def test_oldest_first_and_what_raises_is_errored(database: Backend, db: Connection) -> None:
    setup(database.url, 3)
    seen: list[object] = []

    def process(event: object) -> None:
        seen.append(event)
        if len(seen) == 2:
            raise ValueError

    assert author.work(db, process) == 3
    assert statuses(database.url) == {author.PROCESSED: 2, author.ERRORED: 1}


def test_it_cannot_be_broken(database: Backend) -> None:
    """A worker for each plan, all at once, and a session that moves the events about meanwhile."""
    said = example.tried_to_break(database.url, len(plans.PLANS), 10 * EVENTS)
    assert said.startswith(f"{10 * EVENTS} events once")


@pytest.mark.parametrize("plan", plans.PLANS)
def test_one_statement_takes_one_event_under_any_plan(anywhere: Backend, plan: str) -> None:
    setup(anywhere.url, EVENTS)
    with connected(anywhere.url) as db:
        plans.force(db, plan)
        assert plans.taken_by_one(db, fenced=True) == 1


def test_without_materialized_it_may_take_all(anywhere: Backend) -> None:
    setup(anywhere.url, EVENTS)
    with connected(anywhere.url) as db:
        plans.force(db, "nested loops over the table")
        assert plans.taken_by_one(db, fenced=False) == EVENTS


# --- the bonus features --------------------------------------------------------------------------------------


def test_what_is_to_be_bundled_waits_for_the_whole_hour(database: Backend) -> None:
    assert bonus.bundled(database.url, 5) == "0 before the hour, 5 at it, in one batch"


def test_what_errored_is_retried(database: Backend) -> None:
    assert bonus.retried(database.url, 5) == "5 errored, 5 retried, 5 processed"


def test_a_killed_worker_of_ours_leaves_no_event_in_processing(database: Backend) -> None:
    assert bonus.stuck(database.url, bonus.hold_as_the_author) == 1
    assert bonus.stuck(database.url, bonus.hold_as_claimjobs) == 0


def test_ours_takes_the_oldest_first(database: Backend, db: Connection) -> None:
    setup(database.url, 9)
    oldest = "select id from event_queue order by updated_at, id"
    expected = [str(row[0]) for row in rows(db, oldest)]
    db.commit()
    with ours.queue_on(database.url) as queue:
        assert [str(key) for _ in range(3) for key in bonus.done(queue, 3)] == expected


def test_what_is_old_and_processed_is_cleaned_up(database: Backend) -> None:
    assert bonus.cleaned(database.url, 5) == "0 too soon, 5 after a week, 1 left"
