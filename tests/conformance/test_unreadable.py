"""A value that Python cannot hold: the job whose column is read fails by it alone, whoever is in its batch."""

from __future__ import annotations

from typing import Any

import pytest

from claimjobs import Batch, Queue, Retry, make, side_car_tables
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from claimjobs.errors import KeyUnfit, NothingDone, Unreadable
from claimjobs.workers.consumer import consume
from claimjobs.workers.handlers import Handler
from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.conformance.jobs import dead_jobs, jobs

WAYS: dict[str, dict[str, Any]] = {
    "lease": {},
    "transaction": {"hold": "transaction"},
    "advisory locks": {"hold": "transaction", "locking": AdvisoryLocks()},
    "side-car": {"side_car": True, "on_done": "delete"},
}
BAD = {
    "postgres": [("TIMESTAMP", "'infinity'"), ("DATE", "'0044-03-15 BC'"), ("TIMESTAMPTZ", "'infinity'")],
}
ZERO = [("DATETIME", "'0000-00-00 00:00:00'")]


def spoiled(backend: Backend, number: int = 0, **options: Any) -> Queue:
    """Four jobs, of which the second has a `due` that Python cannot hold."""
    backend.make()
    type_, value = (BAD.get(backend.family) or ZERO)[number]
    backend.run(f"ALTER TABLE jobs ADD COLUMN due {type_} NULL")
    if "side_car" in options:
        make(backend.engine, side_car_tables(backend.engine, "jobs"))
    queue = backend.bare_queue(**{"retry": Retry(attempts=1, base=0.0), **options})
    queue.enqueue(jobs(4))
    with backend.engine.begin() as connection:
        if backend.family != "postgres":
            connection.exec_driver_sql("SET sql_mode = ''")
        connection.exec_driver_sql(f"UPDATE jobs SET due = {value} WHERE d = '0001'")
    backend.engine.dispose()
    return queue


