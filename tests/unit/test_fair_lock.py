"""Threads take turns in the order in which they asked."""

from __future__ import annotations

import threading
import time

import pytest

from claimjobs.database.fair_lock import FairLock

PATIENCE = 0.05


def _never() -> None:
    pass


def test_nobody_has_two_turns_while_another_waits() -> None:
    lock, ended = FairLock(), threading.Event()
    taken: list[float] = []

    def hog() -> None:
        while not ended.is_set():
            with lock.ticket(PATIENCE, _never):
                taken.append(time.monotonic())
                time.sleep(0.005)

    greedy = threading.Thread(target=hog)
    greedy.start()
    for _ in range(20):
        asked = time.monotonic()
        with lock.ticket(PATIENCE, _never):
            since = [turn for turn in taken if turn > asked]
        assert len(since) <= 1
    ended.set()
    greedy.join()


def test_whoever_waits_is_impatient_now_and_then() -> None:
    lock, asked = FairLock(), threading.Event()
    with lock.ticket(PATIENCE, _never):
        waiting = threading.Thread(target=lambda: lock.ticket(PATIENCE, asked.set).__enter__())
        waiting.start()
        assert asked.wait(120)
    waiting.join(120)
    assert not waiting.is_alive()


def test_whoever_leaves_the_line_does_not_hold_it_up() -> None:
    lock = FairLock()

    def leave() -> None:
        raise InterruptedError

    def give_up() -> None:
        with pytest.raises(InterruptedError), lock.ticket(PATIENCE, leave):
            pass

    with lock.ticket(PATIENCE, _never):
        waiting = threading.Thread(target=give_up)
        waiting.start()
        waiting.join(120)
    with lock.ticket(PATIENCE, _never):
        pass
