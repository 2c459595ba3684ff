"""Stopped by a deadline: what is not finished is released in time, and no job is charged, whatever the handler does."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from claimjobs.cli import exits
from tests.backends import Backend
from tests.process.command import HANDLERS, Command, noted, rows, started, statuses, summary
from tests.process.dear import dear
from tests.process.test_program import THE_END, program, said

pytestmark = pytest.mark.one_server("the processes are the same on each")

UNREACTIVE = ["hold_on", "hold_the_interpreter"]


def begun(command: Command, count: int) -> None:
    command.backend.wait_for(lambda: len(noted(command.backend, "begun")) == count, "consumers have begun")


def charged(backend: Backend) -> list[tuple[str, int, int, str | None]]:
    """The jobs that are not as they were enqueued."""
    found = [(row["status"], row["attempts"], row["suspect"], row["last_error"]) for row in backend.rows()]
    return [state for state in found if state != ("unclaimed", 0, 0, None)]


@pytest.mark.parametrize(
    "handler",
    [
        "end_never",
        pytest.param(UNREACTIVE[0], marks=pytest.mark.pair("it cannot be cancelled: its jobs are released for it")),
        *UNREACTIVE[1:],
    ],
)
def test_a_job_alone_is_released_at_the_deadline_before_its_process_is_killed(
    database: Backend, tmp_path: Path, handler: str
) -> None:
    """Another consumer looks for dead owners all the time, and would charge the jobs of a process that was killed."""
    database.queue().enqueue(rows(3))
    other = database.queue()
    assert other.owner_id
    options = ("--consumers", "2", "--batch-size", "1", "--stop-timeout", "0.5", "--json")
    with started(database, tmp_path, f"{HANDLERS}:{handler}", *options) as command:
        begun(command, 2)
        command.send(signal.SIGTERM)
        code, out, err = command.end()
        command.wait_until_all_is_gone()
    assert code == exits.OK, err
    assert "what is not finished 0.5 s after the stop is released" in err
    assert len(statuses(database)) == 3
    assert charged(database) == []
    found = summary(out)
    assert found["handed_back" if handler in UNREACTIVE else "total"] == 2 or found["total"]["released"] == 2
    assert [owner.id for owner in other.stats().owners] == [other.owner_id]


@pytest.mark.parametrize("handler", UNREACTIVE)
@dear
def test_the_second_signal_charges_no_job_either(anywhere: Backend, tmp_path: Path, handler: str) -> None:
    anywhere.queue().enqueue(rows(2))
    options = (f"{HANDLERS}:{handler}", "--consumers", "1", "--batch-size", "1", "--json")
    with started(anywhere, tmp_path, *options) as command:
        begun(command, 1)
        command.send(signal.SIGTERM)
        command.wait_until_it_says("stopping")
        command.send(signal.SIGTERM)
        code, _, err = command.end()
    assert code == exits.INTERRUPTED, err
    assert len(statuses(anywhere)) == 2
    assert charged(anywhere) == []


def test_batches_that_end_in_time_are_finished(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue(rows(20))
    options = (f"{HANDLERS}:wait_for_file", "--consumers", "1", "--batch-size", "10", "--stop-timeout", "60", "--json")
    with started(anywhere, tmp_path, *options) as command:
        begun(command, 10)
        command.send(signal.SIGTERM)
        command.wait_until_it_says("stopping")
        command.gate.touch()
        code, out, err = command.end(30)
    assert (code, summary(out)["total"]["released"]) == (exits.OK, 0), err
    assert summary(out)["done"] == len(noted(anywhere, "done")) >= 10


@pytest.mark.parametrize("handler", ["end_never", *UNREACTIVE])
@dear
def test_an_open_transaction_is_rolled_back_at_the_deadline(database: Backend, tmp_path: Path, handler: str) -> None:
    database.queue().enqueue(rows(3))
    options = ("--hold", "transaction", "--consumers", "1", "--batch-size", "1", "--stop-timeout", "0.5")
    with started(database, tmp_path, f"{HANDLERS}:{handler}", *options) as command:
        begun(command, 1)
        command.send(signal.SIGTERM)
        code, _, err = command.end()
    assert code == exits.OK, err
    database.wait_for(lambda: database.locked() == 0, "the server has rolled back")
    assert (len(statuses(database)), charged(database)) == (3, [])


def test_an_orphan_releases_its_job_before_it_ends_itself(database: Backend, tmp_path: Path) -> None:
    database.queue().enqueue(rows(1))
    other = database.queue()
    assert other.owner_id
    options = (f"{HANDLERS}:hold_on_as_an_orphan", "--consumers", "1", "--batch-size", "1")
    with started(database, tmp_path, *options) as command:
        begun(command, 1)
        command.process.kill()
        database.wait_for(lambda: statuses(database) == ["unclaimed"], "the job is released")
        command.wait_until_all_is_gone()
    assert charged(database) == []
    database.wait_for(lambda: len(other.stats().owners) == 1, "its row is deleted")


# --- a program of one's own ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stubborn", [False, True], ids=["reacts", "catches everything"])
@pytest.mark.one_server("what is stopped is a process")
def test_a_program_is_stopped_at_its_deadline(
    database: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stubborn: bool
) -> None:
    """A handler that catches everything ends when it likes: its jobs are lost to it."""
    database.queue().enqueue(rows(30))
    monkeypatch.setenv("TIMEOUT", "0.5")
    if stubborn:
        monkeypatch.setenv("STUBBORN", "1")
    gate = tmp_path / "gate"
    with program(database, gate) as process:
        said(process, "begun")
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        said(process, "told")
        database.wait_for(lambda: statuses(database) == ["unclaimed"] * 30, "the jobs are released")
        assert time.monotonic() - began >= 0.5
        gate.touch()
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, ("lost 10\n" if stubborn else "") + THE_END)
    assert ("10 jobs were released at the deadline of `stop`\n" in err) == stubborn, err
    assert charged(database) == []
