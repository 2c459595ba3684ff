"""Callables: whether a user's function does its work when it is called, or returns something that would do it later.

`in_thread` calls one in a thread, for asyncio.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from claimjobs.errors import BadHandler

Result = TypeVar("Result")

COROUTINE: Final = "an async def function"
GENERATOR: Final = "a generator function"
NOT_PLAIN: Final[dict[str, Callable[[Any], bool]]] = {
    COROUTINE: inspect.iscoroutinefunction,
    "an async generator function": inspect.isasyncgenfunction,
    GENERATOR: inspect.isgeneratorfunction,
}
"""A call of these runs none of the function's lines."""

RESULTS: Final[dict[str, Callable[[Any], bool]]] = {
    "a coroutine": inspect.iscoroutine,
    "an awaitable": inspect.isawaitable,
    "an async generator": inspect.isasyncgen,
    "a generator": inspect.isgenerator,
}
"""What such a call returns: the first kind that applies."""


def deferred(function: Any) -> str | None:
    """The kind of a function whose call does no work, such as `an async def function`; None for all others.

    It examines what bound methods, partials and objects with a `__call__` call. A plain function that wraps one of
    these may run it (`asyncio.run`): only its result shows that.
    """
    while isinstance(function, partial):
        function = function.func
    called = function if isinstance(function, type) else getattr(function, "__call__", function)  # noqa: B004
    return next((kind for kind, fits in NOT_PLAIN.items() if fits(function) or fits(called)), None)


def checked_kind(function: Any, what: str) -> str | None:
    """COROUTINE for an async function, None for a plain one. Raises BadHandler for everything else."""
    if not callable(function):
        raise BadHandler(f"{what} is no function but {type(function).__name__}: name a function")
    kind = deferred(function)
    if kind not in (None, COROUTINE):
        raise BadHandler(f"{what} is {kind}, and calling it runs nothing: name a plain function or an `async def`")
    return kind


def unfinished(result: Any) -> str | None:
    """The kind of a result that is unfinished work, such as `a coroutine`; None for everything else.

    The coroutine is closed, because Python would warn that it was never awaited.
    """
    kind = next((kind for kind, fits in RESULTS.items() if fits(result)), None)
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    return kind


def require_finished(result: Any, name: str) -> None:
    """Raise BadHandler if a function of this name returned unfinished work."""
    if (kind := unfinished(result)) is not None:
        raise BadHandler(
            f"{name} returned {kind}, which nothing runs: let it do the work before it returns, with `await` in an "
            "async function, and with `asyncio.run(...)` in a plain one"
        )


CALLS: Final = 10
"""How many threads of one event loop enqueue at once: fewer than an engine of SQLAlchemy has connections."""
_SLOTS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]] = WeakKeyDictionary()


def enqueue_slot() -> asyncio.Semaphore:
    """One of the CALLS slots of the running event loop. A task that waits for one can be cancelled."""
    return _SLOTS.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(CALLS))


async def in_thread(
    function: Callable[..., Result],
    *given: Any,
    executor: Executor | None = None,
    interrupt: Callable[[], object] | None = None,
) -> Result:
    """Call a function in a thread, and wait for its end, however often this task is cancelled meanwhile: so what it did
    is known. `executor`: whose thread; None: a new one, because calls of users may have all those of the loop for any
    time. `interrupt`: called when this task is cancelled.
    """
    context = contextvars.copy_context()
    threads = executor or ThreadPoolExecutor(1, "claimjobs")
    call = asyncio.get_running_loop().run_in_executor(threads, context.run, function, *given)
    if executor is None:
        threads.shutdown(wait=False)  # after this call
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        if interrupt is not None:
            interrupt()
        while not call.done():
            with suppress(asyncio.CancelledError):  # it is cancelled already
                await asyncio.wait([call])
        if not call.cancelled():
            call.exception()  # else asyncio logs an error that nobody has seen
        raise
