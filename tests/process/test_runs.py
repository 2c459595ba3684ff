"""Runs that end of themselves: what came in is what went out."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests.backends import Backend
from tests.process.command import HANDLERS, adds_up, noted, rows, started, statuses, summary
from tests.process.dear import dear

pytestmark = pytest.mark.one_server("the processes are the same on each")


def test_the_demonstration_drains_and_adds_up(database: Backend, tmp_path: Path) -> None:
    database.queue().enqueue(rows(50))
    options = ("--jobs", "1203", "--generators", "2", "--consumers", "3", "--drain", "--json")
    with started(database, tmp_path, *options) as command:
        code, out, _ = command.end()
    found = summary(out)
    assert code == 0
    assert (found["before"], found["generated"], found["done"], found["left"]) == (50, 1203, 1253, 0)
    assert adds_up(found)
    assert statuses(database) == []


def test_a_batch_handler_has_every_job_once(database: Backend, tmp_path: Path) -> None:
    database.queue().enqueue(rows(530))
    options = (f"{HANDLERS}:note_batch", "--consumers", "4", "--batch-size", "50", "--drain", "--json")
    with started(database, tmp_path, *options) as command:
        code, out, _ = command.end()
    assert code == 0
    assert adds_up(summary(out))
    assert sorted(noted(database, "done")) == sorted(set(noted(database, "done")))
    assert len(noted(database, "done")) == 530


def test_a_job_handler_fails_only_the_bad_job(database: Backend, tmp_path: Path) -> None:
    queue = database.queue()
    queue.enqueue([*rows(20), *rows(1, d="bad")])
    database.insert("jobs", [*rows(1, d="bad", attempts=24), *rows(20)])
    options = (f"{HANDLERS}:note_job", "--consumers", "2", "--drain", "--json")
    with started(database, tmp_path, *options) as command:
        _, out, err = command.end()
    found = summary(out)
    assert (found["done"], found["failed"], found["left"]) == (40, 1, 1)
    assert adds_up(found)
    retried, dead = database.rows()
    again = found["total"]["retried"]  # one, or more where the drain takes longer than a wait
    assert (retried["status"], retried["last_error"]) == ("unclaimed", "ValueError: bad payload")
    assert retried["attempts"] == again >= 1
    assert (dead["status"], dead["attempts"]) == ("dead", 25)
    assert "failed: ValueError: bad payload" in err


@pytest.mark.parametrize("verbose", [False, True])
@dear
def test_other_libraries_log_their_warnings_alone(anywhere: Backend, tmp_path: Path, verbose: bool) -> None:
    anywhere.queue().enqueue(rows(2))
    with started(anywhere, tmp_path, f"{HANDLERS}:tell", "--consumers", "1", "--drain", verbose=verbose) as command:
        _, _, err = command.end()
    assert err.count("sends ") == 2
    assert err.count("slow") == 2
    assert ("HTTP 200" in err) == verbose


@pytest.mark.parametrize("hold", ["lease", "transaction"])
@dear
def test_each_failed_job_is_logged_once(anywhere: Backend, tmp_path: Path, hold: str) -> None:
    anywhere.queue().enqueue(rows(12))
    options = (f"{HANDLERS}:fail_in_sql", "--consumers", "1", "--batch-size", "6", "--hold", hold, "--drain")
    with started(anywhere, tmp_path, *options) as command:
        code, _, err = command.end()
    assert code == 0
    counted = sum(map(int, re.findall(r"WARNING: (\d+) more failures?, to run again, by the same error", err)))
    assert err.count("failed: ProgrammingError: column") + counted == 12
    assert "Traceback" not in err
    assert 3 < err.count("WARNING: ") < 12


@pytest.mark.parametrize("hold", ["lease", "transaction"])
@dear
def test_the_log_as_json_has_the_fields_and_the_tracebacks_of_each_failed_job(
    database: Backend, tmp_path: Path, hold: str
) -> None:
    database.make()
    database.insert("jobs", [*rows(2, d="bad", attempts=24), *rows(1, d="bad"), *rows(3)])
    options = (f"{HANDLERS}:note_job", "--consumers", "1", "--hold", hold, "--drain", "--log-format", "json")
    with started(database, tmp_path, *options) as command:
        code, _, err = command.end()
    assert code == 0
    lines = [json.loads(line) for line in err.splitlines()]
    assert {line["event"] for line in lines} >= {"run_started", "progress", "run_phase"}
    [retry] = [line for line in lines if line["event"] == "job_retry"]
    dead = [line for line in lines if line["event"] == "job_dead"]
    assert [
        (line["level"], line["logger"], line["queue"], line["attempts"], line["error"]) for line in (retry, *dead)
    ] == [
        ("WARNING", "claimjobs.settle", "jobs", 1, "ValueError: bad payload"),
        ("ERROR", "claimjobs.settle", "jobs", 25, "ValueError: bad payload"),
        ("ERROR", "claimjobs.settle", "jobs", 25, "ValueError: bad payload"),
    ]
    assert retry["key"] not in {line["key"] for line in dead}
    assert "traceback" not in retry
    assert all("in note_job\n" in line["traceback"] for line in dead)
    assert all(line["pid"] != command.process.pid for line in dead)


@dear
def test_verbose_tells_every_failure_and_where_it_was_raised(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue(rows(3, d="bad"))
    options = (f"{HANDLERS}:note_job", "--consumers", "1", "--drain")
    with started(anywhere, tmp_path, *options, verbose=True) as command:
        code, _, err = command.end()
    assert code == 0
    assert err.count("failed: ValueError: bad payload; it runs again in ") == 3
    assert err.count("in note_job") == 3


@dear
def test_only_jobs_of_the_predicate_are_taken(database: Backend, tmp_path: Path) -> None:
    database.queue().enqueue([*rows(5, d="100%"), *rows(5, d="b")])
    options = (
        f"{HANDLERS}:note_batch",
        "--where",
        "d like '%\\%' or d = 'x:y'",
        "--consumers",
        "1",
        "--drain",
        "--json",
    )
    with started(database, tmp_path, *options) as command:
        assert summary(command.end()[1])["done"] == 5
    assert {row["d"] for row in database.rows()} == {"b"}


@dear
def test_duration_ends_a_run_and_nothing_is_in_hand(anywhere: Backend, tmp_path: Path) -> None:
    """And a rate bounds what comes in, however long it takes until all are there and the duration begins."""
    options = ("--duration", "2", "--consumers", "2", "--generators", "1", "--rate", "100", "--json")
    began = time.monotonic()
    with started(anywhere, tmp_path, *options) as command:
        code, out, _ = command.end()
    found = summary(out)
    assert code == 0
    assert adds_up(found)
    assert 0 < found["generated"] <= 100 * (time.monotonic() - began)
    assert "claimed" not in statuses(anywhere)


@dear
def test_progress_is_one_json_object_a_line(anywhere: Backend, tmp_path: Path) -> None:
    with started(anywhere, tmp_path, "--jobs", "100", "--consumers", "2", "--drain", "--json") as command:
        _, out, err = command.end()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["event"] for line in lines[:-1]] == ["progress"] * (len(lines) - 1)
    assert lines[0]["consumers"][0].keys() >= {"number", "pid", "batch", "jobs", "rate"}
    assert "queue length" not in err


@dear
def test_without_a_terminal_progress_is_lines_and_the_summary_is_data(anywhere: Backend, tmp_path: Path) -> None:
    with started(anywhere, tmp_path, "--jobs", "100", "--consumers", "2", "--drain") as command:
        _, out, err = command.end()
    assert out.startswith("100 generated + 0 there before = 100 done + 0 dead + 0 left\n")
    assert "queue length" in err
    assert "\x1b" not in out + err


@dear
def test_a_handler_that_breaks_down_is_told_of_and_loses_nothing(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue(rows(30))
    with started(anywhere, tmp_path, f"{HANDLERS}:break_down", "--consumers", "1", "--json") as command:
        anywhere.wait_for(lambda: len(noted(anywhere, "done")) == 30, "all jobs are done")
        command.send(signal.SIGTERM)
        code, out, err = command.end()
    assert code == 0
    assert summary(out)["done"] == 30
    assert summary(out)["total"]["suspects"] == 30
    assert "30 of 30 jobs undecided" in err
    assert err.count("Traceback (most recent call last)") == 1
    assert len(noted(anywhere, "begun")) == 60


@dear
def test_a_handler_that_decides_nothing_is_told_of(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue(rows(3))
    options = (f"{HANDLERS}:forget", "--consumers", "1", "--duration", "3")
    with started(anywhere, tmp_path, *options) as command:
        _, _, err = command.end()
    assert "call `batch.done()`" in err
    assert statuses(anywhere) == ["unclaimed"] * 3


# --- retries ---------------------------------------------------------------------------------------------------


@dear
def test_a_drain_says_what_waits_for_its_retry(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue([*rows(3, d="bad"), *rows(5)])
    words = (f"{HANDLERS}:postpone_bad", "--consumers", "1", "--drain")
    with started(anywhere, tmp_path, *words) as command:
        code, out, err = command.end()
    assert code == 0
    assert out.startswith("5 done, 0 dead, 3 failed and tried again; 3 left in the queue\n")
    waits = r"^3 wait for their retry, the next at ([\d-]{10} )?[\d:]{8}; --drain-retries waits for them$"
    assert re.search(waits, out, re.M), out  # with the date, if that is tomorrow
    assert re.search(r"^ended .*, dead 0, retried 3, queue length 3", err, re.M), err


def test_drain_retries_waits_until_they_are_done_or_dead(database: Backend, tmp_path: Path) -> None:
    queue = database.queue()
    queue.enqueue([*rows(4), *rows(1, d="later", run_at=queue.now() + timedelta(days=1))])
    words = (f"{HANDLERS}:fail_twice", "--consumers", "2", "--batch-size", "2", "--drain-retries", "--json")
    with started(database, tmp_path, *words) as command:
        code, out, _ = command.end(90)
    found = summary(out)
    assert (code, found["done"], found["left"], found["retries"], found["next_retry"]) == (0, 4, 1, 0, None)
    assert found["total"]["retried"] == 8
    assert adds_up(found)


@dear
def test_the_first_line_says_what_is_being_started(anywhere: Backend, tmp_path: Path) -> None:
    with started(anywhere, tmp_path, "--consumers", "3", "--generators", "2", "--jobs", "10", "--drain") as command:
        _, _, err = command.end()
    assert re.search(r"^starting 0 s: 0 of 3 consumers ready, 2 generators, ", err, re.M), err


# --- idle ----------------------------------------------------------------------------------------------------


def test_a_run_without_work_ends_when_it_was_idle_for_so_long(database: Backend, tmp_path: Path) -> None:
    database.queue().enqueue(rows(30))
    options = (f"{HANDLERS}:note_batch", "--consumers", "2", "--batch-size", "5", "--idle", "1", "--json")
    with started(database, tmp_path, *options) as command:
        code, out, err = command.end()
        command.wait_until_all_is_gone()
    found = summary(out)
    assert (code, found["done"], found["left"]) == (0, 30, 0)
    assert found["seconds"] >= 1
    assert "no consumer had a job for 1 s" in err
    assert "stopping" in err


@dear
def test_a_batch_in_hand_is_work_however_long_it_takes(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue(rows(10))
    options = (f"{HANDLERS}:wait_for_file", "--consumers", "2", "--idle", "0.5")
    with started(anywhere, tmp_path, *options) as command:
        anywhere.wait_for(lambda: len(noted(anywhere, "begun")) == 10, "the batch is in hand")
        with pytest.raises(subprocess.TimeoutExpired):
            command.process.wait(2)
        command.gate.touch()
        code, _, err = command.end()
    assert code == 0
    assert "no consumer had a job for 0.5 s" in err
    assert len(noted(anywhere, "done")) == 10


# --- paused --------------------------------------------------------------------------------------------------


def test_a_paused_run_waits_with_drain_and_goes_on_when_it_is_resumed(database: Backend, tmp_path: Path) -> None:
    """The pause outlasts the start of consumers; the screen shows it."""
    queue = database.queue()
    queue.enqueue(rows(20))
    queue.pause("deploy")
    with started(database, tmp_path, f"{HANDLERS}:note_batch", "--consumers", "2", "--drain") as command:
        command.wait_until_it_says("paused ")
        assert noted(database, "done") == []
        queue.resume()
        code, _, _ = command.end()
    assert code == 0
    assert len(noted(database, "done")) == 20


@dear
def test_a_paused_run_ends_by_idle(anywhere: Backend, tmp_path: Path) -> None:
    queue = anywhere.queue()
    queue.enqueue(rows(3))
    queue.pause()
    with started(anywhere, tmp_path, f"{HANDLERS}:note_batch", "--consumers", "1", "--idle", "0.5") as command:
        code, _, err = command.end()
    assert (code, statuses(anywhere)) == (0, ["unclaimed"] * 3), err
