"""Handlers that do not work as one thinks: none of them makes a job done that was not, or ends a run that goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from claimjobs.cli import exits
from claimjobs.workers.process_slot import STRIKES
from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.process.command import HANDLERS, adds_up, noted, rows, started, statuses, summary
from tests.process.dear import dear

pytestmark = pytest.mark.one_server("the processes are the same on each")

ONE = ("--consumers", "1", "--json")


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ("stream", "is a generator function, and calling it runs nothing"),
        ("two", "and is called with (job): missing a required argument: 'other'"),
        ("only_named", "and is called with (job): too many positional arguments"),
    ],
)
@dear
def test_a_handler_that_could_handle_nothing_is_refused_at_the_start(
    database: Backend, handler: str, words: str
) -> None:
    database.queue().enqueue(rows(3))
    ended = claimjobs("start-processing", f"{HANDLERS}:{handler}", "--drain", "--url", database.url)
    assert (ended.code, ended.out) == (exits.INPUT, "")
    assert words in ended.err
    assert ended.err.count("\n") == 1
    assert statuses(database) == ["unclaimed"] * 3


@dear
def test_a_coroutine_that_a_handler_returns_is_a_failure_of_its_job(database: Backend, tmp_path: Path) -> None:
    database.queue().enqueue([*rows(4), *rows(1, d="bad")])
    database.insert("jobs", rows(1, d="bad", attempts=24))
    with started(database, tmp_path, f"{HANDLERS}:give_a_coroutine", *ONE, "--drain") as command:
        code, out, err = command.end()
    found = summary(out)
    assert (code, found["done"], found["failed"], found["left"]) == (exits.OK, 4, 1, 1)
    assert adds_up(found)
    assert noted(database, "begun") == []
    assert {row["last_error"].partition(": ")[0] for row in database.rows()} == {"BadHandler"}
    assert "returned a coroutine, which nothing runs: let it do the work before it returns" in err
    assert "never awaited" not in err


@dear
def test_a_generator_that_a_handler_of_batches_returns_is_a_failure(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue(rows(4))
    with started(anywhere, tmp_path, f"{HANDLERS}:give_a_generator", *ONE, "--batch-size", "4") as command:
        command.wait_until_it_says("the handler failed with 3 of 4 jobs undecided: BadHandler: ")
        # Each further batch has one job done, and the others are halved.
        anywhere.wait_for(lambda: anywhere.rows() == [], "the others are suspects, and done one by one")
        command.process.terminate()
        code, out, _ = command.end()
    assert (code, summary(out)["done"], summary(out)["total"]["suspects"] >= 3) == (exits.OK, 4, True)


@pytest.mark.parametrize("hold", ["lease", "transaction"])
def test_sys_exit_in_a_handler_is_a_failure_of_its_job(database: Backend, tmp_path: Path, hold: str) -> None:
    database.queue().enqueue([*rows(9), *rows(1, d="bad"), *rows(9)])
    database.insert("jobs", rows(1, d="bad", attempts=24))
    options = (f"{HANDLERS}:exit_for_bad", *ONE, "--hold", hold, "--drain")
    with started(database, tmp_path, *options) as command:
        code, out, err = command.end()
    found = summary(out)
    assert (code, found["done"], found["failed"], found["left"], found["replaced"]) == (exits.OK, 18, 1, 1, 0)
    assert adds_up(found)
    again = found["total"]["retried"]  # one, or more where the drain takes longer than a wait
    assert sorted((row["status"], row["attempts"]) for row in database.rows()) == [("dead", 25), ("unclaimed", again)]
    assert again
    assert "failed: SystemExit: 0" in err


@dear
def test_sys_exit_in_a_handler_of_batches_ends_no_consumer(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue(rows(7))
    anywhere.insert("jobs", rows(1, d="bad", attempts=24))
    quick = ("--retry-cap", "1")  # the suspects are claimed again after this time
    with started(anywhere, tmp_path, f"{HANDLERS}:exit_with_the_batch", *ONE, *quick) as command:
        anywhere.wait_for(lambda: statuses(anywhere) == ["dead"], "the bad one is alone, and dead")
        command.process.terminate()
        code, out, err = command.end()
    found = summary(out)
    assert (code, found["done"], found["failed"], found["replaced"]) == (exits.OK, 7, 1, 0)
    assert "SystemExit: cannot go on" in err


@pytest.mark.parametrize("code", [0, 3])
@dear
def test_consumers_that_end_themselves_again_and_again_end_the_run(
    database: Backend, tmp_path: Path, code: int
) -> None:
    """Also where they have fewer jobs in hand each time: at last each has another one alone."""
    database.queue().enqueue(rows(4))
    (tmp_path / "gate").write_text(str(code))
    options = (f"{HANDLERS}:exit_at_once", "--consumers", "1", "--batch-size", "2", "--drain", "--json")
    with started(database, tmp_path, *options) as command:
        ended, out, err = command.end()
        command.wait_until_all_is_gone()
    found = summary(out)
    assert (ended, found["done"], found["left"]) == (exits.GAVE_UP, 0, 4), err
    words = f"{STRIKES} consumers in a row ended themselves with exit code {code}: does the handler exit its process?"
    assert found["gave_up"] == words
    assert statuses(database) == ["unclaimed"] * 4


@dear
def test_a_job_that_ends_its_consumer_is_found_out_and_the_run_goes_on(database: Backend, tmp_path: Path) -> None:
    """Consumers end with 8, 4 and 2 jobs in hand, and with this one alone: no batch is done in between."""
    database.make()
    database.insert("jobs", [*rows(1, d="bad", attempts=24), *rows(7, attempts=0)])
    options = (f"{HANDLERS}:exit_where_one_is_bad", "--consumers", "1", "--batch-size", "8", "--drain", "--json")
    with started(database, tmp_path, *options) as command:
        ended, out, err = command.end()
        command.wait_until_all_is_gone()
    found = summary(out)
    assert (ended, found["done"], found["left"], found["replaced"]) == (exits.OK, 7, 0, STRIKES + 1), err
    assert [(row["d"], row["status"]) for row in database.rows()] == [("bad", "dead")]


@dear
@pytest.mark.parametrize("at_once", [(), ("--concurrency", "4")], ids=["batches", "at once"])
def test_a_job_that_ends_its_consumers_again_and_again_is_dead_in_the_end_and_the_others_are_done(
    database: Backend, tmp_path: Path, at_once: tuple[str, ...]
) -> None:
    """It is the first one in the order, and ends more processes in a row than other errors may."""
    database.make()
    database.insert("jobs", [*rows(1, d="bad"), *rows(7)])
    handler = "exit_for_a_bad_job" if at_once else "exit_where_one_is_bad"
    options = ("--consumers", "1", "--batch-size", "8", "--retry-attempts", "5", "--drain-retries", "--json", *at_once)
    options += ("--retry-base", "0.2", "--idle", "60")  # with --idle each batch is reported at once
    with started(database, tmp_path, f"{HANDLERS}:{handler}", *options) as command:
        ended, out, err = command.end()
        command.wait_until_all_is_gone()
    found = summary(out)
    assert (ended, found["done"], found["replaced"] > STRIKES, found["left"]) == (exits.OK, 7, True, 0), err
    assert [(row["d"], row["status"], row["attempts"]) for row in database.rows()] == [("bad", "dead", 5)]


def test_a_thread_that_a_handler_leaves_running_does_not_keep_the_run_open(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue(rows(4))
    with started(anywhere, tmp_path, f"{HANDLERS}:leave_a_thread", *ONE, "--drain") as command:
        code, out, err = command.end(60)
        command.wait_until_all_is_gone()
    found = summary(out)
    assert (code, found["done"], found["replaced"]) == (exits.OK, 4, 0)
    assert "a thread that the handler started was still running" in err
