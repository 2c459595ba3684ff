"""S5: the polling loop ends when it is told to, and when there was nothing to do."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from benchmarks.crew import SPAWN, Worker, gather
from examples.s5_leontrolski import author, loop
from examples.s5_leontrolski.events import setup, statuses
from tests.backends import Backend

pytestmark = pytest.mark.thorough("an example of an article, as a whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_loop_after_the_event_in_hand(database: Backend, number: int) -> None:
    setup(database.url, 3)
    pid, in_hand, go_on = SPAWN.Value("i", 0), SPAWN.Event(), SPAWN.Event()
    worker = Worker(_loop, database.url, pid, in_hand, go_on)
    assert in_hand.wait(loop.SECONDS)
    os.kill(pid.value, number)
    go_on.set()
    assert gather([worker]) == [1]
    assert statuses(database.url) == {author.PROCESSED: 1, author.TO_PROCESS: 2}


def _loop(url: str, pid: Any, in_hand: Any, go_on: Any) -> int:
    pid.value = os.getpid()
    return loop.loop(url, in_hand, go_on)


def test_without_activity_the_loop_ends(database: Backend) -> None:
    setup(database.url, 3)
    go_on = threading.Event()
    go_on.set()
    assert loop.loop(database.url, threading.Event(), go_on, idle=0.05) == 3
