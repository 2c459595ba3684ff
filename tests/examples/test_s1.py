"""S1: the four processors do what their author says of them, and ours empties his table in his order."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.article import Connection, connected
from benchmarks.crew import CrewFailed, Worker, gather
from examples.harness import fill, first, rows, run, scalar
from examples.s1_depesz import ours, processors
from examples.s1_depesz import run as example
from examples.s1_depesz.processors import IN_ORDER, SELECT, Row
from tests.backends import Backend
from tests.examples.conftest import Small

pytestmark = pytest.mark.thorough("an example of an article, as a whole")

JOBS = 60
REST = "order by priority desc, added_on"


class OwnerState(Exception):
    """Ends a processor that has its first row in hand."""


@pytest.fixture
def queue(database: Backend, db: Connection) -> list[Row]:
    """The queue's rows, in the order in which they are to be done."""
    example.setup(database.url)
    fill(db, example.INSERT, example.queue(JOBS), "queue")
    found = rows(db, f"{SELECT} {REST}")
    db.commit()
    return found


def test_all_of_them_empty_the_queue(small: Small) -> None:
    figures = small(example, workers=[2], jobs=JOBS)
    assert len(figures) == len(example.AUTHORS) + len(ours.WAYS)
    assert all("0 twice" in told for what, told in figures.items() if what != "(a) plain select, 2")


# --- the author's --------------------------------------------------------------------------------------------


def test_a_two_workers_have_the_same_row(database: Backend, db: Connection, queue: list[Row]) -> None:
    with connected(database.url, read_committed=True) as other:
        done: list[Row] = []

        def process(row: Row) -> None:
            done.extend([row, first(other, f"{SELECT} {IN_ORDER}")])
            other.commit()

        processors.plain_select(db, process)
    assert done == [row for row in queue for _ in range(2)]


def test_b_the_second_worker_waits_for_the_first(database: Backend, db: Connection, queue: list[Row]) -> None:
    done: list[Row] = []

    def look_who_waits(row: Row) -> None:
        done.append(row)
        if len(done) == 1:
            other.append(pool.submit(_empty_with, database.url, "(b) select for update"))
            database.wait_for(database.someone_waits_for_a_lock, "the other one waits")

    with ThreadPoolExecutor(1) as pool:
        other: list[object] = []
        processors.select_for_update(db, look_who_waits)
    assert done[0] == queue[0]
    assert len(other) == 1


def _empty_with(url: str, name: str) -> list[Row]:
    done: list[Row] = []
    with connected(url, read_committed=True) as db:
        example.AUTHORS[name](db, done.append)
    return done


def test_c_survives_the_death_of_a_worker(database: Backend, db: Connection, queue: list[Row]) -> None:
    with pytest.raises(CrewFailed, match="it was ended"):
        gather([Worker(_die_with_the_first_row, database.url)])
    assert scalar(db, "select count(*) from queue where processed_by is not null") == 1
    db.commit()
    assert _empty_with(database.url, "(c) processed_by") == queue


def _die_with_the_first_row(url: str) -> None:
    with connected(url, read_committed=True) as db:
        processors.processed_by(db, lambda _: os.kill(os.getpid(), signal.SIGKILL))


def test_d_the_second_worker_has_the_next_row(database: Backend, db: Connection, queue: list[Row]) -> None:
    seen: list[Row] = []

    def look(row: Row) -> None:
        seen.append(row)
        raise OwnerState

    def let_the_other_look(row: Row) -> None:
        seen.append(row)
        with connected(database.url, read_committed=True) as other, pytest.raises(OwnerState):
            processors.advisory_lock(other, look)
        raise OwnerState

    with pytest.raises(OwnerState):
        processors.advisory_lock(db, let_the_other_look)
    assert seen == queue[:2]


# --- ours ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ours.WAYS)
def test_one_worker_of_ours_keeps_the_order(database: Backend, queue: list[Row], way: str) -> None:
    options = dict(ours.WAYS[way])
    size, done = options.pop("size"), list[Row]()
    with ours.queue_on(database.url, **options) as ours_queue:
        for batch in ours_queue.batches(min(size, 7), drain=True):
            with batch:
                done += [(job.job, job.priority, job.added_on) for job in batch]
    assert [row[:2] for row in done] == [row[:2] for row in queue]
    assert [row[2].replace(tzinfo=None) for row in done] == [row[2].replace(tzinfo=None) for row in queue]


def test_his_processor_and_ours_respect_each_other(database: Backend, db: Connection, queue: list[Row]) -> None:
    """What (c) has in hand ours does not take, and the other way round."""
    columns = ours.WAYS["claimjobs, processed_by, 100"]["columns"]
    with ours.queue_on(database.url, columns=columns) as ours_queue:
        batch = ours_queue.claim(10)
        assert [job.job for job in batch.jobs] == [row[0] for row in queue[:10]]
        run(db, "update queue set processed_by = 1 where processed_by is null")
        db.commit()
        assert not ours_queue.claim(10)
        batch.done()
        batch.settle()
    assert scalar(db, "select count(*) from queue") == JOBS - 10
    db.commit()
