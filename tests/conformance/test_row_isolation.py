"""One row that no claim can take stops no other: it is found by halves, told once by its key, and left."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, make, side_car_tables
from claimjobs.errors import BadPredicate, BatchRolledBack, ClaimRefused, StatementTimedOut
from claimjobs.options import Liveness, Retry
from claimjobs.queue.row_isolation import RowIsolation
from tests.backends import Backend, wait_for
from tests.cli.command import claimjobs
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import declare_dead, hold_of
from tests.conformance.refusals import refuse_where

KINDS: dict[str, dict[str, Any]] = {
    "rows": {},
    "batches": {"claims": "batches"},
    "transaction": {"hold": "transaction"},
    "side-car": {"side_car": True},
}
BAD = ("0003", "0008")
COUNT = 12


def refuse_updates(backend: Backend, *those: str) -> None:
    """A trigger of the user's raises an error of its own when one of these rows is updated."""
    listed = ", ".join(f"'{name}'" for name in those)
    if backend.family == "postgres":
        backend.run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
            f"IF NEW.d IN ({listed}) THEN RAISE EXCEPTION 'not this one' USING ERRCODE = '42501'; END IF; "
            "RETURN NEW; END$$"
        )
        backend.run("CREATE TRIGGER refuse BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION refuse()")
    else:
        backend.run(
            f"CREATE TRIGGER refuse BEFORE UPDATE ON jobs FOR EACH ROW BEGIN IF NEW.d IN ({listed}) THEN "
            "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF; END"
        )


def drained(queue: Queue, size: int = 5) -> list[str]:
    done: list[str] = []
    for batch in queue.batches(size, drain=True):
        done += names(batch)
        with batch:
            batch.done()
    return sorted(done)


def others() -> list[str]:
    return [job["d"] for job in jobs(COUNT) if job["d"] not in BAD]


def test_a_row_whose_update_is_refused_is_left_and_the_others_are_done(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(COUNT))
    refuse_updates(backend, *BAD)
    assert drained(queue) == others()
    told = [record.getMessage() for record in caplog.records if "cannot be claimed" in record.getMessage()]
    assert [line.partition(": not this one")[0] for line in told] == [
        f"table jobs: the row with the key {key} cannot be claimed" for key in (4, 9)
    ]
    assert queue.report.unclaimable == queue.stats().unclaimable == 2
    assert not queue.claim()  # it is not tried again, nor told
    assert len(told) == 2
    declare_dead(backend, queue.owner_id)  # it registers again, and says it again
    queue.enqueue({"d": "later", "e": ""})
    assert drained(queue) == ["later"]
    queue.reclaim()  # it may end the session of the owner that was declared dead, which registers once more then
    wait_for(lambda: queue.stats().unclaimable == 2, "the rows that are left in the row of the owner")
    assert "jobs: 2 unclaimed that no claim can take" in claimjobs("status", "--url", backend.url).out


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_whose_generated_column_divides_by_zero_is_left_and_the_others_are_done(
    backend: Backend, kind: str
) -> None:
    """Postgres computes it when it reads the row, MySQL when it writes the row."""
    if backend.family != "postgres" and (backend.family, kind) != ("mysql", "rows"):
        pytest.skip("this claim does not compute it")
    integer = "integer" if backend.family == "postgres" else "signed"
    with backend.engine.connect() as connection:
        if backend.family == "postgres" and (connection.dialect.server_version_info or ()) < (18,):
            pytest.skip("this server stores its generated columns")
    backend.make()
    if kind == "side-car":
        make(backend.engine, side_car_tables(backend.engine, "jobs"))
    with backend.bare_queue(**{"on_done": "delete", **KINDS[kind]}) as queue:
        queue.enqueue(jobs(COUNT))
    share = f"100 / ((CAST(d AS {integer}) - 3) * (CAST(d AS {integer}) - 8))"
    backend.run(f"ALTER TABLE jobs ADD COLUMN share INTEGER GENERATED ALWAYS AS ({share}) VIRTUAL")
    queue = backend.bare_queue(**{"on_done": "delete", **KINDS[kind]})
    assert drained(queue) == others()
    assert queue.report.unclaimable == 2
    backend.run("ALTER TABLE jobs DROP COLUMN share")


def test_a_text_that_the_clients_encoding_does_not_have_stops_no_other_row(backend: Backend) -> None:
    backend.requires("arrays")  # elsewhere the server sends a question mark
    queue = backend.queue()
    queue.enqueue(jobs(COUNT))
    queue.close()
    backend.run("UPDATE jobs SET e = '\u20ac' WHERE d IN ('0003', '0008')")
    latin = backend.new_engine(connect_args={"client_encoding": "latin1"})
    other = backend.bare_queue(bind=latin)
    assert drained(other) == others()
    assert other.report.unclaimable == 2


def slow_updates(backend: Backend, condition: str) -> dict[str, Any]:
    """Updates of these rows take long. Returns the arguments of a connection with a time limit."""
    if backend.family == "mysql":
        pytest.skip("this server limits no statement that writes")
    if backend.family == "postgres":
        backend.run(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
            f"IF {condition} THEN PERFORM pg_sleep(3); END IF; RETURN NEW; END$$"
        )
        backend.run("CREATE TRIGGER slow BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION slow()")
        return {"options": "-c statement_timeout=300"}
    body = f"BEGIN IF {condition} THEN DO sleep(3); END IF; END"
    backend.run(f"CREATE TRIGGER slow BEFORE UPDATE ON jobs FOR EACH ROW {body}")
    return {"init_command": "SET max_statement_time = 0.3"}


