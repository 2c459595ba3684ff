"""Functions of the user's, named on the command line: the handler, hooks, and the setup of a process."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from claimjobs.batch.batch import Batch
from claimjobs.callables import checked_kind, deferred, require_finished
from claimjobs.database.error_translation import reason
from claimjobs.errors import BadHandler, NothingDecided
from claimjobs.job import Done, Job
from claimjobs.log_events import SETUP_FAILED
from claimjobs.log_records import enable_loggers
from claimjobs.queue.map_file import load
from claimjobs.signals import Cancelled, end_if_forked

Per = Literal["batch", "job"]
DEFAULT_CONCURRENCY: Final = 10
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
        if self.per == "batch":
            require_finished(self.function(batch), self.name)
            if len(batch.undecided) == len(batch):
                raise NothingDecided(
                    f"{self.name} returned without an outcome for any job, so all were released: loop over the batch, "
                    "or call `batch.done()`"
                )
            return
        process = os.getpid()
        for job in batch:
            given = {"connection": batch.connection} if self.connected else {}
            try:
                result = self.function(job, **given)
                require_finished(result, self.name)
                if isinstance(result, Done):
                    batch.done(job, **result.columns)
            except Cancelled:
                raise
            except BaseException as error:
                end_if_forked(process, error)
                batch.fail(job, error)


def handler_of(
    function: Any, name: str, per: Per | None = None, *, in_transaction: bool = False, concurrency: int | None = None
) -> Handler:
    """A handler, from a function of a Batch or of one Job.

    `per` says which of them; without it, the type or the name of the first parameter decides. A function of a job may
    have a parameter `connection`: with `in_transaction` it gets the open transaction. With a `concurrency` above 1, or
    if it is an `async def`, it is called for many jobs at once. Raises BadHandler where the parameters do not fit,
    there is no transaction, a call would run nothing (generators), or it is no function.
    """
    what = f"handler {name!r}"
    kind = checked_kind(function, what)
    # A decorated function is called as its wrapper is, and may show only its own parameters as it was written.
    written, called = _signature(function, what), _signature(function, what, follow_wrapped=False)
    per = per or _per_of(written, what)
    if kind is not None or (concurrency or 1) > 1:
        pooled = f"{what} {'is async' if kind else 'is called for many jobs at once'}"
        if per == "batch":
            raise BadHandler(f"{pooled}, and takes a batch: name a function of a job")
        if in_transaction:
            raise BadHandler(
                f"{pooled}, and `--hold transaction` handles one job after the other: leave that out, or name a plain "
                "function, without --concurrency"
            )
        _check_call(called, what, per)
        return Handler(function, name, per, concurrency=concurrency or DEFAULT_CONCURRENCY)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in called.parameters.values())
    names = called.parameters.keys() | (written.parameters.keys() if takes_any else set())
    connected = per == "job" and "connection" in names
    _check_call(called, what, per, connected=connected)
    if connected and not in_transaction:
        raise BadHandler(
            f"{what} has a parameter `connection`, and no transaction holds its jobs: give `--hold transaction`, or "
            "the Queue hold='transaction'"
        )
    return Handler(function, name, per, connected)


def _per_of(signature: inspect.Signature, what: str) -> Per:
    parameters = list(signature.parameters.values())
    if parameters:
        hint = parameters[0].annotation
        words = {hint if isinstance(hint, str) else getattr(hint, "__name__", ""), parameters[0].name}
        if words & {Batch.__name__, "batch"}:
            return "batch"
        if words & {Job.__name__, "job"}:
            return "job"
    raise BadHandler(
        f"{what} may be for batches or for jobs: call its parameter `batch` or `job`, or give the command `--per "
        "batch|job`"
    )


def _check_call(signature: inspect.Signature, what: str, *parameters: str, connected: bool = False) -> None:
    """Raise BadHandler if the signature does not allow the call, because every one would fail."""
    more = {"connection": "connection"} if connected else {}
    try:
        signature.bind(*parameters, **more)
    except TypeError as error:
        call = ", ".join((*parameters, *(f"{word}={word}" for word in more)))
        raise BadHandler(
            f"{what} has the parameters {signature}, and is called with ({call}): {error}; "
            "give every other parameter a default"
        ) from None


def _signature(function: Any, what: str, *, follow_wrapped: bool = True) -> inspect.Signature:
    try:
        return inspect.signature(function, follow_wrapped=follow_wrapped)
    except (TypeError, ValueError):
        raise BadHandler(
            f"the parameters of {what} cannot be read: name a function written in Python that calls it"
        ) from None


# --- hooks, and the setup of a process -------------------------------------------------------------------------


def function_named(reference: str | None, option: str, *parameters: str) -> Any:
    """The function that MODULE:FUNCTION names; None without one. Raises ReferenceNotFound, and BadHandler if it cannot
    be called with these parameters, or a call does not do its work.
    """
    if reference is None:
        return None
    function, what = load(reference), f"{option} {reference!r}"
    kind = deferred(function) or (None if callable(function) else f"no function but {type(function).__name__}")
    if kind is not None:
        raise BadHandler(f"{what} is {kind}: name a plain function that is called with ({', '.join(parameters)})")
    _check_call(_signature(function, what), what, *parameters)
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
