"""The SQL of the page for operators, run as it stands while a consumer holds jobs."""

from __future__ import annotations

import re

import pytest
import sqlalchemy as sa

from tests.backends import Backend
from tests.docs.markdown import OPERATING, Block, blocks

TITLES = {"postgres": "Postgres", "mysql": "MySQL", "mariadb": "MariaDB"}
SQL = blocks(OPERATING, "sql")


def _for(backend: Backend, *, partitioned: bool = False) -> list[Block]:
    """The blocks for this database. A block without a first line of comment is for all."""
    found = []
    for block in SQL:
        head = re.match(r"-- (.*)\n", block.text)
        words = head[1].split(", ") if head else list(TITLES.values())
        if TITLES[backend.family] in words and partitioned == ("partitioned" in words):
            found.append(block)
    return found


def _run(backend: Backend, block: Block) -> int:
    with backend.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        return _run_in(connection, block)


def _run_in(connection: sa.Connection, block: Block) -> int:
    """How many rows the last statement of a block reached. What it sets in the session ends with it."""
    connection.detach()
    for statement in re.split(r";\n", block.text.strip().removesuffix(";")):
        result = connection.execute(sa.text(statement))
    return len(result.all()) if result.returns_rows else int(result.rowcount)


def _first_with(words: str, among: list[Block]) -> Block:
    return next(block for block in among if words in block.text)


def test_every_block_is_for_a_database_that_there_is() -> None:
    heads = {word for block in SQL if (head := re.match(r"-- (.*)\n", block.text)) for word in head[1].split(", ")}
    assert heads == {*TITLES.values(), "partitioned"}


def test_every_statement_runs_while_jobs_are_held(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue([{"d": "newsletter", "e": ""} for _ in range(5)])
    with queue.claim(2) as batch:
        for block in _for(backend):
            _run(backend, block)
        batch.done()
    assert len(backend.rows()) == 3


def test_a_waiting_job_is_cancelled_and_a_held_one_is_lost(backend: Backend) -> None:
    statements = _for(backend)
    queue = backend.queue()
    queue.enqueue([{"d": str(number), "e": ""} for number in range(4)])
    backend.run("UPDATE jobs SET priority = -1 WHERE id = 2")
    batch = queue.claim(1)
    assert [job.key for job in batch.jobs] == [2]
    assert _run(backend, _first_with("id = 1 AND", statements)) == 1
    assert _run(backend, _first_with("id = 2 AND", statements)) == 1
    with batch:
        batch.done()
    assert [job.key for job in batch.lost] == [2]
    assert [row["id"] for row in backend.rows()] == [3, 4]


def test_a_claimed_job_is_not_changed_by_what_is_for_waiting_ones(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue([{"d": "a", "e": ""} for _ in range(3)])
    with queue.claim(3) as batch:
        changes = [block for block in _for(backend) if "status = 'unclaimed'" in block.text]
        assert [_run(backend, block) for block in changes] == [0] * len(changes)
        assert len(changes) == 4
        batch.release()


@pytest.mark.requires("arrays")  # on Postgres alone the statement skips locked rows
def test_many_jobs_are_changed_past_those_that_are_locked(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue([{"d": "newsletter", "e": ""} for _ in range(5)])
    with backend.engine.begin() as other:
        other.execute(sa.text("SELECT id FROM jobs WHERE id = 1 FOR UPDATE"))
        assert _run(backend, _first_with("SKIP LOCKED", _for(backend))) == 4


def test_a_chunk_locks_the_jobs_that_it_changes_and_no_others(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue([{"d": name, "e": ""} for name in ("newsletter", "other") * 5])
    with backend.engine.connect() as connection, connection.begin():
        assert _run_in(connection, _first_with("LIMIT 1000", _for(backend))) == 5
        assert backend.locked() == 5


def test_a_partition_is_dropped_and_jobs_of_others_go_on(backend: Backend) -> None:
    made, *others = _for(backend, partitioned=True)
    _run(backend, made)
    backend.run("INSERT INTO events (made) VALUES ('2026-01-05'), ('2026-01-06'), ('2026-02-05')")
    queue = backend.queue("events", on_done="keep", order_by=["made"])
    with queue.claim(2) as batch:
        batch.done()
    for block in others:
        _run(backend, block)
    backend.run("INSERT INTO events (made) VALUES ('2026-03-05')")
    with queue.claim(10) as batch:
        assert len(batch.jobs) == 2
        batch.done()
    assert sorted(str(row["made"]) for row in backend.rows("events")) == ["2026-02-05", "2026-03-05"]
