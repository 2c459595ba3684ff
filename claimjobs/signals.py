"""Signals: the first one stops, the second one cancels, but never within a transaction."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final, Protocol

from claimjobs.log_events import THREAD_LEFT

STOPPING: Final = (signal.SIGINT, signal.SIGTERM)
CANCEL_SIGNAL: Final = signal.SIGUSR1
"""The signal by which another thread raises `Cancelled` in the main thread of its process."""
REACTION_SECONDS: Final = 1.0
"""Seconds from the deadline of a stop, when a handler is interrupted, until its jobs are released without it."""
THREADS_GRACE_SECONDS: Final = 5.0
"""Seconds for which threads of a handler may run on after the work of their process."""

log = logging.getLogger("claimjobs.signals")

# --- Cancelled, and where it waits -----------------------------------------------------------------------------


class Cancelled(BaseException):
    """The process must release its jobs now. A handler's `except Exception` does not catch it."""


class _Shield(threading.local):
    """Counts the `with` blocks that the thread is in. Each transaction enters one, so it must be cheap."""

    depth = 0
    pending = False

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.depth -= 1
        if kind is None and not self.depth:
            raise_delayed()


_shield = _Shield()


def shielded() -> _Shield:
    """Delay `Cancelled` to the end of a `with` block: a commit is not interrupted."""
    return _shield


def raise_delayed() -> None:
    """Raise a `Cancelled` that `shielded` delays, where no transaction is open: between two attempts, for example."""
    if _shield.pending:
        _shield.pending = False
        raise Cancelled


def cancel_here() -> None:
    """Raise `Cancelled` now, or at the end of `shielded`. For a signal handler in the main thread."""
    _shield.pending = True
    if not _shield.depth:
        raise_delayed()


def allow_cancel() -> None:
    """Let `cancel` raise `Cancelled` in the main thread of this process from now on. Call it in the main thread."""
    handle(CANCEL_SIGNAL, lambda _number: cancel_here())


def refuse_cancel() -> None:
    """Let `cancel` do nothing from now on. Call it in the main thread."""
    handle(CANCEL_SIGNAL, lambda _number: None)
    _shield.pending = False  # one that an error in a shielded block has left


def cancel() -> None:
    """Raise `Cancelled` in the main thread, from any thread."""
    _send_to_main_thread(CANCEL_SIGNAL)


def _send_to_main_thread(number: int) -> None:
    """The signal interrupts also a handler that waits for the operating system."""
    if (main := threading.main_thread().ident) is not None:
        signal.pthread_kill(main, number)


# --- signal handlers -------------------------------------------------------------------------------------------

_before: Final[dict[int, Any]] = {}
"""The handler that each signal had before ours."""


def handle(number: int, react: Callable[[int], None]) -> Any:
    """Call `react(number)` for this signal in this process; return the former handler. Call it in the main thread.

    Processes that it forks get the former handler: our reaction is about a Queue that they must not use, and a SIGTERM
    must end the workers of a `multiprocessing.Pool`.
    """
    former = signal.signal(number, lambda n, _frame: react(n))
    former = signal.SIG_DFL if former is None else former  # None: a handler that is not Python's
    _before.setdefault(number, former)
    return former


_fork = threading.local()
"""`blocked`: the signals that were blocked before a fork of this thread."""


def _block_before_fork() -> None:
    """A signal for the child waits for the handlers of the child: with ours it would be lost."""
    _fork.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _before)


def _unblock_after_fork() -> None:
    _shield.depth += 1  # what is raised here is lost: a `Cancelled` waits for the end of the next transaction
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, getattr(_fork, "blocked", ()))
    finally:
        _shield.depth -= 1


def _forget_in_child() -> None:
    while _before:
        signal.signal(*_before.popitem())
    _unblock_after_fork()


os.register_at_fork(before=_block_before_fork, after_in_parent=_unblock_after_fork, after_in_child=_forget_in_child)


