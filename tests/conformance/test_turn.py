"""From one batch to the next: settled and claimed in one transaction, and nothing of either promise lost by that."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Queue
from claimjobs.batch.settle_and_claim import SettleAndClaim
from claimjobs.database.connect import engine_of
from claimjobs.errors import BadPredicate, ServerUnreachable, StatementTimedOut, key_unreadable
from claimjobs.options import ClaimsKind, Liveness
from claimjobs.settle.outcomes import Outcomes
from servers.proxy import Proxy
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs, names
from tests.conformance.owners import declare_dead, hold_of, still


def states(backend: Backend) -> Counter[tuple[str, bool]]:
    """How many rows there are of each status, and whether somebody owns them."""
    return Counter((row["status"], row["owner_id"] is not None) for row in backend.rows())


FREE, OWNED = ("unclaimed", False), ("claimed", True)


def way_of_a_turn(backend: Backend) -> list[str]:
    if backend.has("one statement"):
        return ["WITH", "COMMIT"]
    lock = ["SELECT"] if backend.has("lock of what is found") else ["SELECT", "SELECT"]
    return ["DELETE", *lock, "UPDATE", "COMMIT"]


@pytest.mark.parametrize("size", [1, 100])
def test_a_batch_in_the_middle_costs_one_transaction(backend: Backend, size: int) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(5 * size))
    sent: list[list[str]] = []
    for batch in queue.batches(size, drain=True):
        assert len(batch) == size
        with counted(backend.engine) as statements:
            with batch:
                batch.done()
            sent.append([sql.split()[0] for sql in statements])
    assert sent[:4] == [way_of_a_turn(backend)] * 4
    assert backend.rows() == []


def test_round_trips_of_a_batch(backend: Backend) -> None:
    """Seen on the line, not in a library: what a driver adds would show here."""
    turns = round_trips_of_batches(backend, "rows")
    assert set(turns) == {1 if backend.has("one statement") else round_trips_of(way_of_a_turn(backend), backend)}
    assert turns[0] <= 5


def test_round_trips_of_a_batch_with_claims_per_batch(backend: Backend) -> None:
    """A claim from the head now and then is another statement, which the server does not know yet the first times."""
    if not backend.dialect.pipelines:
        pytest.skip(f"on {backend.name} the statements are sent one by one")
    assert set(round_trips_of_batches(backend, "batches")) == {1}


def round_trips_of_batches(backend: Backend, claims: ClaimsKind) -> list[int]:
    """From each batch of a loop to the next one, without the first ten and the last."""
    with Proxy(backend.url) as proxy:
        queue = still(backend.queue(bind=engine_of(proxy.url), claims=claims))  # as a Queue makes it for a URL
        queue.enqueue(jobs(400))
        seen: list[int] = []
        for batch in queue.batches(20, drain=True):
            seen.append(proxy.round_trips)
            with batch:
                batch.done()
        queue.close()
        queue.engine.dispose()
    return [later - earlier for earlier, later in itertools.pairwise(seen)][10:-1]


def round_trips_of(statements: list[str], backend: Backend) -> int:
    return len(statements) + (backend.family == "postgres")  # it says BEGIN


@pytest.mark.parametrize("each", [False, True], ids=["all at once", "one by one"])
def test_no_statement_is_about_a_single_job(backend: Backend, each: bool) -> None:
    counts = []
    for size in (10, 50):
        queue = still(backend.queue())
        queue.enqueue(jobs(3 * size))
        with counted(backend.engine) as statements:
            for batch in queue.batches(size, drain=True):
                with batch:
                    for _ in batch if each else ():
                        pass
                    batch.done(*batch.undecided)
            counts.append(len(statements))
        queue.close()
    assert counts[0] == counts[1]


def test_what_is_settled_is_settled_when_the_block_is_left_and_the_next_is_ours(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(7))
    batches = queue.batches(3)
    with next(batches) as batch:
        batch.done()
    assert states(backend) == {FREE: 1, OWNED: 3}
    assert names(next(batches)) == ["0003", "0004", "0005"]
    batches.close()  # the batch in hand is the loop's no more, and not the queue's to give away
    assert states(backend) == {FREE: 1, OWNED: 3}


def stops(queue: Queue, batches: Iterator[object]) -> None:
    queue.stop()
    assert next(batches, None) is None


def ends(_: Queue, batches: Iterator[object]) -> None:
    batches.close()  # type: ignore[attr-defined]  # as a `break` does


@pytest.mark.parametrize("end", [stops, ends])
def test_a_batch_that_nobody_asks_for_is_released(backend: Backend, end: object) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(7))
    batches = queue.batches(3)
    with next(batches) as batch:
        batch.done()
    end(queue, batches)  # type: ignore[operator]
    assert states(backend) == {FREE: 4}
    assert queue.report.released == 3


def test_a_loop_that_is_left_in_the_middle_of_a_batch_holds_nothing(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(7))
    for batch in queue.batches(3):
        with batch:
            batch.done(batch[0])
            break
    assert states(backend) == {FREE: 6}


def test_a_batch_that_is_asked_for_too_late_is_released_meanwhile(backend: Backend) -> None:
    queue = backend.queue(liveness=Liveness(lease=2))
    queue.enqueue(jobs(5))
    batches = queue.batches(3)
    with next(batches) as batch:
        batch.done()
    backend.wait_for(lambda: states(backend) == {FREE: 2}, "what nobody asks for is released")
    with next(batches) as batch:
        assert names(batch) == ["0003", "0004"]
        batch.done()
    batches.close()


def test_a_batch_that_nobody_asked_for_and_that_cannot_be_released_now_is_released_later(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(5))
    batches = queue.batches(3)
    with next(batches) as batch:
        batch.done()
    with monkeypatch.context() as broken:
        broken.setattr(hold_of(queue)._settling, "commit", unreachable)
        batches.close()
    assert states(backend) == {OWNED: 2}
    assert not hold_of(queue).owner.sleeper.can_sleep()
    hold_of(queue).maintain()
    assert states(backend) == {FREE: 2}
    assert hold_of(queue).owner.sleeper.can_sleep()
    assert queue.report.released == 2


def unreachable(*_: object, **__: object) -> None:
    raise ServerUnreachable("no answer")


class Refused(SettleAndClaim):
    """A claim that ends with this error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def may_autocommit(self, outcomes: Outcomes) -> bool:
        return False

    def settle_and_claim(self, *_: Any, **__: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [StatementTimedOut("too long"), key_unreadable("jobs", "no date")])
