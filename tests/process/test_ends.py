"""Whatever hangs or goes away, a run can be ended, and nothing is left in hand."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from claimjobs.cli import exits
from tests.backends import Backend
from tests.process.command import HANDLERS, adds_up, noted, rows, started, statuses, summary
from tests.process.dear import dear

pytestmark = pytest.mark.one_server("the processes are the same on each")

HANGING = ("tests.process.hanging:note", "--consumers", "2")


# --- the output --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("json", [True, False], ids=["stdout", "stderr"])
def test_a_reader_who_goes_away_is_a_stop(database: Backend, tmp_path: Path, *, json: bool) -> None:
    database.queue().enqueue(rows(60))
    options = (f"{HANDLERS}:wait_for_file", "--consumers", "2", "--batch-size", "10")
    with started(database, tmp_path, *options, *(["--json"] if json else [])) as command:
        command.wait_until_begun()
        read = command.process.stdout if json else command.process.stderr
        assert read is not None
        read.readline()
        read.close()
        if not json:
            command.process.stderr = None
        command.gate.touch()
        code = command.process.wait(120)
        command.wait_until_all_is_gone()
    assert code == (exits.OK if json else exits.FAILURE), "who reads the log did not ask for the end"
    assert len(noted(database, "done")) == len(noted(database, "begun"))
    assert set(statuses(database)) <= {"unclaimed"}


@dear
def test_head_takes_one_line(anywhere: Backend) -> None:
    """As in a shell, whose pipe is closed as soon as `head` has what it wants."""
    anywhere.make()
    words = f"{sys.executable} -m claimjobs start-processing --url '{anywhere.url}' --consumers 2 --json"
    ended = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {words} | head -1"], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == exits.OK, ended.stderr
    assert ended.stdout.count("\n") == 1
    for word in ("Traceback", "BrokenPipeError: ", "by signal 9"):
        assert word not in ended.stderr
    assert "claimed" not in statuses(anywhere)


# --- hangs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_a_command_whose_handler_hangs_while_it_is_imported(
    anywhere: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("HANGS", "in the command")
    with started(anywhere, tmp_path, *HANGING) as command:
        anywhere.wait_for(command.gate.exists, "the module is imported")
        command.send(number)
        code, out, err = command.end(30)
    assert (code, out) == (exits.INTERRUPTED, "")
    assert err == "claimjobs: interrupted\n"


@dear
def test_two_signals_end_a_command_whose_handler_hangs_and_catches_all(
    anywhere: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANGS", "hard, in the command")
    with started(anywhere, tmp_path, *HANGING) as command:
        anywhere.wait_for(command.gate.exists, "the module is imported")
        command.send(signal.SIGTERM)
        anywhere.wait_for(lambda: _dies_of(command.process, signal.SIGTERM), "the second is heard")
    assert command.process.returncode == -signal.SIGTERM


def _dies_of(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    process.send_signal(number)
    return process.poll() is not None


@dear
def test_one_signal_ends_consumers_whose_handler_hangs_while_it_is_imported(
    anywhere: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anywhere.queue().enqueue(rows(3))
    monkeypatch.setenv("HANGS", "in a consumer")
    with started(anywhere, tmp_path, *HANGING, "--json") as command:
        anywhere.wait_for(command.gate.exists, "the module is imported")
        command.send(signal.SIGINT)
        code, out, _ = command.end(30)
        command.wait_until_all_is_gone()
    assert (code, summary(out)["left"]) == (exits.OK, 3)


@dear
def test_two_signals_end_consumers_whose_handler_hangs_and_catches_all(
    anywhere: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anywhere.make()
    monkeypatch.setenv("HANGS", "hard, in a consumer")
    with started(anywhere, tmp_path, *HANGING) as command:
        anywhere.wait_for(command.gate.exists, "the module is imported")
        command.send(signal.SIGINT)
        command.wait_until_it_says("stopping")
        command.send(signal.SIGINT)
        code, _, _ = command.end(40)
        command.wait_until_all_is_gone()
    assert code == exits.INTERRUPTED


def test_an_endless_handler_is_ended_after_the_duration_and_its_grace(database: Backend, tmp_path: Path) -> None:
    database.queue().enqueue(rows(10))
    options = (f"{HANDLERS}:end_never", "--consumers", "2", "--batch-size", "5", "--duration", "1", "--grace", "0.5")
    with started(database, tmp_path, *options, "--json") as command:
        code, out, err = command.end(60)
        command.wait_until_all_is_gone()
    found = summary(out)
    assert code == exits.GAVE_UP, err
    assert found["gave_up"] == "a batch was not finished 0.5 s after the duration, and was released"
    assert adds_up(found)
    assert [(row["status"], row["attempts"]) for row in database.rows()] == [("unclaimed", 0)] * 10
