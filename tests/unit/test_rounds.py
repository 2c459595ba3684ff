"""What loops are told, and what they keep; with a database: tests/conformance/test_batch.py, test_sleep.py."""

import gc
import weakref

from claimjobs.orders import Orders
from claimjobs.queue import Queue

AT_ONCE = 0.0
LONG = 60.0


def test_a_word_stands_until_it_is_heeded() -> None:
    orders = Orders()
    orders.wake()
    assert orders.hears(LONG)
    assert orders.hears(AT_ONCE)
    orders.heed()
    assert not orders.hears(AT_ONCE)


def test_a_pause_heeds_the_word_that_ends_it() -> None:
    orders = Orders()
    orders.drain()
    orders.wait(LONG)
    assert not orders.hears(AT_ONCE)
    assert orders.draining


def test_nobody_pauses_after_a_stop() -> None:
    orders = Orders()
    orders.stop()
    orders.wait(LONG)
    assert orders.hears(AT_ONCE)
    assert orders.stopping
    assert not orders.draining


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