def left(backend: Backend) -> list[str]:
    with backend.engine.connect() as connection:
        return [row[0] for row in connection.exec_driver_sql("SELECT d FROM jobs ORDER BY d")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.requires("values that Python has not")
def test_who_reads_it_fails_that_job_alone(backend: Backend, way: str, number: int) -> None:
    queue = spoiled(backend, number, **WAYS[way])
    with queue.claim(4) as batch:
        Handler(lambda job: job.due, "due", "job").handle(batch)
    assert left(backend) == ["0001"]
    [dead] = dead_jobs(queue)
    assert "'due'" in dead.last_error
    assert queue.report.done == 3


def test_a_date_that_is_none_is_text_where_drivers_have_it_so(backend: Backend) -> None:
    if backend.has("values that Python has not"):
        pytest.skip("it is no value of its own there")
    queue = spoiled(backend)
    with queue.claim(4) as batch:
        assert [job.due for job in batch] == [None, "0000-00-00 00:00:00", None, None]


@pytest.mark.parametrize("way", WAYS)
def test_who_does_not_read_it_is_not_stopped_by_it(backend: Backend, way: str) -> None:
    queue = spoiled(backend, **WAYS[way])
    for batch in queue.batches(2, drain=True):
        with batch:
            batch.done()
    assert left(backend) == []


@pytest.mark.requires("values that Python has not")
def test_an_error_that_leaves_the_block_fails_the_job_that_it_names_and_suspects_no_other(backend: Backend) -> None:
    queue = spoiled(backend)
    with pytest.raises(Unreadable, match="'due' of the row with the key 2"), queue.claim(4) as batch:
        [job.due for job in batch]
    assert (queue.report.done, queue.report.dead, queue.report.released, queue.report.suspects) == (1, 1, 2, 0)


def test_a_dead_job_is_shown_all_the_same_and_can_be_dropped(backend: Backend) -> None:
    queue = spoiled(backend)
    with queue.claim(4) as batch:
        for job in batch.jobs:
            batch.fail(job, "no")
    shown = {job.d: job.shown("due") for job in dead_jobs(queue)}
    assert shown.pop("0001")
    assert set(shown.values()) == {None}
    assert [stored.job.d for stored in queue.jobs.show([2])] == ["0001"]
    assert queue.stats().dead == 4
    assert queue.jobs.retry([2]) == 1
    backend.run("UPDATE jobs SET owner_date = '2020-01-01 00:00:00'")
    assert queue.purge(0, state="dead") == 3
    backend.run("DELETE FROM jobs")


def test_an_order_that_such_a_value_has_a_place_in_is_gone_through(backend: Backend) -> None:
    queue = spoiled(backend)
    if backend.family != "postgres":
        backend.run("UPDATE jobs SET due = '2026-01-01' WHERE due IS NULL")
    else:
        backend.run("UPDATE jobs SET due = '-infinity' WHERE d <> '0001'")
    ordered = backend.bare_queue(order_by="due")
    for batch in ordered.batches(1, drain=True):
        with batch:
            batch.done()
    assert left(backend) == []
    queue.close()


def test_a_time_that_python_cannot_hold_hides_no_figure_of_the_operator(backend: Backend) -> None:
    values = ("'infinity'", "'-infinity'") if backend.family == "postgres" else ("'0000-00-00 00:00:00'",)
    queue = backend.queue()
    queue.enqueue(jobs(1))

    def see() -> tuple[int, float | None, float | None]:
        seen = queue.overview()
        [stored] = queue.jobs.list("d = '0000'")
        listed = claimjobs("list", "--url", backend.url, "--where", "d = '0000'")
        assert (listed.code, listed.out.split("\t")[1]) == (0, "unclaimed")
        assert [job.key for job in seen.retrying] == [stored.key] * seen.backlog.retrying
        assert queue.retries().next_in is None
        return queue.stats().unclaimed, queue.stats().oldest, seen.backlog.oldest

    for value in values:
        with backend.engine.begin() as connection:
            if backend.family != "postgres":
                connection.exec_driver_sql("SET sql_mode = ''")
            connection.exec_driver_sql(f"UPDATE jobs SET attempts = 1, run_at = {value} WHERE d = '0000'")
        backend.engine.dispose()
        assert see() == (1, None, None)
    queue.enqueue([{"d": "0001", "e": ""}])
    backend.run("UPDATE jobs SET run_at = '2020-01-01 00:00:00' WHERE d = '0001'")
    count, *ages = see()
    assert count == 2
    assert all(age is not None and age > 3600 for age in ages)


def days(backend: Backend, type_: str, *values: str, **options: Any) -> Queue:
    """A queue whose key is of this type."""
    backend.requires("values that Python has not")
    backend.make()
    backend.run(
        f"CREATE TABLE days (day {type_} PRIMARY KEY, status VARCHAR(16) NOT NULL DEFAULT 'unclaimed', "
        "owner_id INTEGER, owner_date TIMESTAMP WITH TIME ZONE, due DATE)"
    )
    for value in values:
        backend.run("INSERT INTO days (day) VALUES (" + f"'{value}')")
    if "side_car" in options:
        make(backend.engine, side_car_tables(backend.engine, "days"))
    return backend.bare_queue("days", **{"on_done": "delete", **options})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("type_", ["DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"])
def test_a_key_that_cannot_be_read_stops_no_other_job_and_is_told_once(
    backend: Backend, way: str, type_: str, caplog: pytest.LogCaptureFixture
) -> None:
    values = ("0044-03-15 BC", "2026-01-01", "2026-01-02", "infinity", "-infinity", "12345-01-01")
    queue = days(backend, type_, *values, **WAYS[way])
    for batch in queue.batches(1, drain=True):
        with batch:
            batch.done()
    assert [len(queue.claim(5)) for _ in range(5)] == [0] * 5
    assert queue.report.done == 2
    [told] = [record.getMessage() for record in caplog.records if "no claim takes" in record.getMessage()]
    predicate = told.partition("rows of ")[2].partition(": ")[0]
    assert "no claim takes 4 rows of days.day NOT BETWEEN" in told
    assert backend.run(f"DELETE FROM days WHERE {predicate}".replace(":", chr(92) + ":")) == 4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.requires("table collation")
def test_a_zero_date_in_a_key_stops_no_other_job(backend: Backend, way: str, caplog: pytest.LogCaptureFixture) -> None:
    """Where the server compares it with no text, its job is not claimed, and that is told."""
    queue = spoiled(backend, **{**WAYS[way], "on_done": "delete"})
    backend.run("DELETE FROM jobs WHERE d = '0000'")
    backend.run("UPDATE jobs SET due = '2026-01-01' WHERE d <> '0001'")
    with backend.engine.begin() as connection:
        connection.exec_driver_sql("SET sql_mode = ''")
        connection.exec_driver_sql("ALTER TABLE jobs MODIFY due DATETIME NOT NULL, MODIFY id BIGINT, DROP PRIMARY KEY")
        connection.exec_driver_sql("ALTER TABLE jobs ADD PRIMARY KEY (id, due)")
    backend.engine.dispose()
    if "side_car" in WAYS[way]:
        backend.run("DROP TABLE jobs_claims")
        make(backend.engine, side_car_tables(backend.engine, "jobs"))
    queue = backend.bare_queue(**{"on_done": "delete", **WAYS[way]})
    for batch in queue.batches(2, drain=True):
        with batch:
            batch.done()
    told = [record.getMessage() for record in caplog.records if "no claim takes 1 rows" in record.getMessage()]
    assert (queue.report.done, len(left(backend))) in [(3, 0), (2, 1)]
    assert len(told) == len(left(backend))


def test_a_key_of_another_type_that_cannot_be_read_is_told_and_nothing_stays_claimed(backend: Backend) -> None:
    queue = days(backend, "DATERANGE", "[2026-01-01,2026-01-02)", "[2026-01-01,infinity)")
    with pytest.raises(KeyUnfit, match=r"'days'.*infinity"):
        queue.claim(2)
    assert backend.run("UPDATE days SET owner_id = NULL WHERE status = 'claimed'") == 0


def test_a_value_that_a_handler_of_batches_reads_each_time_ends_its_loop_where_no_failure_can_be_held(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs behind it are never reached: that is told, rather than tried for ever."""
    monkeypatch.setattr("claimjobs.workers.consumer.FIRST_PAUSE", 0.001)
    queue = days(backend, "DATE", "2026-01-01", "2026-01-02")
    backend.run("UPDATE days SET due = 'infinity' WHERE day = '2026-01-01'")

    def read(batch: Batch) -> None:
        assert [job.due for job in batch.jobs]

    with pytest.raises(NothingDone, match=r"5 batches.*'due' of the row with the key .*2026.*cannot be read"):
        consume(queue, Handler(read, "read", "batch"), size=2)
    assert backend.run("DELETE FROM days WHERE status = 'unclaimed'") == 2
