"""The article's table, as the article makes it: what is added helps, and what is there is not added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Columns, Queue
from claimjobs.errors import ColumnUnfit
from claimjobs.explain.adoption import ADDABLE, INDEX, additions
from claimjobs.table.columns import OURS
from claimjobs.table.create import make, tables_for
from claimjobs.table.ddl import add_value
from tests.backends import Backend
from tests.conformance.jobs import jobs

SCHEMAS = Path(__file__).parents[2] / "examples" / "s3_isotopp"


def articles_table(backend: Backend) -> None:
    """And the owners' table, which `setup-tables` adds."""
    family = "postgres" if backend.family == "postgres" else "mysql"
    text = (SCHEMAS / f"schema.{family}.sql").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    for statement in filter(str.strip, lines.split(";")):
        backend.run(statement)
    make(backend.engine, tables_for("jobs")[1:])


def added(backend: Backend) -> list[str]:
    return additions(backend.engine, Queue(backend.engine, "jobs", on_done="delete").settings, ADDABLE)


def test_no_index_is_added_that_is_there_by_another_name(backend: Backend) -> None:
    """An index on the status alone is sorted by the key, where every index is."""
    articles_table(backend)
    settings = Queue(backend.engine, "jobs", on_done="delete").settings
    statements = additions(backend.engine, settings, [INDEX])
    assert len(statements) == (not backend.dialect.indexes_end_in_the_key), statements


@pytest.mark.parametrize("values", [(10, 20, 90_000), (0, 1, 5_000_000_000), (True, False), ("new", None, "x" * 20)])
def test_a_status_that_is_added_holds_each_state(backend: Backend, values: tuple[Any, ...]) -> None:
    backend.run("CREATE TABLE notes (id INTEGER PRIMARY KEY, owner_id INTEGER)")
    backend.insert("notes", [{"id": 1}])
    make(backend.engine, tables_for("jobs")[1:])
    columns = Columns(status="st", states=dict(zip(("unclaimed", "claimed", "done"), values, strict=False)))
    settings = Queue(backend.engine, "notes", columns=columns, on_done="keep").settings
    [statement] = additions(backend.engine, settings, ["status"])
    backend.run(statement)
    queue = backend.bare_queue("notes", columns=columns, on_done="delete")
    with queue.claim() as batch:
        assert [job.st for job in batch] == [values[1]]
    for mixed in ({"unclaimed": 0, "done": "sent"}, {"unclaimed": 0, "done": 2**63}, {"unclaimed": 0.5}):
        settings = Queue(backend.engine, "notes", columns=Columns(status="other", states=mixed)).settings
        with pytest.raises(ColumnUnfit, match="no column of table 'notes' can hold all values of its states \\(0"):
            additions(backend.engine, settings, ["status"])


@pytest.mark.parametrize(
    ("columns", "mended"),
    [
        ("id INTEGER PRIMARY KEY, status TEXT NOT NULL", "status VARCHAR(700) NOT NULL"),
        (
            "a VARCHAR(255), b VARCHAR(255), c VARCHAR(200), status VARCHAR(255), PRIMARY KEY (a, b, c)",
            "status CHAR(50)",
        ),
    ],
    ids=["text", "long"],
)
def test_no_index_is_proposed_that_the_server_refuses(backend: Backend, columns: str, mended: str) -> None:
    backend.requires("table collation")  # the families whose indexes have whole columns of few bytes
    backend.run(f"CREATE TABLE notes ({columns}, owner_id INTEGER) CHARACTER SET utf8mb4")
    make(backend.engine, tables_for("jobs")[1:])
    queue = backend.bare_queue("notes", on_done="delete")
    told = "claims have no index, and no index can have the columns status"
    with pytest.raises(ColumnUnfit, match=f"{told}.*make '(status|a)' a VARCHAR of fewer characters"):
        additions(backend.engine, queue.settings, [INDEX])
    [finding] = [finding for finding in queue.explain().findings if finding.check == "index"]
    assert (finding.verdict, told in finding.says, finding.fix) == ("warning", True, ())
    backend.run(f"ALTER TABLE notes MODIFY COLUMN {mended}")
    [statement] = additions(backend.engine, queue.settings, [INDEX])
    backend.run(statement)


def test_what_is_added_copies_no_table_and_the_rows_are_due(backend: Backend) -> None:
    backend.run("CREATE TABLE notes (id INTEGER PRIMARY KEY, body TEXT)")
    backend.insert("notes", [{"id": 1}])
    make(backend.engine, tables_for("jobs")[1:])
    instantly = ", ALGORITHM=INSTANT" if backend.has("table collation") else ""  # the families that know the word
    settings = backend.bare_queue("notes", on_done="delete").settings
    for statement in additions(backend.engine, settings, OURS):
        backend.run(statement.removesuffix(";") + instantly)
    backend.insert("notes", [{"id": 2}])
    assert [job.id for job in backend.bare_queue("notes", on_done="delete").claim()] == [1, 2]
    first, second = (row["run_at"] for row in backend.rows("notes"))
    assert first < second, "each age counts from when the row could be claimed"


def test_all_that_is_added_makes_a_queue_in_which_jobs_can_fail(backend: Backend) -> None:
    articles_table(backend)

    def failures() -> list[str]:
        found = backend.bare_queue("jobs", on_done="delete").explain().findings
        return [finding.says for finding in found if finding.check == "failures"]

    assert any("fails for the last time is released" in says for says in failures())
    assert any("no column 'attempts'" in says for says in failures())
    dead = add_value(backend.engine, backend.bare_queue("jobs", on_done="delete").roles.table.c.status, "dead")
    for statement in (*added(backend), dead):
        with backend.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text(statement.rstrip(";")))
    assert (added(backend), failures()) == ([], [])
    queue = backend.bare_queue("jobs", on_done="delete")
    queue.enqueue(jobs(1))
    with queue.claim() as batch:
        batch.fail(batch[0], "broken", retry=False)
    assert queue.stats().dead == 1
