"""A row that cannot be read or written does not keep the other jobs of its dead owner: the reaper reads keys."""

from __future__ import annotations

from typing import Any

import pytest

from claimjobs import Queue, make, side_car_tables
from tests.backends import Backend
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import age, owner_row, still

KINDS: dict[str, dict[str, Any]] = {"rows": {}, "batches": {"claims": "batches"}, "side-car": {"side_car": True}}


def queue_of(backend: Backend, kind: str, **options: Any) -> Queue:
    backend.make()
    if kind == "side-car":
        make(backend.engine, side_car_tables(backend.engine, "jobs"))
    return backend.bare_queue(**{"on_done": "delete", **KINDS[kind], **options})


def claimed(queue: Queue) -> list[str]:
    """What can be claimed now."""
    found: list[str] = []
    while batch := queue.claim(3):
        found += names(batch)
        with batch:
            batch.done()
    return sorted(found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_whose_generated_column_divides_by_zero_keeps_no_other(
    backend: Backend, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Postgres computes it when it reads the row, MySQL when it writes the row, which then stays as it is."""
    dead = still(queue_of(backend, kind))
    dead.enqueue(jobs(4))
    me, _ = dead.owner_id, dead.claim(4)
    integer = "integer" if backend.family == "postgres" else "signed"
    with backend.engine.connect() as connection:
        if backend.family == "postgres" and (connection.dialect.server_version_info or ()) < (18,):
            pytest.skip("this server stores its generated columns")
    share = f"100 / CAST(d AS {integer})"
    backend.run(f"ALTER TABLE jobs ADD COLUMN share INTEGER GENERATED ALWAYS AS ({share}) VIRTUAL")
    age(backend, me)
    other = still(queue_of(backend, kind))  # its heartbeats would reclaim, too
    is_stuck = backend.family == "mysql" and kind != "side-car"
    assert other.reclaim() == (3 if is_stuck else 4)
    assert (owner_row(backend, me) is None) is not is_stuck
    assert claimed(other)[-3:] == ["0001", "0002", "0003"]
    told = [message for message in caplog.messages if "job 1 cannot be reclaimed" in message]
    assert len(told) == int(is_stuck)
    if is_stuck:
        with other._access.reaper() as reaper:
            for _ in range(2):
                assert reaper.reclaim_dead() == 0
        assert len([message for message in caplog.messages if "job 1 cannot be reclaimed" in message]) == 2, "once each"
    backend.run("ALTER TABLE jobs DROP COLUMN share")
    assert other.reclaim() == int(is_stuck)
    assert owner_row(backend, me) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_the_reapers_encoding_does_not_have_keeps_no_job(backend: Backend, kind: str) -> None:
    backend.requires("arrays")  # elsewhere the server sends a question mark
    dead = still(queue_of(backend, kind))
    dead.enqueue(jobs(4))
    me, _ = dead.owner_id, dead.claim(4)
    backend.run("UPDATE jobs SET e = '\u20ac' WHERE d = '0000'")
    age(backend, me)
    latin = backend.new_engine(connect_args={"client_encoding": "latin1"})
    other = queue_of(backend, kind, bind=latin)
    assert other.reclaim() == 4
    assert owner_row(backend, me) is None
    assert claimed(other) == ["0001", "0002", "0003"]
    assert other.report.unclaimable == 1
