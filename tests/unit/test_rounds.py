"""What loops are told, and what they keep; with a database: tests/conformance/test_batch.py, test_sleep.py."""

import gc
import sys
import threading
import weakref
from types import FrameType
from typing import Any

from claimjobs.control import Control
from claimjobs.queue.queue import Queue
from tests.backends import wait_for

AT_ONCE = 0.0
LONG = 60.0


def test_a_word_stands_until_it_is_heeded() -> None:
    orders = Control()
    orders.wake()
    assert orders.woken(LONG)
    assert orders.woken(AT_ONCE)
    orders.clear_wake()
    assert not orders.woken(AT_ONCE)


def test_a_pause_heeds_the_word_that_ends_it() -> None:
    orders = Control()
    orders.drain()
    orders.wait(LONG)
    assert not orders.woken(AT_ONCE)
    assert orders.draining


def test_nobody_pauses_after_a_stop() -> None:
    orders = Control()
    orders.stop()
    orders.wait(LONG)
    assert orders.woken(AT_ONCE)
    assert orders.stopping
    assert not orders.draining


def test_a_word_may_be_said_in_the_middle_of_anything() -> None:
    """As by a signal handler: here at every line that runs while somebody waits, and heeds."""
    orders = Control()
    said: list[int] = []

    def interrupt(frame: FrameType, _event: str, _given: Any) -> Any:
        sys.settrace(None)
        said.append(frame.f_lineno)
        orders.wake()
        sys.settrace(interrupt)
        return interrupt

    def waits() -> None:
        sys.settrace(interrupt)
        orders.wait(AT_ONCE)
        orders.woken(LONG)
        sys.settrace(None)

    waiter = threading.Thread(target=waits, daemon=True)
    waiter.start()
    waiter.join(120)
    assert not waiter.is_alive()
    assert len(said) > 10


def test_everybody_who_waits_hears_a_word() -> None:
    orders, heard = Control(), []

    def listens() -> None:
        heard.append(orders.woken(LONG))
        orders.clear_wake()

    listeners = [threading.Thread(target=listens) for _ in range(5)]
    for listener in listeners:
        listener.start()
    wait_for(lambda: len(orders._waiting) == 5, "all to wait")
    orders.wake()
    for listener in listeners:
        listener.join(120)
    assert heard == [True] * 5


def test_a_thread_that_clears_a_wake_takes_it_from_no_other_thread() -> None:
    """That one was not waiting yet, and would sleep although the queue drains."""
    orders = Control()
    orders.drain()
    other = threading.Thread(target=orders.wait, args=(LONG,))
    other.start()
    other.join(120)
    assert orders.woken(AT_ONCE)


def test_a_loop_keeps_its_queue_which_is_to_be_told_when_a_batch_hangs() -> None:
    queue = Queue("postgresql://nobody@localhost/nowhere")
    known = weakref.ref(queue)
    loop = queue.batches()
    del queue
    gc.collect()
    assert known() is not None
    del loop
    gc.collect()
    assert known() is None
