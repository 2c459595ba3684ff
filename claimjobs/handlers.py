"""Handlers: a user's function, as a function of a batch."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, Literal

from claimjobs.batch import Batch
from claimjobs.errors import BadHandler, NothingDecided
from claimjobs.job import Job
from claimjobs.translate import reason

Handler = Callable[[Batch], object]
Per = Literal["batch", "job"]

log = logging.getLogger("claimjobs.handlers")


def handler_of(function: Any, name: str, per: Per | None = None, *, in_transaction: bool = False) -> Handler:
    """A handler of batches from a function of a Batch, or of one Job.

    `per` declares which; otherwise the type or the name of its first parameter tells. A function of a job may take
    a parameter `connection` as well: the transaction that holds the job, where one does (`in_transaction`). Raises
    BadHandler where the parameters do not tell, where there is no transaction, or where this is no function.
    """
    if not callable(function):
        raise BadHandler(f"handler {name!r} is no function but {type(function).__name__}: name a function")
    if (per or _takes(function, name)) == "batch":
        return _whole(function, name)
    connected = "connection" in inspect.signature(function).parameters
    if connected and not in_transaction:
        raise BadHandler(
            f"handler {name!r} takes a connection, and no transaction holds its jobs: give `--hold transaction`"
        )
    return _each(function, connected=connected)


def _takes(function: Callable[..., Any], name: str) -> Per:
    parameters = list(inspect.signature(function).parameters.values())
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


def _whole(function: Callable[[Batch], object], name: str) -> Handler:
    def handle(batch: Batch) -> None:
        function(batch)
        if len(batch.undecided) == len(batch):
            raise NothingDecided(name)

    return handle


def _each(function: Callable[..., object], *, connected: bool) -> Handler:
    def handle(batch: Batch) -> None:
        failed = 0
        for job in batch:
            given = {"connection": batch.connection} if connected else {}
            try:
                function(job, **given)
            except Exception as error:
                failed += 1
                _tell(job, error, is_first=failed == 1)
                batch.fail(job, error)
        if failed > 1:
            log.warning("%d of the %d jobs of this batch failed", failed, len(batch))

    return handle


def _tell(job: Job, error: Exception, *, is_first: bool) -> None:
    """Of the first of a batch at once, and where it was raised: the others mostly fail by the same, a line each."""
    words = "job %r failed: %s: %s", job.key, type(error).__name__, reason(error)
    if is_first:
        log.warning(*words, exc_info=error)
    else:
        log.debug(*words)
