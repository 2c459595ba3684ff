"""Owner ids are given once, also after a TRUNCATE of their table or a restore that set its counter back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Liveness
from claimjobs.errors import UnfitTable
from claimjobs.lease.owner_row import _IDS_HERE
from claimjobs.table.definitions import FIRST_OWNER, OWNER_TABLE
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.owners import hold_of, still
from tests.conformance.test_batch_claims import THEIRS, claim_rows, open_their_batch
from tests.conformance.test_reclaim import hold
from tests.conformance.test_rights import account

USED = int(THEIRS["owner_id"])  # type: ignore[call-overload]  # a number


def give_next(backend: Backend, owner_id: int) -> None:
    """Set the counter of ids back, as a restore without it would. Some databases do so only where no row is above."""
    how = "ALTER COLUMN id RESTART WITH" if backend.family == "postgres" else "AUTO_INCREMENT ="
    backend.run(f"ALTER TABLE {OWNER_TABLE} {how} {owner_id}")


def empty_owners(backend: Backend) -> None:
    backend.run(f"TRUNCATE TABLE {OWNER_TABLE}{' RESTART IDENTITY' if backend.family == 'postgres' else ''}")


@contextmanager
def both_look_for_an_id(engine: sa.Engine) -> Iterator[None]:
    """Two consumers look for the largest id in use, before one of them goes on."""
    both = threading.Barrier(2, timeout=120)

    def look(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "max(claimjobs_owners.id)" in statement:
            both.wait()

    sa.event.listen(engine, "after_cursor_execute", look)
    try:
        yield
    finally:
        sa.event.remove(engine, "after_cursor_execute", look)


@pytest.mark.parametrize("claims", ["batches", "rows"])
def test_an_id_that_claim_rows_or_claimed_jobs_have_is_given_to_nobody(backend: Backend, claims: Any) -> None:
    queue, other = (backend.queue(claims=claims, bind=backend.new_engine()) for _ in range(2))
    queue.enqueue(jobs(2))
    if claims == "rows":
        hold(backend, "0000", USED)
    else:
        with backend.engine.begin() as connection:
            open_their_batch(connection, [1])
    give_next(backend, USED)
    assert USED < still(queue).owner_id < other.owner_id  # the counter is above, too


def test_an_id_that_a_living_owner_has_is_given_to_nobody_after_a_truncate(backend: Backend) -> None:
    """Neither holds a job. Their row is gone, and their session has its lock."""
    first, second, queue = still(backend.queue()), still(backend.queue()), still(backend.queue())
    ids = {first.owner_id, second.owner_id, queue.owner_id}
    empty_owners(backend)
    third = backend.queue()
    assert third.owner_id > max(ids)
    assert third.owner_id >= FIRST_OWNER


def test_a_counter_behind_the_rows_moves_above_them(backend: Backend) -> None:
    queue, other, third = (still(backend.queue()) for _ in range(3))
    give_next(backend, queue.owner_id)
    assert len({queue.owner_id, other.owner_id, third.owner_id, backend.queue().owner_id}) == 4


def test_the_id_of_an_owner_that_left_is_not_given_again_where_the_next_one_is_in_use(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row has it any more, and in a table with more owners than seconds the clock is behind it."""
    living = still(backend.queue())
    give_next(backend, living.owner_id + 1_000_000)
    last = backend.queue()
    gone = last.owner_id
    last.close()
    row = hold_of(living).owner.row
    [key] = [key for key, known in _IDS_HERE.items() if known is row]
    monkeypatch.setitem(_IDS_HERE, (*key[:2], gone + 1), row)
    assert backend.queue().owner_id > gone + 1


def test_two_consumers_that_register_at_once_behind_used_ids_get_two(backend: Backend) -> None:
    queues = [backend.queue() for _ in range(2)]
    queues[0].enqueue(jobs(2))
    hold(backend, "0000", USED)
    hold(backend, "0001", USED + 1)
    give_next(backend, USED)
    with both_look_for_an_id(backend.engine), ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda queue: queue.owner_id, queues)
    assert first != second
    assert min(first, second) > USED + 1


def test_who_may_not_move_a_sequence_is_told_the_statement(backend: Backend) -> None:
    backend.queue(claims="batches").enqueue(jobs(1))
    with backend.engine.begin() as connection:
        open_their_batch(connection, [1])
    give_next(backend, USED)
    every = "INSERT, SELECT, UPDATE, DELETE"
    tables = dict.fromkeys(("jobs", OWNER_TABLE, "claimjobs_queues", "claimjobs_batches"), every)
    with account(backend, **tables) as engine:
        queue = backend.bare_queue(bind=engine, claims="batches")
        if backend.family == "postgres":
            with pytest.raises(UnfitTable, match=r"are in use, .*: run `SELECT setval") as told:
                _ = queue.owner_id
            backend.run(str(told.value).split("`")[1])
        assert queue.owner_id > USED
        assert claim_rows(backend)
        queue.close()


LEASE_ONLY = Liveness(session_lock=False)


def test_the_id_of_an_idle_owner_without_row_and_lock_is_not_given_to_another_of_its_process(backend: Backend) -> None:
    """Behind a pooler nothing in the database says that the first one lives. Their host and process are the same, so
    neither would see by its heartbeat that the row is the other's, and the end of one would release the other's jobs.
    """
    first = still(backend.queue(liveness=LEASE_ONLY))
    first.enqueue(jobs(2))
    used = first.owner_id
    empty_owners(backend)
    give_next(backend, used)
    second, third = (still(backend.queue(liveness=LEASE_ONLY)) for _ in range(2))
    assert len({used, second.owner_id, third.owner_id}) == 3
    with first.claim(1) as batch:
        with second.claim(1) as other:
            other.done()
        second.close()
        assert len(third.claim(2)) == 0
        batch.done()
    assert not batch.lost


def test_an_owner_whose_row_is_gone_takes_another_id_than_it_had(backend: Backend) -> None:
    queue = still(backend.queue(liveness=LEASE_ONLY))
    queue.enqueue(jobs(1))
    used = queue.owner_id
    empty_owners(backend)
    give_next(backend, used)
    with queue.claim(1) as batch:
        batch.done()
    assert (queue.owner_id > used, len(batch), batch.lost) == (True, 1, ())


def test_an_id_that_another_process_has_as_well_is_left_with_the_next_heartbeat(backend: Backend) -> None:
    """Without row and session lock its owner is known to its own process only. What it claimed until then is settled,
    because no two claims take one job.
    """
    queue = still(backend.queue(liveness=LEASE_ONLY))
    queue.enqueue(jobs(2))
    used = queue.owner_id
    backend.run(f"UPDATE {OWNER_TABLE} SET pid = pid + 1 WHERE id = {used}")  # as if the other had registered
    hold(backend, "0000", used)
    with queue.claim(2) as batch:
        assert [job["d"] for job in batch] == ["0001"]
        hold_of(queue).owner.row.beat()
        assert queue.owner_id > used
        batch.done()
    assert (batch.lost, [row["owner_id"] for row in backend.rows()]) == ((), [used])
    backend.run(f"DELETE FROM {OWNER_TABLE} WHERE id = {used}")
