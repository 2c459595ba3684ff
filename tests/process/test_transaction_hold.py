"""Consumers whose claims are held by open transactions: exactly once in that database, whatever is killed when."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from claimjobs.cli import exits
from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.process.command import HANDLERS, adds_up, noted, started, summary
from tests.process.dear import dear
from tests.process.work import EFFECTS

pytestmark = pytest.mark.one_server("the processes are the same on each")

JOBS = 1_500
KILLS = 8

TASKS = sa.Table(
    "tasks",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("body", sa.String(20), nullable=False),
    mysql_engine="InnoDB",
)
"""A key and a payload: nothing else is needed where the locks are the claim."""

HELD = ("--table", "tasks", "--hold", "transaction", "--on-done", "delete")


def fill(backend: Backend, count: int) -> None:
    for table in (TASKS, EFFECTS):
        table.create(backend.engine)
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(TASKS), [{"body": f"task {number}"} for number in range(count)])


def effects(backend: Backend) -> Counter[int]:
    """How often each job has had its effect."""
    with backend.engine.connect() as connection:
        return Counter(connection.scalars(sa.select(EFFECTS.c.job)))


def left(backend: Backend) -> int:
    with backend.engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(TASKS)) or 0


def _begun_more_than(backend: Backend, count: int) -> bool:
    return len(noted(backend, "begun")) > count


def test_killed_at_any_time_each_job_has_its_effect_exactly_once(database: Backend, tmp_path: Path) -> None:
    fill(database, JOBS)
    dice = random.Random(7)
    options = (f"{HANDLERS}:write_effect", *HELD, "--consumers", "4", "--batch-size", "25", "--drain", "--json")
    with started(database, tmp_path, *options) as command:
        for _ in range(KILLS):
            enough = len(noted(database, "begun")) + dice.randint(1, 100)
            database.wait_for(partial(_begun_more_than, database, enough), "work goes on")
            dice.choice(command.spawned()).kill()
        code, out, err = command.end(150)
    found = summary(out)
    assert code == exits.OK, err
    assert (found["replaced"], found["handed_back"], found["left"]) == (KILLS, 0, 0)
    assert left(database) == 0
    assert len(noted(database, "begun")) > JOBS  # some were killed in the middle of a batch
    assert effects(database) == Counter(dict.fromkeys(range(1, JOBS + 1), 1))


@dear
def test_a_lost_connection_frees_the_batch_and_ends_no_consumer(database: Backend, tmp_path: Path) -> None:
    fill(database, 60)
    options = (f"{HANDLERS}:write_effects_and_wait", *HELD, "--consumers", "2", "--batch-size", "10", "--drain")
    with started(database, tmp_path, *options, "--json") as command:
        command.wait_until_begun()
        database.engine.dispose()
        database._database.end_sessions()
        command.gate.touch()
        code, out, err = command.end(120)
    found = summary(out)
    assert code == exits.OK, err
    assert err.count("jobs: the batch was rolled back as a whole (connection lost") == 2
    assert found["total"]["transients"].get("connection lost", 0) >= 2, (found, err)
    assert (found["replaced"], found["done"]) == (0, 60)
    assert adds_up(found)
    assert effects(database) == Counter(dict.fromkeys(range(1, 61), 1))


@dear
def test_the_second_signal_undoes_what_was_written(anywhere: Backend, tmp_path: Path) -> None:
    fill(anywhere, 30)
    options = (f"{HANDLERS}:write_effects_and_wait", *HELD, "--consumers", "1", "--batch-size", "10", "--json")
    with started(anywhere, tmp_path, *options) as command:
        anywhere.wait_for(lambda: len(noted(anywhere, "begun")) == 10, "the consumer has begun")
        command.process.terminate()
        command.wait_until_it_says("stopping")
        command.process.terminate()
        code, out, _ = command.end()
    assert code == exits.INTERRUPTED
    assert summary(out)["total"]["released"] == 10
    assert (left(anywhere), effects(anywhere)) == (30, Counter())


@dear
def test_the_clock_of_a_run_begins_although_nobody_registers(anywhere: Backend, tmp_path: Path) -> None:
    fill(anywhere, 10)
    options = (f"{HANDLERS}:write_effect", *HELD, "--consumers", "2", "--duration", "1", "--json")
    with started(anywhere, tmp_path, *options) as command:
        code, out, _ = command.end()
    assert code == exits.OK
    assert summary(out)["done"] == 10
    assert claimjobs("status", *HELD[:-2], "--url", anywhere.url).out.startswith("tasks: 0 unclaimed\n")


@dear
def test_a_handler_that_wants_a_connection_is_told_at_the_start_where_there_is_none(anywhere: Backend) -> None:
    anywhere.make()
    ended = claimjobs("start-processing", f"{HANDLERS}:write_effect", "--drain", "--url", anywhere.url)
    assert ended.code == exits.INPUT
    assert "and no transaction holds its jobs: give `--hold transaction`" in ended.err
