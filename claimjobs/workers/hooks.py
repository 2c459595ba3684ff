"""Functions of the user's, named on the command line, that are called beside the handler."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from claimjobs.callables import deferred
from claimjobs.database.error_translation import reason
from claimjobs.errors import BadHandler
from claimjobs.log_events import SETUP_FAILED
from claimjobs.log_records import enable_loggers
from claimjobs.queue.references import load
from claimjobs.settle.failures import Hook
from claimjobs.signals import Cancelled

Setup = Callable[[], AbstractContextManager[object]]
"""A function without parameters that returns a context manager."""

log = logging.getLogger("claimjobs.hooks")


def hook_named(reference: str | None, option: str) -> Hook | None:
    """The function of a job and its error that MODULE:FUNCTION names. Raises ReferenceNotFound or BadHandler."""
    return None if reference is None else _checked(load(reference), f"{option} {reference!r}", "job", "error")


def setup_named(reference: str | None) -> Setup | None:
    """The function that MODULE:FUNCTION names. Raises ReferenceNotFound or BadHandler."""
    return None if reference is None else _checked(load(reference), f"--setup {reference!r}")


@contextmanager
def entered(setup: Setup | None, name: str | None) -> Iterator[None]:
    """Enter the user's context manager for a `with` block. Raises BadHandler if that is not possible.

    It is left without an exception, however the block ends: so it cannot suppress one, and a function decorated by
    `contextmanager` needs no `finally`. An error while it is left is logged, because the jobs are settled by then.
    """
    if setup is None:
        yield
        return
    manager = _enter(setup, str(name))
    try:
        yield
    finally:
        _leave(manager, str(name))


def _enter(setup: Setup, name: str) -> AbstractContextManager[object]:
    try:
        manager = setup()
        manager.__enter__()
    except Cancelled:
        raise
    except BaseException as error:
        cause = f"{type(error).__name__}: {reason(error)}"
        log.debug("--setup %r failed here:", name, extra={"event": SETUP_FAILED, "error": cause}, exc_info=error)
        raise BadHandler(
            f"--setup {name!r} failed before the first batch ({cause}): correct the function, and start again"
        ) from error
    finally:
        enable_loggers()  # it may have configured the log
    return manager


def _leave(manager: AbstractContextManager[object], name: str) -> None:
    try:
        manager.__exit__(None, None, None)
    except (Exception, SystemExit) as error:
        cause = f"{type(error).__name__}: {reason(error)}"
        fields = {"event": SETUP_FAILED, "error": cause}
        log.exception("--setup %r failed at the end of its process: %s", name, cause, extra=fields)


def _checked(function: Any, name: str, *parameters: str) -> Any:
    """The function, if it can be called with these, and a call does its work. Raises BadHandler."""
    call = f"({', '.join(parameters)})"
    kind = deferred(function) or (None if callable(function) else f"no function but {type(function).__name__}")
    if kind is not None:
        raise BadHandler(f"{name} is {kind}: name a plain function that is called with {call}")
    try:
        inspect.signature(function).bind(*parameters)
    except (TypeError, ValueError) as error:
        raise BadHandler(
            f"{name} cannot be called with {call}: {error}; give every other parameter a default"
        ) from None
    return function
