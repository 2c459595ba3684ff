"""Functions of the user's, named on the command line: the handler, hooks, and the setup of a process."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from claimjobs.batch.batch import Batch
from claimjobs.callables import COROUTINE, deferred, require_finished
from claimjobs.database.error_translation import reason
from claimjobs.errors import BadHandler, NothingDecided
from claimjobs.job import Done, Job
from claimjobs.log_events import SETUP_FAILED
from claimjobs.log_records import enable_loggers
from claimjobs.queue.map_file import load
from claimjobs.signals import Cancelled

Per = Literal["batch", "job"]
AT_ONCE: Final = 10
"""Jobs that an async function handles at once, if no number is given."""

log = logging.getLogger("claimjobs.handlers")


@dataclass(frozen=True)
class Handler:
    """The function that a consumer calls, with a whole batch or with each job."""

    function: Callable[..., Any]
    name: str
    per: Per
    connected: bool = False
    """Whether a function of a job has a parameter `connection`, for the open transaction."""
    concurrency: int | None = None
    """For how many jobs `Queue.work` calls it at once; None: one after the other, by `handle`."""

    def handle(self, batch: Batch) -> None:
        """Call the function with the batch, or with each job: it is done when its call returns, and failed if it
        raises. Raises NothingDecided if no job of the batch has an outcome then, and BadHandler.
        """
        if self.per == "job":
            for job in batch:
                self._handle_job(batch, job)
            return
        require_finished(self.function(batch), self.name)
        if len(batch.undecided) == len(batch):
            raise NothingDecided(
                f"{self.name} returned without an outcome for any job, so all were released: loop over the batch, or "
                "call `batch.done()`"
            )

    def _handle_job(self, batch: Batch, job: Job) -> None:
        given = {"connection": batch.connection} if self.connected else {}
        try:
            result = self.function(job, **given)
            require_finished(result, self.name)
            if isinstance(result, Done):
                batch.done(job, **result.columns)
        except Cancelled:
            raise
        except BaseException as error:
            batch.fail(job, error)


def handler_of(
    function: Any,
    name: str,
    per: Per | None = None,
    *,
    in_transaction: bool = False,
    concurrency: int | None = None,
) -> Handler:
    """A handler, from a function of a Batch or of one Job.

    `per` says which of them; without it, the type or the name of the first parameter decides. A function of a job may
    have a parameter `connection`: with `in_transaction` it gets the open transaction. With a `concurrency` above 1, or
    if it is an `async def`, it is called for many jobs at once. Raises BadHandler where the parameters do not fit,
    there is no transaction, a call would run nothing (generators), or it is no function.
    """
    if not callable(function):
        raise BadHandler(f"handler {name!r} is no function but {type(function).__name__}: name a function")
    kind = deferred(function)
    if kind not in (None, COROUTINE):
        raise BadHandler(
            f"handler {name!r} is {kind}, and calling it runs nothing: name a plain function or an `async def`"
        )
    try:  # a decorated function is called as its wrapper is, and may show its own parameters only as it was written
        written, called = inspect.signature(function), inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        raise BadHandler(
            f"the parameters of handler {name!r} cannot be read: name a function written in Python that calls it"
        ) from None
    per = per or _per_of(written, name)
    if kind is not None or (concurrency or 1) > 1:
        what = f"handler {name!r} {'is async' if kind else 'is called for many jobs at once'}"
        if per == "batch":
            raise BadHandler(f"{what}, and takes a batch: name a function of a job")
        if in_transaction:
            raise BadHandler(
                f"{what}, and `--hold transaction` handles one job after the other: leave that out, or name a plain "
                "function, without --concurrency"
            )
        _check_call(called, name, per)
        return Handler(function, name, per, concurrency=concurrency or AT_ONCE)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in called.parameters.values())
    names = called.parameters.keys() | (written.parameters.keys() if takes_any else set())
    connected = per == "job" and "connection" in names
    _check_call(called, name, per, *(["connection"] if connected else []))
    if connected and not in_transaction:
        raise BadHandler(
            f"handler {name!r} has a parameter `connection`, and no transaction holds its jobs: "
            "give `--hold transaction`"
        )
    return Handler(function, name, per, connected)


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


def _check_call(signature: inspect.Signature, name: str, first: Per, *more: str) -> None:
    """Raise BadHandler if the signature does not allow the call, because every job would fail."""
    try:
        signature.bind(None, **dict.fromkeys(more))
    except TypeError as error:
        call = ", ".join((first, *(f"{word}={word}" for word in more)))
        raise BadHandler(
            f"handler {name!r} has the parameters {signature}, and is called with ({call}): {error}; "
            "give every other parameter a default"
        ) from None


# --- hooks, and the setup of a process -------------------------------------------------------------------------


def function_named(reference: str | None, option: str, *parameters: str) -> Any:
    """The function that MODULE:FUNCTION names; None without one. Raises ReferenceNotFound, and BadHandler if it cannot
    be called with these parameters, or a call does not do its work.
    """
    if reference is None:
        return None
    function, name, call = load(reference), f"{option} {reference!r}", f"({', '.join(parameters)})"
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


@contextmanager
def entered(reference: str | None) -> Iterator[None]:
    """Enter the context manager of --setup for a `with` block. Raises ReferenceNotFound, and BadHandler if that fails.

    It is left without an exception, however the block ends: so it cannot suppress one, and a function decorated by
    `contextmanager` needs no `finally`. An error while it is left is logged, because the jobs are settled by then.
    """
    setup = function_named(reference, "--setup")
    if setup is None:
        yield
        return
    try:
        manager = setup()
        manager.__enter__()
    except Cancelled:
        raise
    except BaseException as error:
        cause = f"{type(error).__name__}: {reason(error)}"
        log.debug("--setup %r failed here:", reference, extra={"event": SETUP_FAILED, "error": cause}, exc_info=error)
        raise BadHandler(
            f"--setup {reference!r} failed before the first batch ({cause}): correct the function, and start again"
        ) from error
    finally:
        enable_loggers()  # it may have configured the log
    try:
        yield
    finally:
        try:
            manager.__exit__(None, None, None)
        except (Exception, SystemExit) as error:
            cause = f"{type(error).__name__}: {reason(error)}"
            fields = {"event": SETUP_FAILED, "error": cause}
            log.exception("--setup %r failed at the end of its process: %s", reference, cause, extra=fields)
