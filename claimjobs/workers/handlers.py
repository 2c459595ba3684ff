"""Handlers: a user's function, as a function of a batch."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, Literal

from claimjobs.batch.batch import Batch
from claimjobs.callables import deferred, unfinished
from claimjobs.database.error_translation import reason
from claimjobs.errors import BadHandler, NothingDecided, UnfinishedHandler
from claimjobs.job import Job
from claimjobs.signals import Cancelled

Handler = Callable[[Batch], object]
Per = Literal["batch", "job"]

log = logging.getLogger("claimjobs.handlers")


def handler_of(function: Any, name: str, per: Per | None = None, *, in_transaction: bool = False) -> Handler:
    """A handler of batches from a function of a Batch, or of one Job.

    `per` declares which; otherwise the type or the name of its first parameter tells. A function of a job may take
    a parameter `connection` as well: the transaction that holds the job, where one does (`in_transaction`). Raises
    BadHandler where the parameters do not tell or do not fit, where there is no transaction, where a call would run
    nothing (`async def`, generators), or where this is no function.
    """
    if not callable(function):
        raise BadHandler(f"handler {name!r} is no function but {type(function).__name__}: name a function")
    _must_work_when_called(function, name)
    if (per or _takes(_signature(function, name), name)) == "batch":
        _must_take(function, name, "batch")
        return _whole(function, name)
    connected = _takes_connection(function, name)
    _must_take(function, name, "job", *(["connection"] if connected else []))
    if connected and not in_transaction:
        raise BadHandler(
            f"handler {name!r} takes a connection, and no transaction holds its jobs: give `--hold transaction`"
        )
    return _each(function, name, connected=connected)


# --- what cannot be a handler ----------------------------------------------------------------------------------


def _must_work_when_called(function: Any, name: str) -> None:
    kind = deferred(function)
    if kind is not None:
        raise BadHandler(
            f"handler {name!r} is {kind}, of which a call runs nothing: name a plain function "
            "(one that calls `asyncio.run(...)`, where the work is async)"
        )


def _signature(function: Any, name: str, *, wrapped: bool = True) -> inspect.Signature:
    """What a reader sees; `wrapped=False`: what a call must fit, where a decorator gives the function more."""
    try:
        return inspect.signature(function, follow_wrapped=wrapped)
    except (TypeError, ValueError):
        raise BadHandler(
            f"handler {name!r} does not tell its parameters: name a function written in Python that calls it"
        ) from None


def _takes(signature: inspect.Signature, name: str) -> Per:
    parameters = list(signature.parameters.values())
    if parameters:
        hint = parameters[0].annotation
        words = {hint if isinstance(hint, str) else getattr(hint, "__name__", ""), parameters[0].name}
        if words & {Batch.__name__, "batch"}:
            return "batch"
        if words & {Job.__name__, "job"}:
            return "job"
    raise BadHandler(
        f"handler {name!r} does not say what it takes: call its parameter `batch` or `job`, or give `--per batch|job`"
    )


def _takes_connection(function: Any, name: str) -> bool:
    called = _signature(function, name, wrapped=False).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in called.values())
    return "connection" in called or (takes_any and "connection" in _signature(function, name).parameters)


def _must_take(function: Any, name: str, first: Per, *more: str) -> None:
    """Every job would fail by a call that the signature does not allow."""
    signature = _signature(function, name, wrapped=False)
    try:
        signature.bind(None, **dict.fromkeys(more))
    except TypeError as error:
        call = ", ".join((first, *(f"{word}={word}" for word in more)))
        raise BadHandler(
            f"handler {name!r} has the parameters {signature}, and is called with ({call}): {error}; "
            "give every other parameter a default"
        ) from None


# --- calling it ------------------------------------------------------------------------------------------------


def _whole(function: Callable[[Batch], object], name: str) -> Handler:
    def handle(batch: Batch) -> None:
        _must_have_worked(function(batch), name)
        if len(batch.undecided) == len(batch):
            raise NothingDecided(name)

    return handle


def _each(function: Callable[..., object], name: str, *, connected: bool) -> Handler:
    def handle(batch: Batch) -> None:
        failed = 0
        for job in batch:
            given = {"connection": batch.connection} if connected else {}
            try:
                _must_have_worked(function(job, **given), name)
            except Cancelled:
                raise
            except BaseException as error:
                failed += 1
                _tell(job, error, is_first=failed == 1)
                batch.fail(job, error)
        if failed > 1:
            log.warning("%d of the %d jobs of this batch failed", failed, len(batch))

    return handle


def _must_have_worked(result: object, name: str) -> None:
    kind = unfinished(result)
    if kind is not None:
        raise UnfinishedHandler(name, kind)


def _tell(job: Job, error: BaseException, *, is_first: bool) -> None:
    """Of the first of a batch at once: the others mostly fail by the same error. Tracebacks are for `--verbose`."""
    level = logging.WARNING if is_first else logging.DEBUG
    log.log(level, "job %r failed: %s: %s", job.key, type(error).__name__, reason(error))
    log.debug("job %r failed here:", job.key, exc_info=error)
