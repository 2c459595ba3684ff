"""A consumer sees what was enqueued after it looked, at every isolation level."""

from __future__ import annotations

import pytest

from tests.backends import Backend
from tests.conformance.jobs import counted, jobs, names
from tests.conformance.owners import hold_of

LEVELS = ["REPEATABLE READ", "SERIALIZABLE", "READ COMMITTED", "AUTOCOMMIT"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_queue_that_found_nothing_finds_what_comes_later(backend: Backend, level: str) -> None:
    queue = backend.queue(bind=backend.new_engine(isolation_level=level))
    assert not queue.claim()
    backend.queue().enqueue(jobs(2))
    with queue.claim(1) as batch:
        assert names(batch) == ["0000"]
        batch.done()
    backend.queue().enqueue({"d": "later", "e": ""})
    with queue.claim() as batch:
        assert names(batch) == ["0001", "later"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_claim_is_one_transaction_whatever_the_engines_isolation(backend: Backend, level: str) -> None:
    """With AUTOCOMMIT the locks of phase 2 would be gone before the update."""
    engine = backend.new_engine(isolation_level=level)
    queue = backend.queue(bind=engine)
    queue.enqueue(jobs(2))
    hold_of(queue).owner.stop()  # its statements are not the claim's
    with counted(engine) as sent, queue.claim() as batch:
        assert len(batch) == 2
        assert sent.count("COMMIT") == 1
        [level_used] = {c.get_isolation_level() for c in [hold_of(queue)._connector._open()]}
        assert level_used == backend.dialect.isolation


@pytest.mark.parametrize("level", LEVELS)
def test_enqueue_is_all_or_nothing_whatever_the_engines_isolation(backend: Backend, level: str) -> None:
    queue = backend.queue(bind=backend.new_engine(isolation_level=level))
    with pytest.raises(Exception, match="row 2"):
        queue.enqueue([*jobs(1), {"d": None, "e": ""}])
    assert backend.rows() == []


def test_nothing_is_left_open_between_claims(backend: Backend) -> None:
    """An idle transaction would pin a snapshot, and dead rows pile up for everybody."""
    queue = backend.queue()
    queue.claim().settle()
    queue.enqueue(jobs(1))
    with queue.claim() as batch:
        assert len(batch) == 1
        assert backend.locked() == 0
        backend.run("ALTER TABLE jobs ADD COLUMN colour INTEGER")  # waits for all that have touched the table
