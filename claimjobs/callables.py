"""Callables: whether a user's function works when it is called, or only returns something that would work later."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final

KINDS: Final[dict[str, Callable[[Any], bool]]] = {
    "an async def function": inspect.iscoroutinefunction,
    "an async generator function": inspect.isasyncgenfunction,
    "a generator function": inspect.isgeneratorfunction,
}
"""A call of these runs none of the function's lines."""

RESULTS: Final[dict[str, Callable[[Any], bool]]] = {
    "a coroutine": inspect.iscoroutine,
    "an awaitable": inspect.isawaitable,
    "an async generator": inspect.isasyncgen,
    "a generator": inspect.isgenerator,
}
"""What such a call returns. The first that fits names it."""


def deferred(function: Any) -> str | None:
    """What kind of function this is whose call does no work: `an async def function`; None for all others.

    Bound methods, partials and objects with a `__call__` are looked through. A plain function that wraps one of these
    is a function of its own: it may well run it (`asyncio.run`), which only its result tells.
    """
    while isinstance(function, partial):
        function = function.func
    called = function if isinstance(function, type) else getattr(function, "__call__", function)  # noqa: B004
    return next((kind for kind, fits in KINDS.items() if fits(function) or fits(called)), None)


def unfinished(result: Any) -> str | None:
    """What a call returned in place of doing its work: `a coroutine`; None for everything else.

    It is closed, so that Python does not warn of one that was never awaited.
    """
    kind = next((kind for kind, fits in RESULTS.items() if fits(result)), None)
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    return kind