def test_a_row_that_exceeds_the_time_limit_is_left_and_the_others_are_done(backend: Backend) -> None:
    backend.make()
    limited = backend.new_engine(connect_args=slow_updates(backend, "NEW.d = '0001'"))
    queue = backend.bare_queue(bind=limited, liveness=Liveness(lease=2, patience=86_400))
    queue.enqueue(jobs(4))
    assert drained(queue, size=4) == ["0000", "0002", "0003"]
    assert queue.report.unclaimable == 1


def test_a_row_whose_settle_exceeds_the_time_limit_fails_after_a_lease_and_the_others_are_done(
    backend: Backend,
) -> None:
    backend.make()
    limited = backend.new_engine(connect_args=slow_updates(backend, "NEW.d = '0001' AND NEW.status = 'done'"))
    queue = backend.bare_queue(bind=limited, on_done="keep", liveness=Liveness(lease=2, patience=86_400))
    queue.enqueue(jobs(4))
    with queue.claim(4) as batch:
        batch.done()
    assert [row["status"] for row in backend.rows()] == ["done", "unclaimed", "done", "done"]
    assert (queue.report.done, queue.report.retried) == (3, 1)


def test_a_claim_goes_past_five_rows_at_the_head_that_exceed_the_time_limit(backend: Backend) -> None:
    """Nobody can tell five such rows from a slow server but by another row."""
    backend.make()
    limited = backend.new_engine(connect_args=slow_updates(backend, "NEW.d < '0006'"))
    queue = backend.bare_queue(bind=limited, liveness=Liveness(lease=2, patience=86_400))
    queue.enqueue(jobs(9))
    assert drained(queue, size=1) == ["0006", "0007", "0008"]
    assert queue.report.unclaimable == 6


def test_a_server_that_is_too_slow_for_every_row_makes_no_row_be_left(backend: Backend) -> None:
    backend.make()
    limited = backend.new_engine(connect_args=slow_updates(backend, "NEW.d <> '0000'"))
    queue = backend.bare_queue(bind=limited, liveness=Liveness(patience=0.1))
    queue.enqueue(jobs(7))
    with queue.claim(1) as batch:
        batch.done()
    with pytest.raises(StatementTimedOut):
        queue.claim(6)
    assert queue.report.unclaimable == 0


def test_a_server_that_is_too_slow_for_the_few_rows_that_are_due_makes_no_row_be_left(backend: Backend) -> None:
    backend.make()
    limited = backend.new_engine(connect_args=slow_updates(backend, "TRUE"))
    queue = backend.bare_queue(bind=limited, liveness=Liveness(patience=0.1))
    queue.enqueue(jobs(2))
    with pytest.raises(StatementTimedOut):
        queue.claim(2)
    assert queue.report.unclaimable == 0


def test_a_loop_that_is_stopped_while_the_server_is_too_slow_ends_and_leaves_no_row(backend: Backend) -> None:
    backend.make()
    limited = backend.new_engine(connect_args=slow_updates(backend, "TRUE"))
    queue = backend.bare_queue(bind=limited, liveness=Liveness(patience=86_400))
    queue.enqueue(jobs(2))

    @sa.event.listens_for(limited, "handle_error")
    def _(_context: object) -> None:
        queue.stop()

    assert list(queue.batches(2)) == []
    assert queue.report.unclaimable == 0


def test_a_predicate_that_one_row_makes_fail_is_a_bad_predicate(backend: Backend) -> None:
    backend.requires("arrays")  # elsewhere a division by zero is NULL
    queue = backend.queue(where=sa.text("1 / (id - 3) < 7"))
    queue.enqueue(jobs(5))
    with pytest.raises(BadPredicate, match="division by zero"):
        queue.claim(5)
    assert queue.report.unclaimable == 0


def test_what_refuses_every_row_is_no_row(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(COUNT))
    refuse_updates(backend, *(job["d"] for job in jobs(COUNT)))
    with pytest.raises(ClaimRefused, match="not this one"):
        queue.claim(5)
    assert queue.report.unclaimable == 0


def test_a_row_that_an_open_transaction_cannot_change_keeps_no_other_job_waiting(database: Backend) -> None:
    """Neither its outcome can be written, nor that it failed, nor that it is a suspect."""
    queue = database.queue(hold="transaction", on_done="keep", retry=Retry(base=0))
    queue.enqueue(jobs(10))
    refuse_where(database, "UPDATE ON jobs", "NEW.d = '0002'", "frozen")
    refused = list[str]()
    for _ in range(30):
        try:
            for batch in queue.batches(5, drain="retries"):
                with batch:
                    batch.done()
            break
        except BatchRolledBack as error:
            refused.append(str(error))
    assert [row["d"] for row in database.rows() if row["status"] != "done"] == ["0002"]
    assert (len(refused), queue.report.unclaimable) == (2, 1)
    assert all("frozen" in error for error in refused)


def test_a_claim_goes_on_if_nobody_can_be_told_how_many_rows_it_leaves(
    anywhere: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = anywhere.queue()
    hold = hold_of(queue)

    def no_connection(_rows: int) -> None:
        raise sa.exc.TimeoutError("the pool has no connection")

    assert hold.owner is not None
    monkeypatch.setattr(hold.owner.row, "note_unclaimable", no_connection)
    RowIsolation(queue._access, queue._consumer.plans, hold).leave({7: ValueError("not this one")})
    assert queue.report.unclaimable == 1
