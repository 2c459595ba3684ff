"""Threads take turns in the order in which they asked."""

from __future__ import annotations

import threading

import pytest

from claimjobs.database.fair_lock import FairLock
from tests.backends import DEADLINE, poll

PATIENCE = 0.05


def _never() -> None:
    pass


def test_nobody_has_two_turns_while_another_waits() -> None:
    lock = FairLock(PATIENCE, _never)
    for _ in range(20):
        turns: list[str] = []

        def wait_for_it(turns: list[str] = turns) -> None:
            with lock:
                turns.append("who waited")

        waiting = threading.Thread(target=wait_for_it)
        with lock:
            waiting.start()
            poll(lambda: lock.has_waiters, DEADLINE)
        with lock:
            turns.append("who had it")
        waiting.join(DEADLINE)
        assert turns == ["who waited", "who had it"]


def test_whoever_waits_is_impatient_now_and_then() -> None:
    asked = threading.Event()
    lock = FairLock(PATIENCE, asked.set)
    with lock:
        waiting = threading.Thread(target=lock.__enter__)
        waiting.start()
        assert asked.wait(120)
    waiting.join(120)
    assert not waiting.is_alive()


def test_whoever_leaves_the_line_does_not_hold_it_up() -> None:
    def leave() -> None:
        raise InterruptedError

    def give_up() -> None:
        with pytest.raises(InterruptedError), lock:
            pass

    lock = FairLock(PATIENCE, leave)

    with lock:
        waiting = threading.Thread(target=give_up)
        waiting.start()
        waiting.join(120)
    with lock:
        pass
