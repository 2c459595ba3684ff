"""Processes that end, or stand still, though nobody told the run: they are replaced, or the exit code says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from claimjobs.cli import exits
from tests.backends import Backend
from tests.process.command import HANDLERS, ROOT, adds_up, noted, rows, started, statuses, summary
from tests.process.dear import dear

pytestmark = pytest.mark.one_server("the processes are the same on each")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=dear)])
def test_a_consumer_that_gets_a_signal_alone_finishes_or_releases_its_batch_and_is_replaced(
    anywhere: Backend, tmp_path: Path, number: int
) -> None:
    anywhere.queue().enqueue(rows(60))
    options = (f"{HANDLERS}:wait_for_file", "--consumers", "2", "--batch-size", "10", "--drain", "--json")
    with started(anywhere, tmp_path, *options) as command:
        command.wait_until_begun()
        for consumer in command.spawned():
            consumer.send_signal(number)
        command.gate.touch()
        code, out, err = command.end()
    found = summary(out)
    assert (code, found["done"], found["left"], found["replaced"]) == (exits.OK, 60, 0, 2)
    assert adds_up(found)
    assert err.count("because of a signal of its own; replaced in") == 2


def test_a_process_that_runs_no_thread_is_killed_and_its_job_is_dead_in_the_end(
    database: Backend, tmp_path: Path
) -> None:
    """Also the heartbeats end, so that nobody in the process can say that its handler hangs."""
    database.queue().enqueue([*rows(1, d="bad"), *rows(5)])
    options = ("--consumers", "2", "--batch-size", "2", "--lease", "2", "--max-batch-time", "0.5")
    handler = f"{HANDLERS}:hold_the_interpreter_for_bad"
    with started(
        database, tmp_path, handler, *options, "--retry-attempts", "2", "--drain-retries", "--json"
    ) as command:
        code, out, err = command.end(120)
    found = summary(out)
    assert (code, found["done"], found["left"]) == (exits.OK, 5, 0), err
    assert [(row["d"], row["status"], row["attempts"]) for row in database.rows()] == [("bad", "dead", 2)]
    assert "has not reported for" in err


@dear
def test_a_handler_may_fork_and_replace_sockets_and_loggers(anywhere: Backend, tmp_path: Path) -> None:
    """What it forks has none of our signal handlers: a SIGTERM ends a worker of its pool."""
    anywhere.queue().enqueue(rows(6))
    with started(anywhere, tmp_path, f"{HANDLERS}:fork_workers", "--consumers", "1", "--drain", "--json") as command:
        code, out, err = command.end(120)
    assert (code, summary(out)["done"]) == (exits.OK, 6), err
    anywhere.queue().enqueue([*rows(6), *rows(1, d="bad")])
    options = ("tests.process.replaces_sockets:note_job", "--consumers", "2", "--drain", "--json")
    with started(anywhere, tmp_path, *options, "--retry-attempts", "1") as command:
        code, out, err = command.end(120)
    found = summary(out)
    assert (code, found["done"], found["failed"], found["replaced"]) == (exits.OK, 6, 1, 0), err
    assert "is dead: it failed: ValueError: bad payload" in err, "our loggers are on"


@dear
@pytest.mark.parametrize(
    ("handler", "options"),
    [
        ("fork_one_that_exits", ()),
        ("fork_one_that_exits_for_a_batch", ()),
        ("fork_one_that_exits", ("--concurrency", "2")),
    ],
)
def test_a_process_that_a_handler_forked_does_no_further_job(
    anywhere: Backend, tmp_path: Path, handler: str, options: tuple[str, ...]
) -> None:
    anywhere.queue().enqueue(rows(6))
    words = (f"{HANDLERS}:{handler}", "--consumers", "1", "--drain", "--json", *options)
    with started(anywhere, tmp_path, *words) as command:
        code, out, err = command.end(120)
    assert (code, summary(out)["done"], "CrossedFork" in err) == (exits.OK, 6, False), err
    assert sorted(noted(anywhere, "done")) == [1, 2, 3, 4, 5, 6], err


@dear
def test_a_working_folder_that_was_deleted_is_named(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue(rows(1))
    gone = tmp_path / "gone"
    gone.mkdir()
    words = f"rmdir {gone}; exec {sys.executable} -m claimjobs start-processing --url '{anywhere.url}' json:loads"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        ["sh", "-c", words], cwd=gone, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (exits.FAILURE, "")
    assert "the working folder was deleted" in ended.stderr


def test_a_handler_that_no_consumer_can_import_ends_the_run(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue(rows(3))
    with started(anywhere, tmp_path, "tests.process.only_in_the_command:note_job", "--consumers", "2") as command:
        code, _, err = command.end(120)
    assert code == exits.GAVE_UP
    assert "importing 'tests.process.only_in_the_command' failed: RuntimeError: not here" in err
    assert statuses(anywhere) == ["unclaimed"] * 3
