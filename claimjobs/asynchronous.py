"""asyncio: what the protocol does in a thread, for a loop that awaits it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

Result = TypeVar("Result")


async def in_thread(
    function: Callable[..., Result],
    *given: Any,
    executor: Executor | None = None,
    interrupt: Callable[[], object] | None = None,
) -> Result:
    """Call a function in a thread, and wait for its end, also if this task is cancelled meanwhile: then what it did is
    known. `executor`: whose thread; None: one of the loop's. `interrupt`: called when this task is cancelled.
    """
    context = contextvars.copy_context()
    call = asyncio.get_running_loop().run_in_executor(executor, context.run, function, *given)
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        if interrupt is not None:
            interrupt()
        await asyncio.wait([call])
        raise