def test_a_settle_stands_whatever_error_the_next_claim_ends_with(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(5))
    batches = queue.batches(3)
    batch = next(batches).__enter__()
    with monkeypatch.context() as broken:
        broken.setattr("claimjobs.lease.lease_hold.SettleAndClaim", lambda *_: Refused(error))
        batch.done()
        batch.__exit__(None, None, None)
    assert (states(backend), batch.lost) == ({FREE: 2}, ())
    batches.close()


def test_it_is_not_taken_along_when_the_queue_is_to_stop(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(7))
    for batch in queue.batches(3):
        with batch:
            queue.stop()
            batch.done()
    assert states(backend) == {FREE: 4}
    assert queue.report.claims == 1


def fails(batch: Batch) -> None:
    batch.done(batch[0])
    raise ZeroDivisionError


def test_nothing_is_taken_along_where_nothing_came_of_a_batch(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(7))
    batches = queue.batches(3)
    with next(batches) as batch:
        batch.release()
    assert states(backend) == {FREE: 7}
    batch = next(batches)
    with pytest.raises(ZeroDivisionError), batch:
        fails(batch)
    assert states(backend) == {FREE: 6}


def test_all_kinds_of_outcome_go_before_the_next_claim(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(8))
    batches = queue.batches(4)
    with next(batches) as batch:
        batch.done(batch[0])
        batch.release(batch[1])
        batch.fail(batch[2], "again", retry_in=60)
        batch.fail(batch[3], "never", retry=False)
    assert states(backend) == {FREE: 2, OWNED: 4, ("dead", False): 1}
    assert names(next(batches)) == ["0001", "0004", "0005", "0006"]
    batches.close()


