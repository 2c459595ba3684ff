"""Functions of the user's, named on the command line: the handler, hooks, and the setup of a process."""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from claimjobs.batch.batch import Batch
from claimjobs.callables import COROUTINE, deferred, require_finished
from claimjobs.database.error_translation import reason
from claimjobs.errors import BadHandler, NothingDecided
from claimjobs.job import Done, Job
from claimjobs.log_events import SETUP_FAILED
from claimjobs.log_records import enable_loggers
from claimjobs.queue.references import load
from claimjobs.settle.failures import Hook
from claimjobs.signals import Cancelled

Per = Literal["batch", "job"]
AT_ONCE: Final = 10
"""Jobs that an async function handles at once, if no number is given."""
Setup = Callable[[], AbstractContextManager[object]]
"""A function without parameters that returns a context manager."""

log = logging.getLogger("claimjobs.handlers")


class Handler(ABC):
    """What a consumer does with a batch."""

    @abstractmethod
    def handle(self, batch: Batch) -> None:
        """Handle the jobs, and give them outcomes."""


class BatchHandler(Handler):
    """Calls a function with a whole batch, which must give outcomes."""

    def __init__(self, function: Callable[[Batch], object], name: str) -> None:
        self._function, self._name = function, name

    def handle(self, batch: Batch) -> None:
        """Call the function. Raises NothingDecided if no job has an outcome then, and BadHandler."""
        require_finished(self._function(batch), self._name)
        if len(batch.undecided) == len(batch):
            raise NothingDecided(
                f"{self._name} returned without an outcome for any job, so all were released: loop over the batch, or "
                "call `batch.done()`"
            )


class JobHandler(Handler):
    """Calls a function with each job. A job is done when its call returns, and failed if it raises."""

    def __init__(self, function: Callable[..., object], name: str, *, connected: bool) -> None:
        """`connected`: it has a parameter `connection`, for the open transaction."""
        self._function, self._name, self._connected = function, name, connected

    def handle(self, batch: Batch) -> None:
        for job in batch:
            given = {"connection": batch.connection} if self._connected else {}
            try:
                result = self._function(job, **given)
                require_finished(result, self._name)
                if isinstance(result, Done):
                    batch.done(job, **result.columns)
            except Cancelled:
                raise
            except BaseException as error:
                batch.fail(job, error)


@dataclass(frozen=True)
class PoolHandler:
    """A function of a job, plain or async, that is called for `concurrency` jobs at once: see `Queue.work`."""

    function: Callable[[Job], object]
    concurrency: int


def handler_of(
    function: Any,
    name: str,
    per: Per | None = None,
    *,
    in_transaction: bool = False,
    concurrency: int | None = None,
) -> Handler | PoolHandler:
    """A handler of batches, from a function of a Batch or of one Job.

    `per` says which of them; without it, the type or the name of the first parameter decides. A function of a job may
    have a parameter `connection`: with `in_transaction` it gets the open transaction. With a `concurrency` above 1, or
    if it is an `async def`, it is called for many jobs at once. Raises BadHandler where the parameters do not fit,
    there is no transaction, a call would run nothing (generators), or it is no function.
    """
    if not callable(function):
        raise BadHandler(f"handler {name!r} is no function but {type(function).__name__}: name a function")
    is_async = _is_async(function, name)
    per = per or _per_of(_signature(function, name), name)
    if is_async or (concurrency or 1) > 1:
        _check_pool(name, per, in_transaction=in_transaction, is_async=is_async)
        _check_parameters(function, name, "job")
        return PoolHandler(function, concurrency or AT_ONCE)
    if per == "batch":
        _check_parameters(function, name, "batch")
        return BatchHandler(function, name)
    connected = _has_connection_parameter(function, name)
    _check_parameters(function, name, "job", *(["connection"] if connected else []))
    if connected and not in_transaction:
        raise BadHandler(
            f"handler {name!r} has a parameter `connection`, and no transaction holds its jobs: "
            "give `--hold transaction`"
        )
    return JobHandler(function, name, connected=connected)


# --- what cannot be a handler ----------------------------------------------------------------------------------


def _is_async(function: Any, name: str) -> bool:
    """Whether it is an `async def`. Raises BadHandler for a generator, of which a call runs nothing."""
    kind = deferred(function)
    if kind in (None, COROUTINE):
        return kind is not None
    raise BadHandler(
        f"handler {name!r} is {kind}, and calling it runs nothing: name a plain function or an `async def`"
    )


def _check_pool(name: str, per: Per, *, in_transaction: bool, is_async: bool) -> None:
    what = "is async" if is_async else "is called for many jobs at once"
    if per == "batch":
        raise BadHandler(f"handler {name!r} {what}, and takes a batch: name a function of a job")
    if in_transaction:
        raise BadHandler(
            f"handler {name!r} {what}, and `--hold transaction` handles one job after the other: leave that out, or "
            "name a plain function, without --concurrency"
        )


def _signature(function: Any, name: str, *, wrapped: bool = True) -> inspect.Signature:
    """The signature as it is written; with `wrapped=False` the one that a call must fit, of a decorated function."""
    try:
        return inspect.signature(function, follow_wrapped=wrapped)
    except (TypeError, ValueError):
        raise BadHandler(
            f"the parameters of handler {name!r} cannot be read: name a function written in Python that calls it"
        ) from None


def _per_of(signature: inspect.Signature, name: str) -> Per:
    parameters = list(signature.parameters.values())
    if parameters:
        hint = parameters[0].annotation
        words = {hint if isinstance(hint, str) else getattr(hint, "__name__", ""), parameters[0].name}
        if words & {Batch.__name__, "batch"}:
            return "batch"
        if words & {Job.__name__, "job"}:
            return "job"
    raise BadHandler(
        f"handler {name!r} may be for batches or for jobs: call its parameter `batch` or `job`, "
        "or give `--per batch|job`"
    )


def _has_connection_parameter(function: Any, name: str) -> bool:
    called = _signature(function, name, wrapped=False).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in called.values())
    return "connection" in called or (takes_any and "connection" in _signature(function, name).parameters)


def _check_parameters(function: Any, name: str, first: Per, *more: str) -> None:
    """Raise BadHandler if the signature does not allow the call, because every job would fail."""
    signature = _signature(function, name, wrapped=False)
    try:
        signature.bind(None, **dict.fromkeys(more))
    except TypeError as error:
        call = ", ".join((first, *(f"{word}={word}" for word in more)))
        raise BadHandler(
            f"handler {name!r} has the parameters {signature}, and is called with ({call}): {error}; "
            "give every other parameter a default"
        ) from None


# --- hooks, and the setup of a process -------------------------------------------------------------------------


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
