"""What the database refuses, or swallows: the bad job fails alone, the others are settled, nothing is done for ever."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase

from claimjobs import Queue, Retry, make, side_car_tables
from claimjobs.claim.candidates import check_that_keys_find
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from claimjobs.errors import BadRow, BatchRolledBack, KeyUnfit, OutcomeRefused, RowsRefused, WriteSwallowed
from claimjobs.statements.find import Selection
from claimjobs.table.roles import roles_of
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.refusals import refuse_where

SWALLOW = """
CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN IF OLD.d >= ''{first}'' THEN RETURN NULL; END IF; RETURN {row}; END'
"""
LOCKINGS: Final = (None, AdvisoryLocks())
WAYS: dict[str, dict[str, Any]] = {"rows": {}, "loop": {}}


def swallow(backend: Backend, event: str, first: str = "0000", table: str = "jobs") -> None:
    """Rows from `first` on are neither updated nor deleted, and nobody is told."""
    backend.requires("swallowing triggers")
    backend.run(SWALLOW.format(first=first, row="OLD" if event == "DELETE" else "NEW"))
    backend.run(f"CREATE TRIGGER swallow BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION swallow()")


def refuse(backend: Backend, event: str, d: str, table: str = "jobs") -> None:
    """A row with this `d` is refused, with an error that says so."""
    refuse_where(backend, f"{event} ON {table}", f"OLD.d = '{d}'", f"the row {d} is protected")


def constrain(backend: Backend, d: str, status: str) -> None:
    """A row with this `d` may not be in this state."""
    backend.run(f"ALTER TABLE jobs ADD CONSTRAINT never CHECK (d <> '{d}' OR status <> '{status}')")


def filled(backend: Backend, count: int = 5, **options: Any) -> Queue:
    queue = backend.queue(**{"retry": Retry(attempts=2, base=0.0), **options})
    queue.enqueue(jobs(count))
    return queue


def left(backend: Backend) -> dict[str, tuple[str, int]]:
    return {row["d"]: (row["status"], row["attempts"]) for row in backend.rows()}


def error_of(backend: Backend, d: str) -> str:
    return next(row["last_error"] or "" for row in backend.rows() if row["d"] == d)


def test_a_swallowed_release_of_jobs_without_an_owner_ends_with_an_error(backend: Backend) -> None:
    queue = backend.queue()
    backend.insert("jobs", [{**row, "status": "claimed"} for row in jobs(3)])
    swallow(backend, "UPDATE", "0002")
    with pytest.raises(WriteSwallowed, match="the release of 3 jobs of table 'jobs' reached 2 of their rows"):
        queue.reclaim_ownerless()
    assert queue.stats().ownerless == 3


# --- a settle that is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_a_trigger_protects_fails_alone(backend: Backend, way: str) -> None:
    queue = filled(backend, **WAYS[way])
    refuse(backend, "DELETE", "0002")
    batch = next(queue.batches(5)) if way == "loop" else queue.claim(5)
    with batch:
        batch.done()
    assert left(backend) == {"0002": ("unclaimed", 1)}
    assert "the row 0002 is protected" in error_of(backend, "0002")
    assert (queue.report.done, queue.report.retried, queue.report.lost) == (4, 1, 0)
    with queue.claim(5) as again:
        again.done()
    assert left(backend) == {"0002": ("dead", 2)}
    backend.run("DROP TRIGGER refuse" + (" ON jobs" if backend.has("swallowing triggers") else ""))


def test_a_row_that_a_constraint_refuses_fails_alone(backend: Backend) -> None:
    queue = filled(backend, on_done="keep")
    constrain(backend, "0003", "done")
    with queue.claim(5) as batch:
        batch.done()
    states = left(backend)
    assert states.pop("0003") == ("unclaimed", 1)
    assert set(states.values()) == {("done", 0)}
    assert "never" in error_of(backend, "0003")


def test_a_row_that_a_foreign_key_holds_fails_alone(backend: Backend) -> None:
    queue = filled(backend)
    key = {row["d"]: row["id"] for row in backend.rows()}["0001"]
    backend.run("CREATE TABLE parts (job BIGINT, FOREIGN KEY (job) REFERENCES jobs (id))")
    backend.run("INSERT INTO parts VALUES (:key)", key=key)
    with queue.claim(5) as batch:
        batch.done()
    assert left(backend) == {"0001": ("unclaimed", 1)}
    assert "parts" in error_of(backend, "0001")
    backend.run("DROP TABLE parts")


def test_where_the_failure_is_refused_as_well_the_error_names_the_job_and_it_is_not_done_again(
    backend: Backend,
) -> None:
    queue = filled(backend)
    batch = queue.claim(5)
    refuse(backend, "DELETE", "0002")
    backend.run("ALTER TABLE jobs ADD CONSTRAINT never CHECK (d <> '0002' OR attempts = 0)")
    key = next(job.key for job in batch.jobs if job.d == "0002")
    with pytest.raises(OutcomeRefused, match=r"'jobs'.*protected.*4 others") as raised, batch:
        batch.done()
    assert raised.value.keys == (key,)
    assert batch.settled
    assert left(backend) == {"0002": ("claimed", 0)}
    queue.enqueue(jobs(1))
    with queue.claim(5) as other:
        assert [job.d for job in other.jobs] == ["0000"]
        other.done()
    backend.run("DROP TRIGGER refuse" + (" ON jobs" if backend.has("swallowing triggers") else ""))
    queue.close()
    assert left(backend) == {"0002": ("unclaimed", 0)}


def test_where_a_transaction_holds_the_jobs_a_refused_row_undoes_the_batch_and_says_why(backend: Backend) -> None:
    queue = filled(backend, hold="transaction")
    refuse(backend, "DELETE", "0002")
    with pytest.raises(BatchRolledBack, match="the row 0002 is protected"), queue.claim(5) as batch:
        batch.done()
    assert len(left(backend)) == 5


@pytest.mark.parametrize("locking", LOCKINGS, ids=["rows", "advisory"])
def test_where_a_transaction_holds_the_jobs_a_row_that_a_foreign_key_holds_is_isolated(
    backend: Backend, locking: Any
) -> None:
    queue = filled(backend, 4, hold="transaction", locking=locking)
    key = {row["d"]: row["id"] for row in backend.rows()}["0001"]
    backend.run("CREATE TABLE parts (job BIGINT, FOREIGN KEY (job) REFERENCES jobs (id))")
    backend.run("INSERT INTO parts VALUES (:key)", key=key)
    for _ in range(20):
        with contextlib.suppress(BatchRolledBack), queue.claim(4) as batch:
            batch.done()
        if backend.run("UPDATE jobs SET run_at = '2020-01-01 00:00:00' WHERE status = 'unclaimed'") == 0:
            break
    assert left(backend) == {"0001": ("dead", 2)}
    assert "parts" in error_of(backend, "0001")
    backend.run("DROP TABLE parts")


@pytest.mark.parametrize("uses", ["its connection", "nothing"])
@pytest.mark.parametrize("locking", LOCKINGS, ids=["rows", "advisory"])
def test_where_a_transaction_holds_the_jobs_a_refused_row_is_isolated_and_the_others_are_done(
    backend: Backend, uses: str, locking: Any
) -> None:
    queue = filled(backend, 8, hold="transaction", locking=locking)
    refuse(backend, "DELETE", "0005")
    backend.run("CREATE TABLE effects (d VARCHAR(10))")
    sizes = []
    for _ in range(20):
        with contextlib.suppress(BatchRolledBack), queue.claim(8) as batch:
            sizes.append(len(batch))
            for job in batch:
                if uses == "its connection":
                    batch.connection.execute(sa.text("INSERT INTO effects VALUES (:d)"), {"d": job.d})
        if backend.run("UPDATE jobs SET run_at = '2020-01-01 00:00:00' WHERE status = 'unclaimed'") == 0:
            break
    assert left(backend) == {"0005": ("dead", 2)}
    assert "the row 0005 is protected" in error_of(backend, "0005")
    assert (queue.report.done, queue.report.dead) == (7, 1)
    assert backend.run("DELETE FROM effects") == (7 if uses == "its connection" else 0)
    assert sizes[: 4 + (uses == "nothing")] == [8] * (1 + (uses == "nothing")) + [4, 4, 2]
    backend.run("DROP TABLE effects")
    backend.run("DROP TRIGGER refuse" + (" ON jobs" if backend.has("swallowing triggers") else ""))


@pytest.mark.parametrize("bad", ["0001", "0002"], ids=["in the middle", "the last"])
def test_what_a_session_may_not_write_at_the_end_of_a_job_fails_that_job_alone(backend: Backend, bad: str) -> None:
    """The handler has added it, and not flushed it: so nothing was raised while the job was in work."""

    class Base(DeclarativeBase):
        pass

    class Effect(Base):
        __table__ = sa.Table("effects", Base.metadata, sa.Column("d", sa.String(10), primary_key=True))

    queue = filled(backend, 3, hold="transaction", retry=Retry())
    backend.run(f"CREATE TABLE effects (d VARCHAR(10), CONSTRAINT never CHECK (d <> '{bad}'))")
    with queue.claim() as batch:
        session = batch.session()
        for job in batch:
            batch.connection.execute(sa.text("INSERT INTO effects VALUES (:d)"), {"d": f"of {job.d}"})
            session.add(Effect(d=job.d))
    good = {"0000", "0001", "0002"} - {bad}
    assert {row["d"] for row in backend.rows("effects")} == {*good, *(f"of {name}" for name in good)}
    assert left(backend) == {bad: ("unclaimed", 1)}
    assert "never" in error_of(backend, bad)
    assert (queue.report.done, queue.report.retried) == (2, 1)


@pytest.mark.parametrize("writes", ["the handler", "the settle"])
def test_where_a_transaction_holds_the_jobs_what_only_a_commit_refuses_is_isolated(
    backend: Backend, writes: str
) -> None:
    """All foreign keys that Django makes on Postgres are checked at the commit."""
    if backend.family != "postgres":
        pytest.skip("it checks each constraint at once")
    queue = filled(backend, 8, hold="transaction")
    later = "DEFERRABLE INITIALLY DEFERRED"
    if writes == "the settle":
        backend.run(f"CREATE TABLE parts (job BIGINT REFERENCES jobs (id) {later})")
        backend.run("INSERT INTO parts SELECT id FROM jobs WHERE d = '0005'")
    else:
        backend.run("CREATE TABLE known (d VARCHAR(10) PRIMARY KEY)")
        backend.run("INSERT INTO known SELECT d FROM jobs WHERE d <> '0005'")
        backend.run(f"CREATE TABLE parts (d VARCHAR(10) REFERENCES known (d) {later})")
    for _ in range(20):
        with contextlib.suppress(BatchRolledBack), queue.claim(8) as batch:
            for job in batch:
                if writes == "the handler":
                    batch.connection.execute(sa.text("INSERT INTO parts VALUES (:d)"), {"d": job.d})
        if backend.run("UPDATE jobs SET run_at = '2020-01-01 00:00:00' WHERE status = 'unclaimed'") == 0:
            break
    assert left(backend) == {"0005": ("dead", 2)}
    assert "foreign key" in error_of(backend, "0005")
    assert (queue.report.done, queue.report.dead) == (7, 1)
    assert backend.run("DELETE FROM parts") == (7 if writes == "the handler" else 1)


def test_what_a_dead_owner_held_is_handed_back_but_for_the_row_that_is_refused(backend: Backend) -> None:
    queue, other = filled(backend), backend.queue()
    backend.may_leave_owners = True
    batch = queue.claim(5)
    constrain(backend, "0002", "unclaimed")
    assert other.reclaim_owner(queue.owner_id) == 4
    states = left(backend)
    assert states.pop("0002") == ("claimed", 0)
    assert {status for status, _ in states.values()} == {"unclaimed"}
    backend.run("DELETE FROM jobs")
    batch.settle()


# --- a settle that is swallowed ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_delete_that_is_swallowed_kills_the_job_and_is_told(backend: Backend, way: str) -> None:
    queue = filled(backend, **WAYS[way])
    swallow(backend, "DELETE", "0003")
    batch = next(queue.batches(5)) if way == "loop" else queue.claim(5)
    with batch:
        batch.done()
    assert left(backend) == {"0003": ("dead", 1), "0004": ("dead", 1)}
    assert "trigger" in error_of(backend, "0003")
    assert (queue.report.done, queue.report.dead, queue.report.lost) == (3, 2, 0)


@pytest.mark.parametrize("trigger", [refuse, swallow])
def test_a_lost_job_beside_one_that_is_refused_is_lost_and_no_unfit_key(
    backend: Backend, trigger: Callable[[Backend, str, str], None]
) -> None:
    queue = filled(backend)
    trigger(backend, "DELETE", "0004")
    with queue.claim(5) as batch:
        backend.run("UPDATE jobs SET status = 'unclaimed', owner_id = NULL WHERE d = '0001'")
        batch.done()
    assert [job.d for job in batch.lost] == ["0001"]
    assert (queue.report.done, queue.report.retried + queue.report.dead, queue.report.lost) == (3, 1, 1)
    backend.run(f"DROP TRIGGER {trigger.__name__}" + (" ON jobs" if backend.has("swallowing triggers") else ""))


def test_an_update_that_is_swallowed_is_an_error_and_the_job_is_not_done_again(backend: Backend) -> None:
    queue = filled(backend, on_done="keep")
    batch = queue.claim(5)
    swallow(backend, "UPDATE", "0003")
    with pytest.raises(OutcomeRefused, match="trigger"), batch:
        batch.done()
    assert len(queue.claim(5)) == 0
    assert queue.report.done == 3
    backend.run("DROP TRIGGER swallow ON jobs")


@pytest.mark.parametrize("locking", LOCKINGS, ids=["rows", "advisory"])
def test_a_settle_of_locked_rows_that_is_swallowed_is_rolled_back_and_raised(backend: Backend, locking: Any) -> None:
    backend.make()
    queue = filled(backend, hold="transaction", on_done="delete", locking=locking)
    swallow(backend, "DELETE", "0004")
    backend.run("CREATE TABLE effects (d VARCHAR(10))")
    batch = queue.claim(5)
    batch.connection.execute(sa.text("INSERT INTO effects VALUES ('x')"))
    batch.done()
    with pytest.raises(WriteSwallowed, match=r"5 jobs of table 'jobs' reached 4.*trigger"):
        batch.settle()
    assert batch.settled
    assert (len(left(backend)), backend.run("DELETE FROM effects")) == (5, 0)


def test_a_swallowed_delete_beside_a_side_car_kills_the_job_alone(backend: Backend) -> None:
    backend.make()
    make(backend.engine, side_car_tables(backend.engine, "jobs"))
    queue = filled(backend, side_car=True, on_done="delete")
    swallow(backend, "DELETE", "0003")
    with queue.claim(5) as batch:
        batch.done()
    assert set(left(backend)) == {"0003", "0004"}
    assert (queue.report.done, queue.stats().dead + queue.stats().unclaimed) == (3, 2)


# --- a claim that is swallowed -----------------------------------------------------------------------------


def test_a_mark_that_is_swallowed_is_raised_and_not_tried_for_ever(backend: Backend) -> None:
    queue = filled(backend)
    swallow(backend, "UPDATE")
    with pytest.raises(WriteSwallowed, match="the claim of 5 jobs of table 'jobs' reached 0"):
        next(queue.batches(5, drain=True))


def test_a_key_that_does_not_find_its_row_is_raised_and_not_tried_for_ever(backend: Backend) -> None:
    """Such a key is refused at the first look; this is for one that nobody has thought of."""
    if backend.has("joined rows") and backend.has("lock of what is found"):
        pytest.skip("it finds a FLOAT again, through a table that it makes of JSON")
    type_, key = ("INTERVAL", "'12 months'") if backend.has("arrays") else ("FLOAT", "1.0 / 3.0")
    backend.run(f"CREATE TABLE odd (k {type_} PRIMARY KEY)")
    backend.run(f"INSERT INTO odd VALUES ({key})")
    odd = roles_of(sa.Table("odd", sa.MetaData(), autoload_with=backend.engine))
    known = replace(filled(backend)._access.backend, roles=odd, source=odd)
    with pytest.raises(KeyUnfit, match="'odd'"), backend.engine.connect() as connection:
        check_that_keys_find(connection, known, Selection(sa.true(), odd.key))


def test_claims_in_vain_are_no_error_while_others_hold_the_jobs(backend: Backend) -> None:
    queue, other = filled(backend, hold="transaction"), backend.queue()
    with queue.claim(5) as batch:
        assert [len(other.claim(5)) for _ in range(5)] == [0] * 5
        batch.done()
    assert left(backend) == {}


# --- other writes ------------------------------------------------------------------------------------------


def dead_ones(backend: Backend) -> Queue:
    queue = filled(backend)
    with queue.claim(5) as batch:
        for job in batch.jobs:
            batch.fail(job, "no", retry=False)
    return queue


def test_dead_jobs_are_retried_but_for_the_one_that_is_refused(backend: Backend) -> None:
    queue = dead_ones(backend)
    constrain(backend, "0002", "unclaimed")
    with pytest.raises(RowsRefused, match=r"1 of 5 rows of table 'jobs'.*never"):
        queue.jobs.retry()
    assert queue.jobs.count(state="dead") == 1


def test_dead_jobs_are_dropped_but_for_the_one_that_is_refused(backend: Backend) -> None:
    queue = dead_ones(backend)
    refuse(backend, "DELETE", "0002")
    with pytest.raises(RowsRefused, match=r"1 of 5 rows of table 'jobs'.*protected"):
        queue.jobs.drop()
    assert queue.jobs.count(state="dead") == 1
    backend.run("DROP TRIGGER refuse" + (" ON jobs" if backend.has("swallowing triggers") else ""))


def test_old_jobs_are_purged_but_for_the_one_that_is_refused(backend: Backend) -> None:
    queue = dead_ones(backend)
    backend.run("UPDATE jobs SET owner_date = '2020-01-01 00:00:00'")
    refuse(backend, "DELETE", "0002")
    with pytest.raises(RowsRefused, match=r"1 of 5 rows of table 'jobs'.*protected"):
        queue.purge(0, state="dead")
    assert queue.jobs.count(state="dead") == 1
    backend.run("DROP TRIGGER refuse" + (" ON jobs" if backend.has("swallowing triggers") else ""))


def test_a_row_to_enqueue_that_a_trigger_refuses_is_a_bad_row(backend: Backend) -> None:
    queue = filled(backend, 0)
    refuse_where(backend, "INSERT ON jobs", "NEW.d = '0002'", "not this one")
    with pytest.raises(BadRow, match=r"row 3: .*not this one"):
        queue.enqueue(jobs(5))