@contextmanager
def on_signals(react: Callable[[int], None], *numbers: int) -> Iterator[None]:
    """Call `react(number)` for these signals in a `with` block; restore the former handlers at its end."""
    before = {number: handle(number, react) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
            if _before.get(number) is former:
                del _before[number]


@contextmanager
def interrupted_at_once() -> Iterator[None]:
    """For a `with` block before the work: the first SIGINT or SIGTERM raises KeyboardInterrupt, the second kills.

    If imported code catches the KeyboardInterrupt, it is raised again at the end of the block.
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
def signals_blocked() -> Iterator[None]:
    """Delay SIGINT and SIGTERM to the end of the block; in a process started in it, until that unblocks them.

    So a process that still imports its handler is not killed by a signal to the whole group.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def graceful(stop: Callable[[], None], force: Callable[[], None]) -> Iterator[None]:
    """The first SIGINT or SIGTERM calls `stop()`, which lets the batch finish. Every further one calls `force()`."""
    seen: list[int] = []

    def react(number: int) -> None:
        seen.append(number)
        if len(seen) == 1:
            stop()
        else:
            force()

    try:
        with on_signals(react, *STOPPING):
            yield
    finally:
        _shield.pending = False  # it was about this block


@contextmanager
def _ended_by_cancel(task: asyncio.Task[Any]) -> Iterator[Callable[[], object]]:
    """The block of a task, and what ends it from a signal handler: a cancel of the task, which goes no further than the
    block, as that of `asyncio.timeout`. `Cancelled` would be raised in the event loop, for whatever runs there.
    """
    before, cancels, is_left = task.cancelling(), 0, False

    def cancel() -> None:
        nonlocal cancels
        if not is_left:
            cancels += 1
            task.cancel()

    try:
        yield lambda: task.get_loop().call_soon_threadsafe(cancel)
    except asyncio.CancelledError:
        if not cancels or task.cancelling() - cancels > before:
            raise  # somebody else has cancelled it
    finally:
        is_left = True
        for _ in range(cancels):
            task.uncancel()


class SupportsStop(Protocol):
    """A Queue, or another object that can stop."""

    def stop(self, timeout: float | None = None) -> None:
        """Finish the batch. What is held after `timeout` seconds is released."""


@contextmanager
def stop_on_signals(*queues: SupportsStop, timeout: float | None = None) -> Iterator[None]:
    """Let SIGINT and SIGTERM stop these queues in a block: `with stop_on_signals(queue): for batch in ...`.

    The first signal calls `queue.stop()`, which lets the batch finish. The second ends the block wherever it is, but
    not within a transaction: jobs without an outcome are released. The code after the block runs in either case, with
    the former signal handlers. Use it in the main thread (else ValueError): the loops may run in others. In asyncio
    enter it in the task that is to end, not around `asyncio.run`: the second signal cancels that task, where it awaits.

    `timeout`: so many seconds after the first signal has the effect of a second one. REACTION_SECONDS seconds later
    `queue.stop(timeout)` releases what is still held: by a handler that catches everything, or in another thread.
    """
    if timeout is not None:
        check_timeout(timeout)
    if threading.current_thread() is not threading.main_thread():
        raise ValueError(
            "stop_on_signals was called in a thread, and Python handles signals in the main thread only: "
            "enter it in the main thread, and run the loops in threads within its block"
        )
    timers: list[threading.Timer] = []
    is_left = False

    def stop() -> None:
        for queue in queues:
            queue.stop() if timeout is None else queue.stop(timeout + REACTION_SECONDS)
        if timeout is not None and not is_left:
            timers.append(after(timeout, _send_to_main_thread, signal.SIGTERM))

    def force() -> None:
        if not is_left:
            end()

    task = None
    with suppress(RuntimeError):  # no event loop runs here
        task = asyncio.current_task()
    ended = nullcontext(cancel_here) if task is None else _ended_by_cancel(task)
    with suppress(Cancelled), ended as end, graceful(stop, force):
        try:
            yield
        finally:
            is_left = True  # what comes now starts no timer, and does not interrupt the way out
            for timer in timers:  # one that is about to send its signal does so while `graceful` handles it
                timer.cancel()
                timer.join()


def check_timeout(timeout: float) -> None:
    """Raise ValueError unless a timer can wait for so many seconds."""
    if not 0 <= timeout <= threading.TIMEOUT_MAX - REACTION_SECONDS:
        raise ValueError(f"timeout={timeout!r}: give a number of seconds, 0 or more")


# --- the end of a process --------------------------------------------------------------------------------------


def after(seconds: float, act: Callable[[int], object], code: int) -> threading.Timer:
    """Call `act(code)` after so many seconds, unless the process ends before or the timer is cancelled."""
    timer = threading.Timer(seconds, act, args=(code,))
    timer.daemon = True
    timer.start()
    return timer


def end_if_forked(process: int, error: BaseException) -> None:
    """End this process if it is another one: a handler in that one has forked it, and raises this error here.

    As in a process of `multiprocessing`, nothing is closed that its parent uses.
    """
    if os.getpid() != process:
        code = error.code if isinstance(error, SystemExit) else 1
        if not isinstance(error, SystemExit):
            traceback.print_exception(error)
        os._exit(code if isinstance(code, int) else int(code is not None))


def exit_despite_threads(code: int, *, but: Iterable[threading.Thread] = ()) -> None:
    """End this process soon with this code, even if threads that a handler started do not end.

    `but` are threads that existed before. Call it when the work is done. At its exit Python waits for every thread that
    is no daemon, for any time.
    """

    def end(code: int) -> None:
        words = "a thread that the handler started was still running %g s after the work: ended"
        log.warning(words, THREADS_GRACE_SECONDS, extra={"event": THREAD_LEFT, "seconds": THREADS_GRACE_SECONDS})
        os._exit(code)

    known = {threading.current_thread(), threading.main_thread(), *but}
    if [thread for thread in threading.enumerate() if not thread.daemon and thread not in known]:
        after(THREADS_GRACE_SECONDS, end, code)
