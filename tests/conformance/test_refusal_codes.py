"""A row may be refused with any code, and waits for the others: the code does not say whether it is about one row."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Liveness, Queue, Retry
from claimjobs.errors import BatchRolledBack, SettleFailed
from tests.backends import Backend
from tests.conformance.jobs import jobs

CODES = {
    "postgres": ("42501", "55000", "54000", "0A000", "42703", "53400", "XX000", "HV000", "42P01", "57014", "ABCDE"),
    "mysql": (1142, 1665, 1235, 1146, 1105, 1153, 3024, 1317, 1969, 9999),
}


def refuse(backend: Backend) -> list[Any]:
    """The rows from 0001 on are not deleted: each ends in a code of its own. Returns the codes."""
    codes = list(CODES.get(backend.family, CODES["mysql"]))
    if backend.family == "postgres":
        cases = " ".join(
            f"WHEN ''{n:04}'' THEN RAISE SQLSTATE ''{code}'' USING MESSAGE = ''code {code}'';"
            for n, code in enumerate(codes, 1)
        )
        body = f"BEGIN CASE OLD.d {cases} ELSE END CASE; RETURN OLD; END"
        backend.run(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS '{body}'")
        backend.run("CREATE TRIGGER refuse BEFORE DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION refuse()")
    else:
        cases = " ".join(
            f"WHEN '{n:04}' THEN SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'code {code}';"
            for n, code in enumerate(codes, 1)
        )
        backend.run(
            f"CREATE TRIGGER refuse BEFORE DELETE ON jobs FOR EACH ROW BEGIN CASE OLD.d {cases} ELSE BEGIN END; "
            "END CASE; END"
        )
    return codes


def forgive(backend: Backend) -> None:
    backend.run("DROP TRIGGER refuse" + (" ON jobs" if backend.family == "postgres" else ""))


@pytest.mark.parametrize("claims", ["rows", "batches"])
def test_whatever_the_code_is_each_bad_row_fails_alone_and_the_others_are_done(backend: Backend, claims: Any) -> None:
    # A single row that is interrupted each time is tried for `patience`.
    queue = backend.queue(claims=claims, retry=Retry(attempts=1), liveness=Liveness(patience=0.2))
    codes = refuse(backend)
    queue.enqueue(jobs(len(codes) + 3))
    with queue.claim(100) as batch:
        batch.done()
    rows = {row["d"]: row for row in backend.rows()}
    assert {d: row["status"] for d, row in rows.items()} == {f"{n:04}": "dead" for n, _ in enumerate(codes, 1)}
    for n, code in enumerate(codes, 1):
        assert f"code {code}" in rows[f"{n:04}"]["last_error"]
    assert (queue.report.done, queue.report.dead) == (3, len(codes))
    forgive(backend)


def settled(queue: Queue, backend: Backend) -> None:
    """Claim and settle until no job is unclaimed."""
    for _ in range(60):
        with contextlib.suppress(BatchRolledBack), queue.claim(100) as batch:
            batch.done()
        if backend.run("UPDATE jobs SET run_at = '2020-01-01 00:00:00' WHERE status = 'unclaimed'") == 0:
            return


def test_where_a_transaction_holds_the_jobs_they_are_isolated_by_halves(backend: Backend) -> None:
    queue = backend.queue(hold="transaction", retry=Retry(attempts=1))
    refuse(backend)
    queue.enqueue(jobs(4))
    settled(queue, backend)
    assert {row["d"]: row["status"] for row in backend.rows()} == dict.fromkeys(("0001", "0002", "0003"), "dead")
    forgive(backend)


def test_what_is_refused_for_each_row_and_as_a_failure_too_is_no_matter_of_rows(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(3))
    batch = queue.claim()
    batch.done()
    backend.run("ALTER TABLE jobs RENAME COLUMN owner_id TO gone")
    with pytest.raises(SettleFailed) as raised:
        batch.settle()
    assert isinstance(raised.value.__cause__, sa.exc.DBAPIError)
    backend.run("ALTER TABLE jobs RENAME COLUMN gone TO owner_id")
    batch.settle()
    assert backend.rows() == []
