"""Advice on the article's table, as the article makes it: what is advised helps, and what is there is not advised."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.explain.diagnosis import advice, checked_roles
from claimjobs.table.create import make, tables_for
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


def advised(backend: Backend) -> list[str]:
    settings = Queue(backend.engine, "jobs", on_done="delete").settings
    return advice(backend.engine, settings, checked_roles(backend.engine, settings))


def test_no_index_is_advised_that_is_there_by_another_name(backend: Backend) -> None:
    """An index on the status alone is sorted by the key, where every index is."""
    articles_table(backend)
    advised_index = [line for line in advised(backend) if "CREATE INDEX" in line]
    assert len(advised_index) == (not backend.dialect.indexes_end_in_the_key), advised_index


def test_all_that_is_advised_makes_a_queue_in_which_jobs_can_fail(backend: Backend) -> None:
    articles_table(backend)
    assert any("fails for the last time is released" in line and ": ALTER " in line for line in advised(backend))
    for _ in range(2):  # with the columns there, another index is the one to claim by
        for line in advised(backend):
            with backend.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(sa.text(line.partition(": ")[2].rstrip(";")))
    assert advised(backend) == []
    queue = backend.bare_queue("jobs", on_done="delete")
    queue.enqueue(jobs(1))
    with queue.claim() as batch:
        batch.fail(batch[0], "broken", retry=False)
    assert queue.stats().dead == 1
