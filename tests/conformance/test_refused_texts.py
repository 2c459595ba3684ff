"""The text of an error that the database does not take is stored short and as ASCII, then not at all."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Retry
from claimjobs.options import HOLDS
from claimjobs.table.roles import cut
from tests.backends import Backend
from tests.conformance.jobs import jobs

LONG = "äöü€" * 500

COLUMNS: dict[str, dict[str, str]] = {
    # No text at all is taken.
    "numbers": {
        "postgres": "ALTER TABLE jobs ALTER last_error TYPE BYTEA USING NULL",
        "mysql": "ALTER TABLE jobs ADD CONSTRAINT never CHECK (last_error IS NULL)",
    },
    # In bytes it is longer than in characters.
    "bytes": {
        "postgres": "ALTER TABLE jobs ADD CONSTRAINT few CHECK (octet_length(last_error) < 300)",
        "mysql": "ALTER TABLE jobs MODIFY last_error VARBINARY(300)",
    },
    "an index": {
        "postgres": "CREATE INDEX by_error ON jobs (last_error)",
        "mysql": "ALTER TABLE jobs MODIFY last_error TINYTEXT",
    },
    # Characters that it does not have.
    "an old character set": {
        "postgres": "ALTER TABLE jobs ADD CONSTRAINT old CHECK (last_error ~ '^[ -~]*$')",
        "mysql": "ALTER TABLE jobs MODIFY last_error TEXT CHARACTER SET latin2",
    },
}


def change(backend: Backend, kind: str) -> None:
    backend.run(COLUMNS[kind].get(backend.family, COLUMNS[kind]["mysql"]))


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("hold", HOLDS)
def test_a_job_fails_even_if_its_error_cannot_be_stored(backend: Backend, kind: str, hold: Any) -> None:
    queue = backend.queue(hold=hold, retry=Retry(attempts=1))
    change(backend, kind)
    queue.enqueue(jobs(4))
    with queue.claim() as batch:
        batch.done(batch[0], batch[3])
        # Each character has another one after it: a page of the server stores it in as many bytes as it has.
        batch.fail(batch[1], "".join(chr(0x4E00 + n) for n in range(3_000)))
        batch.fail(batch[2], ValueError(LONG))
    rows = backend.rows()
    assert [(row["d"], row["status"], row["attempts"]) for row in rows] == [("0001", "dead", 1), ("0002", "dead", 1)]
    assert [row["last_error"] is None for row in rows] == [kind == "numbers"] * 2
    assert (queue.report.done, queue.report.dead) == (2, 2)
    assert (batch.outcomes.failures[batch[2].key].error or "").startswith("ValueError: äöü€"), (
        "logged and told as it was"
    )


def test_suspects_whose_error_cannot_be_stored_are_suspects(backend: Backend) -> None:
    queue = backend.queue(retry=Retry(base=0.0))
    change(backend, "numbers")
    queue.enqueue(jobs(2))
    with contextlib.suppress(ValueError), queue.claim():
        raise ValueError(LONG)
    assert [(row["status"], row["suspect"], row["last_error"]) for row in backend.rows()] == [
        ("unclaimed", 2, None)
    ] * 2


def test_what_a_dead_owner_held_is_reclaimed_without_a_text(backend: Backend) -> None:
    queue, other = backend.queue(), backend.queue()
    change(backend, "numbers")
    backend.may_leave_owners = True
    queue.enqueue(jobs(2))
    batch = queue.claim()
    assert other.reclaim_owner(queue.owner_id) == 2
    assert {(row["status"], row["last_error"]) for row in backend.rows()} == {("unclaimed", None)}
    backend.run("DELETE FROM jobs")
    batch.settle()


def test_a_text_that_the_client_cannot_encode_costs_no_other_job(backend: Backend) -> None:
    """A session whose character set the user has chosen."""
    url = sa.make_url(backend.url)
    option = {"client_encoding": "latin1"} if backend.family == "postgres" else {"charset": "latin1"}
    engine = sa.create_engine(url.update_query_dict(option))
    queue = backend.queue(bind=engine, retry=Retry(attempts=1))
    queue.enqueue(jobs(4))
    with queue.claim() as batch:
        batch.done(*batch.jobs[1:])
        batch.fail(batch[0], "日本")
    assert [(row["status"], row["last_error"]) for row in backend.rows()] == [("dead", "\\u65e5\\u672c")]
    queue.close()
    engine.dispose()


@pytest.mark.parametrize(
    ("type_", "kept"),
    [
        (sa.Text(), "ä" * 9 + "…"),
        (sa.String(4), "äää…"),
        (sa.LargeBinary(8), "ää…"),
    ],
    ids=str,
)
def test_a_text_is_cut_to_its_column(type_: Any, kept: str) -> None:
    assert cut("ä" * 11, 10, type_) == kept
