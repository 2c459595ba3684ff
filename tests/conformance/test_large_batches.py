"""A batch may be larger than what one statement holds."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from claimjobs import PerKey, job_table, key_tables, make
from claimjobs.errors import BadRow, BatchRolledBack
from claimjobs.options import Liveness
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.owners import hold_of, still
from tests.conformance.test_per_key import mails_with

PATIENT = Liveness(lease=60.0)


def test_more_jobs_at_once_than_a_statement_has_parameters(database: Backend) -> None:
    queue = still(database.queue(liveness=PATIENT))
    queue.enqueue(jobs(66_000))
    with queue.claim(66_000) as batch:
        assert len(batch) == 66_000
        batch.done(*batch.jobs[:33_000])
    assert batch.lost == ()
    assert queue.stats().unclaimed == 33_000


def small_packets(own: Backend, size: int) -> None:
    """As an administrator may have set it; for sessions that begin from now on."""
    if own.family != "postgres":  # which knows no such limit
        own.run(f"SET GLOBAL max_allowed_packet = {size}")


def test_more_at_once_than_a_packet_holds(own: Backend) -> None:
    """A thousand rows of 6 kB, a thousand errors of 5 kB, packets of 1 MB, as an old configuration has them."""
    table = job_table("emails", sa.MetaData(), sa.Column("body", sa.Text))
    own.make(table)
    small_packets(own, 1 << 20)
    try:
        queue = still(own.bare_queue(table, bind=own.new_engine(), liveness=PATIENT))
        queue.enqueue({"body": "x" * 6_000} for _ in range(1_000))
        with queue.claim(1_000) as batch:
            assert len(batch) == 1_000
            for number, job in enumerate(batch.jobs):
                batch.fail(job, f"{number} " + "€'" * 5_000, retry=number % 2 == 0)
        assert batch.lost == ()
        assert (queue.report.retried, queue.report.dead) == (500, 500)
        assert queue.report.transients == {}
    finally:
        small_packets(own, 64 << 20)


def test_more_results_than_a_packet_holds(own: Backend) -> None:
    table = job_table("emails", sa.MetaData(), sa.Column("body", sa.Text))
    own.make(table)
    small_packets(own, 1 << 20)
    try:
        queue = still(own.bare_queue(table, bind=own.new_engine(), liveness=PATIENT, on_done="keep"))
        queue.enqueue({"body": ""} for _ in range(200))
        with queue.claim(200) as batch:
            for job in batch.jobs:
                batch.done(job, body="x" * 6_000)
        assert (queue.report.done, queue.report.transients) == (200, {})
    finally:
        small_packets(own, 64 << 20)


@pytest.mark.parametrize("kind", [{}, {"hold": "transaction"}], ids=["rows", "transaction"])
def test_a_result_that_is_larger_than_a_packet_fails_its_job_alone(own: Backend, kind: dict[str, Any]) -> None:
    """And is not sent: the server would end the session, at each try."""
    if own.family == "postgres":
        pytest.skip("it knows no such limit")
    answer = sa.Column("answer", mysql.LONGTEXT)
    table = job_table("emails", sa.MetaData(), sa.Column("d", sa.Integer), answer, sa.Column("said", sa.JSON))
    own.make(table)
    small_packets(own, 1 << 20)
    try:
        queue = own.bare_queue(table, bind=own.new_engine(), liveness=PATIENT, on_done="keep", **kind)
        queue.enqueue({"d": number} for number in range(3))
        escaped = {"said": {"text": "я" * 200_000}}
        results: list[dict[str, Any]] = [{"answer": "x" * 1_100_000}, escaped, {"answer": "y" * 400_000}]
        for _ in range(4):
            with contextlib.suppress(BatchRolledBack), queue.claim(3) as batch:
                for job in batch.jobs:
                    batch.done(job, **results[job.d])
            own.run("UPDATE emails SET run_at = '2020-01-01 00:00:00' WHERE suspect > 0")
        found = {row["d"]: row for row in own.rows(table)}
        assert [found[d]["status"] for d in range(3)] == ["unclaimed", "unclaimed", "done"]
        assert all("1,048,576 (max_allowed_packet)" in found[d]["last_error"] for d in (0, 1))
        assert "connection lost" not in queue.report.transients
    finally:
        small_packets(own, 64 << 20)


@pytest.mark.parametrize("filler", ['"', "😀"])
def test_long_keys_are_settled_in_parts(own: Backend, filler: str) -> None:
    key = sa.Column("name", sa.String(500), primary_key=True)
    own.make(table := job_table("files", sa.MetaData(), key))
    small_packets(own, 1 << 20)
    try:
        queue = still(own.bare_queue(table, bind=own.new_engine(), liveness=PATIENT))
        queue.enqueue({"name": f"{number} ".ljust(500, filler)} for number in range(2_000))
        for batch in queue.batches(2_000, drain=True):
            with batch:
                batch.done()
        assert (queue.report.done, queue.report.transients) == (2_000, {})
    finally:
        small_packets(own, 64 << 20)


def test_long_keys_of_per_key_are_sent_in_parts(own: Backend) -> None:
    """Each of many jobs in hand has another key."""
    customer = sa.Column("customer", sa.String(255), nullable=False)
    own.make(mails := mails_with(customer))
    make(own.engine, key_tables(own.engine, "mails", ("customer",)))
    small_packets(own, 1 << 20)
    try:
        per_key = PerKey("customer", at_most=1)
        queue = still(own.bare_queue(mails, bind=own.new_engine(), liveness=PATIENT, per_key=per_key))
        queue.enqueue({"customer": f"{number} ".ljust(255, "😀")} for _ in range(2) for number in range(1_500))
        batches = [queue.claim(1_500) for _ in range(4)]
        jobs_in_hand = [job for batch in batches for job in batch.jobs]
        hold_of(queue)._keys.make_next(jobs_in_hand, given_back=True)
        for batch in batches:
            batch.release()
            batch.settle()
        for batch in queue.batches(3_000, drain=True):
            with batch:
                batch.done()
        assert (queue.report.done, queue.report.transients) == (3_000, {})
    finally:
        small_packets(own, 64 << 20)


def test_a_heartbeat_asks_for_many_long_keys_in_parts(own: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all open batches: whether their jobs were cancelled."""
    own.make(table := job_table("files", sa.MetaData(), sa.Column("name", sa.String(500), primary_key=True)))
    small_packets(own, 1 << 20)
    try:
        queue = still(own.bare_queue(table, bind=own.new_engine(), liveness=PATIENT))
        monkeypatch.setattr(hold_of(queue), "_beat", 0.0)
        queue.enqueue({"name": f"{number} ".ljust(500, '"')} for number in range(1_000))
        batches = [queue.claim(200) for _ in range(5)]
        assert len(queue.jobs.cancel([batches[0][0].key])) == 1
        hold_of(queue).read_pause()
        assert [[job.is_lost for job in batch.jobs].count(True) for batch in batches] == [1, 0, 0, 0, 0]
        assert queue.report.transients == {}
    finally:
        small_packets(own, 64 << 20)