def test_jobs_that_are_not_ours_any_more_are_told_and_the_next_are_claimed(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(6))
    batches = queue.batches(3)
    with next(batches) as batch:
        backend.run("UPDATE jobs SET owner_id = 42 WHERE d IN ('0000', '0002')")
        batch.done()
    assert names(batch.lost) == ["0000", "0002"]
    assert (queue.report.done, queue.report.lost) == (1, 2)
    with next(batches) as batch:
        assert names(batch) == ["0003", "0004", "0005"]
        batch.done()
    assert batch.lost == ()
    batches.close()
    assert Counter(row["owner_id"] for row in backend.rows()) == {42: 2}


@pytest.mark.parametrize("is_known", [False, pytest.param(True, marks=pytest.mark.pair("it has a new id already"))])
def test_an_owner_that_was_declared_dead_settles_what_is_its_own_and_claims_under_another_id(
    backend: Backend, is_known: bool
) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(5))
    batches = queue.batches(3)
    with next(batches) as batch:
        before = queue.owner_id
        declare_dead(backend, before)
        if is_known:
            hold_of(queue).owner.row.beat()
            assert queue.owner_id != before
        backend.run("UPDATE jobs SET owner_id = 42 WHERE d = '0001'")
        batch.done()
    assert names(batch.lost) == ["0001"]
    assert (queue.report.done, queue.report.lost) == (2, 1)
    with next(batches) as batch:
        assert queue.owner_id != before
        assert names(batch) == ["0003", "0004"]
        batch.done()
    batches.close()
    queue.reclaim()


@pytest.mark.requires("one statement")  # elsewhere a division by zero is NULL
def test_what_is_settled_stays_so_where_the_next_claim_is_refused(backend: Backend) -> None:
    queue = backend.queue(where=sa.text("1 / (id - 3) < 7"))
    queue.enqueue(jobs(4))
    batches = queue.batches(2)
    with next(batches) as batch:
        batch.done()
    assert states(backend) == {FREE: 2}
    with pytest.raises(BadPredicate, match="division"):
        next(batches)


def test_a_predicate_that_cannot_be_had_does_not_keep_a_batch_from_being_settled(backend: Backend) -> None:
    def where() -> sa.TextClause:
        if queue.report.claims:
            raise LookupError("no more predicates")
        return sa.text("d < '0002'")

    queue = backend.queue(where=where)
    queue.enqueue(jobs(4))
    batches = queue.batches(2)
    with next(batches) as batch:
        batch.done()
    assert states(backend) == {FREE: 2}
    with pytest.raises(LookupError):
        next(batches)


def test_a_key_of_several_columns_tells_which_jobs_are_lost(backend: Backend) -> None:
    table = sa.Table(
        "parts",
        sa.MetaData(),
        sa.Column("customer", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("part", sa.String(10), primary_key=True),
        sa.Column("status", sa.String(10), nullable=False, server_default="unclaimed"),
        sa.Column("owner_id", sa.Integer),
        sa.Column("owner_date", sa.DateTime),
    )
    queue = backend.queue(table)
    queue.enqueue({"customer": n // 2, "part": f"p{n}"} for n in range(6))
    batches = queue.batches(4)
    with next(batches) as batch:
        backend.run("UPDATE parts SET owner_id = 42 WHERE part = 'p2'")
        batch.done()
    assert [job.key for job in batch.lost] == [(1, "p2")]
    assert [job.key for job in next(batches)] == [(2, "p4"), (2, "p5")]
    batches.close()


def test_ahead_of_an_owner_that_closes_nothing_is_left(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(5))
    batches = queue.batches(2)
    with next(batches) as batch:
        batch.done()
    assert states(backend)[OWNED] == 2
    hold_of(queue)
    queue.close()
    assert states(backend) == {FREE: 3}
    batches.close()


def test_the_next_batch_that_is_asked_for_after_a_close_is_nobody_elses(backend: Backend) -> None:
    """What was claimed ahead was handed back, and may be in other hands by now."""
    queue, other = backend.queue(), backend.queue()
    queue.enqueue(jobs(6))
    batches = queue.batches(2)
    with next(batches) as batch:
        batch.done()
    assert states(backend)[OWNED] == 2
    queue.close()
    with other.claim(2) as taken:
        assert names(taken) == ["0002", "0003"]
        with next(batches) as batch:
            assert names(batch) == ["0004", "0005"]
            batch.done()
        batches.close()
        taken.done()
    assert (batch.lost, taken.lost) == ((), ())
    assert backend.rows() == []
