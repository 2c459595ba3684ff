"""`start-processing --concurrency`: processes that handle many jobs at once, how they end, and how they die."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from claimjobs.cli import exits
from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.process.command import Command, adds_up, noted, rows, started, statuses, summary
from tests.process.dear import dear
from tests.process.pool_work import HANGS, KILLS, WAITS

pytestmark = pytest.mark.one_server("the processes are the same on each")

HANDLERS = "tests.process.pool_work"
FOUR = ("--consumers", "1", "--concurrency", "4", "--batch-size", "6", "--json")
EACH = pytest.mark.parametrize(
    "handler", ["handle", pytest.param("ahandle", marks=pytest.mark.pair("it runs in an event loop"))]
)


def begun(backend: Backend, command: Command, count: int) -> None:
    """Wait until so many handlers have begun."""
    backend.wait_for(lambda: len(noted(backend, "begun")) == count, f"{count} have begun")
    assert command.process.poll() is None


@EACH
def test_a_signal_lets_what_was_begun_end_and_releases_the_rest(
    database: Backend, tmp_path: Path, handler: str
) -> None:
    database.queue().enqueue(rows(30, d=WAITS))
    with started(database, tmp_path, f"{HANDLERS}:{handler}", *FOUR) as command:
        begun(database, command, 4)
        command.send(signal.SIGTERM)
        database.wait_for(lambda: Counter(statuses(database)) == {"claimed": 4, "unclaimed": 26}, "the rest is free")
        command.gate.touch()
        code, out, _ = command.end()
        command.wait_until_all_is_gone()
    found = summary(out)
    assert (code, found["done"], found["left"], found["total"]["released"]) == (exits.OK, 4, 26, 8)
    assert adds_up(found)
    assert Counter(statuses(database)) == {"unclaimed": 26}


@EACH
@dear
def test_a_second_signal_releases_all(database: Backend, tmp_path: Path, handler: str) -> None:
    database.queue().enqueue(rows(30, d=WAITS))
    with started(database, tmp_path, f"{HANDLERS}:{handler}", *FOUR) as command:
        begun(database, command, 4)
        command.send(signal.SIGTERM)
        command.wait_until_it_says("stopping")
        command.send(signal.SIGTERM)
        code, out, _ = command.end()
        command.wait_until_all_is_gone()
    assert (code, summary(out)["done"]) == (exits.INTERRUPTED, 0)
    assert Counter(statuses(database)) == {"unclaimed": 30}
    assert {row["attempts"] for row in database.rows()} == {0}


@EACH
def test_a_job_that_kills_its_process_is_found_among_those_in_hand(
    database: Backend, tmp_path: Path, handler: str
) -> None:
    database.queue().enqueue([*rows(9), *rows(1, d=KILLS), *rows(20)])
    options = (*FOUR, "--retry-attempts", "1", "--drain-retries")
    with started(database, tmp_path, f"{HANDLERS}:{handler}", *options) as command:
        code, out, _ = command.end(120)
    assert (code, summary(out)["left"]) == (exits.OK, 0)
    assert [(row["d"], row["status"]) for row in database.rows()] == [(KILLS, "dead")]
    assert set(noted(database, "done")) == {*range(1, 31)} - {10}


@EACH
def test_a_job_that_hangs_is_given_to_others_and_its_process_is_replaced(
    database: Backend, tmp_path: Path, handler: str
) -> None:
    database.queue().enqueue([*rows(2), *rows(1, d=HANGS), *rows(20)])
    options = (*FOUR, "--max-batch-time", "1", "--drain-retries")
    with started(database, tmp_path, f"{HANDLERS}:{handler}", *options) as command:
        code, out, _ = command.end(120)
    found = summary(out)
    assert (code, found["failed"], found["replaced"]) == (exits.OK, 0, 1)
    assert database.rows() == []
    assert Counter(noted(database, "done")) == Counter(range(1, 24)), "each once: the others were not given up"
    assert Counter(noted(database, "begun"))[3] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((f"{HANDLERS}:take_batch", "--concurrency", "2"), "is called for many jobs at once, and takes a batch"),
        ((f"{HANDLERS}:handle", "--concurrency", "2", "--hold", "transaction"), "handles one job after the other"),
        ((f"{HANDLERS}:ahandle", "--hold", "transaction"), "is async, and `--hold transaction` handles one job after"),
        (("--concurrency", "2", "--duration", "1"), "--concurrency has no effect without MODULE:FUNCTION"),
        ((f"{HANDLERS}:handle", "--prefetch", "2"), "--concurrency N"),
    ],
)
@dear
def test_what_cannot_be_done_at_once_is_refused_at_the_start(
    database: Backend, options: tuple[str, ...], words: str
) -> None:
    database.queue()
    ended = claimjobs("start-processing", *options, "--drain", "--url", database.url)
    assert ended.out == ""
    assert ended.code in (exits.INPUT, exits.USAGE)
    assert words in ended.err
