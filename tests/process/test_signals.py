"""Being told to stop, and being killed: nothing is lost, nothing is left behind."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from claimjobs.workers.supervisor_pipe import GRACE_SECONDS, LAST_GRACE_SECONDS
from tests.backends import Backend
from tests.process.command import HANDLERS, Command, noted, rows, started, statuses, summary
from tests.process.dear import dear

pytestmark = pytest.mark.one_server("the processes are the same on each")

GATED = (f"{HANDLERS}:wait_for_file", "--consumers", "2", "--batch-size", "10", "--json")


def _all_say(command: Command, processes: int, words: str) -> None:
    for _ in range(processes):
        command.wait_until_it_says(words)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("to_all", [False, True], ids=["to the command", "to the whole group"])
def test_the_first_signal_lets_the_batch_in_hand_finish(
    anywhere: Backend, tmp_path: Path, number: signal.Signals, to_all: bool
) -> None:
    anywhere.queue().enqueue(rows(100))
    with started(anywhere, tmp_path, *GATED, verbose=True) as command:
        held = command.wait_until_begun()
        (command.send_to_group if to_all else command.send)(number)
        _all_say(command, 2, "told to stop")
        command.gate.touch()
        code, out, err = command.end()
        command.wait_until_all_is_gone()
    assert code == 0
    assert "while it was stopping" not in err
    assert len(noted(anywhere, "done")) == summary(out)["done"] == held
    assert Counter(statuses(anywhere)) == {"unclaimed": 100 - held}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@dear
def test_a_process_that_is_just_starting_does_not_die_of_a_signal_to_the_group(
    anywhere: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Ctrl-C in the first second: the children have not come to say what it is to mean."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "slow"))
    with started(anywhere, tmp_path, f"{HANDLERS}:note_batch", "--consumers", "2") as command:
        anywhere.wait_for(lambda: len(command.spawned()) == 2, "two consumers are starting")
        command.send_to_group(number)
        command.wait_until_it_says("stopping")
        command.gate.touch()
        code, out, err = command.end()
    assert (code, out.splitlines()[0]) == (0, "0 done, 0 dead, 0 failed and tried again; 0 left in the queue")
    for words in ("ended by", "Traceback", "KeyboardInterrupt"):
        assert words not in err, err


@dear
def test_two_signals_end_a_process_that_is_just_starting_without_an_error(
    anywhere: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "slow"))
    monkeypatch.setenv("STARTS_LATE", "yes")
    with started(anywhere, tmp_path, f"{HANDLERS}:note_batch", "--consumers", "1", "--generators", "0") as command:
        anywhere.wait_for(lambda: len(command.spawned()) == 1, "a consumer is starting")
        for words in ("stopping", "cancelling"):
            command.send(signal.SIGINT)
            command.wait_until_it_says(words)
        command.gate.touch()
        code, _, err = command.end()
    assert code == 130
    for words in ("exit code", "Traceback"):
        assert words not in err, err


def test_the_second_signal_gives_the_batch_back(database: Backend, tmp_path: Path) -> None:
    database.queue().enqueue(rows(100))
    with started(database, tmp_path, *GATED) as command:
        held = command.wait_until_begun()
        command.send(signal.SIGINT)
        command.wait_until_it_says("stopping")
        command.send(signal.SIGINT)
        code, out, err = command.end()
        command.wait_until_all_is_gone()
    assert code == 130
    assert summary(out)["total"]["released"] == held
    assert "is released" in err
    assert Counter(statuses(database)) == {"unclaimed": 100}
    assert noted(database, "done") == []


def test_the_second_signal_does_not_interrupt_a_consumer_that_is_closing(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue(rows(10))
    with started(anywhere, tmp_path, f"{HANDLERS}:close_late", "--consumers", "1", "--json") as command:
        anywhere.wait_for(lambda: noted(anywhere, "done"), "the batch is done")
        command.send(signal.SIGINT)
        anywhere.wait_for(lambda: noted(anywhere, "closing"), "the consumer is closing")
        command.send(signal.SIGINT)
        code, out, err = command.end()
    assert code == 130
    assert (summary(out)["done"], summary(out)["unaccounted"]) == (10, 0)
    for words in ("exit code", "Traceback"):
        assert words not in err, err


@dear
def test_a_handler_that_does_not_let_go_is_ended_with_its_process(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue(rows(10))
    with started(anywhere, tmp_path, f"{HANDLERS}:hold_on", "--consumers", "1", "--json") as command:
        anywhere.wait_for(lambda: noted(anywhere, "begun"), "the consumer has begun")
        command.send(signal.SIGTERM)
        command.wait_until_it_says("stopping")
        command.send(signal.SIGTERM)
        code, out, _ = command.end()
    assert code == 130
    assert summary(out)["handed_back"] == 10
    assert statuses(anywhere) == ["unclaimed"] * 10


def test_a_killed_consumer_is_replaced_and_its_batch_done_by_another(database: Backend, tmp_path: Path) -> None:
    database.queue().enqueue(rows(200))
    options = (f"{HANDLERS}:die_once", "--consumers", "2", "--batch-size", "20", "--drain", "--json")
    with started(database, tmp_path, *options) as command:
        code, out, err = command.end()
    found, again = summary(out), len(noted(database, "begun")) - 200
    assert code == 0
    assert again > 0
    assert (found["replaced"], found["handed_back"], found["unaccounted"]) == (1, again, 0)
    assert sorted(noted(database, "done")) == sorted(set(noted(database, "begun")))
    assert len(noted(database, "done")) == 200
    assert "by signal 9" in err


def test_no_process_is_left_when_the_command_is_killed(database: Backend, tmp_path: Path) -> None:
    database.queue().enqueue(rows(100))
    with started(database, tmp_path, *GATED, "--generators", "1", "--rate", "10") as command:
        held = command.wait_until_begun()
        command.process.kill()
        _all_say(command, 3, "the supervisor has died")
        command.gate.touch()
        command.wait_until_all_is_gone()
    assert len(noted(database, "done")) == held
    assert "claimed" not in statuses(database)


def test_orphans_release_a_batch_that_does_not_end(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue(rows(100))
    with started(anywhere, tmp_path, *GATED, "--log-format", "json") as command:
        command.wait_until_begun()
        command.process.kill()
        command.wait_until_all_is_gone(GRACE_SECONDS + LAST_GRACE_SECONDS + 5)
        _, _, err = command.end()
    events = Counter(json.loads(line)["event"] for line in err.splitlines())
    assert (events["supervisor_died"], events["consumer_cancelled"]) == (2, 2)
    assert Counter(statuses(anywhere)) == {"unclaimed": 100}
    assert noted(anywhere, "done") == []
