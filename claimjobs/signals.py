"""Stopping: first politely, then at once, but never in the middle of a transaction."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

TAKE_BACK: Final = signal.SIGUSR1
"""The signal by which a process raises `Cancelled` in its own main thread."""

THREADS_GRACE: Final = 5.0
"""Seconds that threads of a handler may run on when their process has done its work."""

log = logging.getLogger("claimjobs.signals")


class Cancelled(BaseException):
    """Work is taken out of the hands that hold it. No Exception: a handler's `except Exception` must not eat it."""


class _Shield(threading.local):
    """Up for as many `with` blocks as one is within. It stands before each transaction, and costs nearly nothing."""

    depth = 0
    pending = False

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.depth -= 1
        if kind is None:
            _raise_if_pending()


_shield = _Shield()


def shielded() -> _Shield:
    """Put off `Cancelled` for a `with` block: a commit is finished, or was never begun."""
    return _shield


def _raise_if_pending() -> None:
    if _shield.pending and not _shield.depth:
        _shield.pending = False
        raise Cancelled


def can_be_taken_back() -> None:
    """From here on `take_back` raises `Cancelled` in the main thread of this process. Call it there."""
    signal.signal(TAKE_BACK, lambda _number, _frame: take_back_here())


def take_back() -> None:
    """Raise `Cancelled` in the main thread, from any thread."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, TAKE_BACK)


def leave_threads_behind(code: int, *, but: Iterable[threading.Thread] = ()) -> None:
    """End this process with this code soon, also where threads run on that a user's function has started.

    `but` are threads that were there before. For a process that has done its work and is about to exit: Python waits
    for every thread that is no daemon, however long it runs.
    """
    known = {threading.current_thread(), threading.main_thread(), *but}
    if [thread for thread in threading.enumerate() if not thread.daemon and thread not in known]:
        after(THREADS_GRACE, _end, code)


def after(seconds: float, act: Callable[[int], object], code: int) -> threading.Timer:
    """Call `act(code)` in so many seconds, unless this process has ended by then, or it was cancelled."""
    timer = threading.Timer(seconds, act, args=(code,))
    timer.daemon = True
    timer.start()
    return timer


def _end(code: int) -> None:
    log.warning("a thread that the handler started was still running %g s after the work: ended", THREADS_GRACE)
    os._exit(code)


@contextmanager
def on_signals(react: Callable[[int], None], *numbers: int) -> Iterator[None]:
    """Call `react(number)` when one of the signals arrives, and restore what was there before."""
    before = {number: signal.signal(number, lambda n, _frame: react(n)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


STOPPING: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupted_at_once() -> Iterator[None]:
    """For a block in which nothing has begun: the first SIGINT or SIGTERM raises KeyboardInterrupt, the second kills.

    What is imported in the block may catch the first, and go on; then KeyboardInterrupt is raised at its end.
    """
    seen: list[int] = []

    def react(number: int) -> None:
        seen.append(number)
        for each in STOPPING:
            signal.signal(each, signal.SIG_DFL)
        raise KeyboardInterrupt

    with on_signals(react, *STOPPING):
        yield
    if seen:
        raise KeyboardInterrupt


@contextmanager
def held_back() -> Iterator[None]:
    """SIGINT and SIGTERM wait until the block is left; in a process that is started in it, until `let_through`.

    So one that still imports what it is to run is not ended by a signal that was sent to the whole group.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_through() -> None:
    """Signals that were held back mean from here on what they were said to mean."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def take_back_here() -> None:
    """Raise `Cancelled`, now or when the shield is lifted. For a signal handler in the main thread."""
    _shield.pending = True
    _raise_if_pending()


@contextmanager
def graceful(stop: Callable[[], None], force: Callable[[], None] = take_back_here) -> Iterator[None]:
    """First SIGINT or SIGTERM: `stop()`, which lets the batch in hand finish. Every further one: `force()`."""
    seen: list[int] = []

    def react(number: int) -> None:
        seen.append(number)
        if len(seen) == 1:
            stop()
        else:
            force()

    with on_signals(react, *STOPPING):
        yield


class Stoppable(Protocol):
    """What can be told to stop: a Queue."""

    def stop(self) -> None:
        """Finish what is in hand."""


@contextmanager
def stop_on_signals(*queues: Stoppable) -> Iterator[None]:
    """Let SIGINT and SIGTERM stop these queues for the block: `with stop_on_signals(queue): for batch in ...`.

    The first signal calls `queue.stop()`, which lets the batch in hand finish. The second ends the block wherever it
    is, but not within a transaction: jobs without an outcome are handed back. What comes after the block is run in
    either case, and there the signals mean again what they meant before. To be used in the main thread (ValueError).
    """

    def stop() -> None:
        for queue in queues:
            queue.stop()

    with suppress(Cancelled), graceful(stop):
        yield