def test_many_long_keys_are_cancelled_and_retried_in_parts(own: Backend) -> None:
    own.make(table := job_table("files", sa.MetaData(), sa.Column("name", sa.String(500), primary_key=True)))
    small_packets(own, 1 << 20)
    try:
        queue = still(own.bare_queue(table, bind=own.new_engine(), liveness=PATIENT))
        names = [f"{number} ".ljust(500, '"') for number in range(1_000)]
        queue.enqueue({"name": name} for name in names)
        assert len(queue.jobs.cancel(names)) == queue.jobs.retry() == 1_000
    finally:
        small_packets(own, 64 << 20)


def test_many_long_unique_values_are_looked_up_in_parts(own: Backend) -> None:
    own.make(table := job_table("files", sa.MetaData(), sa.Column("name", sa.String(700)), unique="name"))
    small_packets(own, 1 << 20)
    try:
        queue = own.bare_queue(table, bind=own.new_engine())
        rows = [{"name": f"{number} ".ljust(700, "'")} for number in range(1_000)]
        assert queue.enqueue(rows[::2], unique="name") == 500
        assert queue.enqueue(rows, unique="name") == 500
        assert queue.enqueue(rows, unique="name", on_duplicate="replace") == 1_000
    finally:
        small_packets(own, 64 << 20)


def test_a_row_that_is_larger_than_a_packet_is_a_bad_row(own: Backend) -> None:
    """And is not sent: the server would close the connection, and the caller's transaction would be gone."""
    if own.family == "postgres":
        pytest.skip("it knows no such limit")
    table = job_table("emails", sa.MetaData(), sa.Column("body", mysql.LONGTEXT))
    own.make(table)
    small_packets(own, 1 << 20)
    bad: list[BadRow] = []
    try:
        queue = own.bare_queue(table, bind=own.new_engine())
        rows = [{"body": "x" * (1_100_000 if number == 7 else 10)} for number in range(300)]
        assert queue.enqueue(rows, on_bad=bad.append) == 299
        assert [(each.line, "1,048,576 (max_allowed_packet)" in each.reason) for each in bad] == [(8, True)]
        with own.new_engine().begin() as connection:
            with pytest.raises(BadRow, match=r"row 1: it has 1,1\d\d,\d\d\d bytes in a statement"):
                queue.enqueue({"body": "'" * 550_000}, connection)
            queue.enqueue({"body": "as before"}, connection)
        assert queue.stats().unclaimed == 300
    finally:
        small_packets(own, 64 << 20)


def test_tables_are_made_where_the_row_format_is_compact(own: Backend) -> None:
    """Its indexes hold 767 bytes, fewer than the name of a table."""
    if own.family == "postgres":
        pytest.skip("it has one row format")
    own.run("SET GLOBAL innodb_default_row_format = compact")
    try:
        queue = own.queue()
        queue.enqueue(jobs(1))
        assert len(queue.claim()) == 1
    finally:
        own.run("SET GLOBAL innodb_default_row_format = dynamic")
