"""Errors of a program that uses the library: wrong arguments, and handlers that do not do their work."""

from __future__ import annotations

from claimjobs.errors.base import ClaimjobsError


class BadArgument(ClaimjobsError, ValueError):
    """A value that was given, or that a function of the user's returned, cannot be meant."""


def not_unique_by(table: str, column: str) -> BadArgument:
    """The error for a unique key that would not keep its value, because claimjobs writes the column."""
    return BadArgument(
        f"jobs of table {table!r} cannot be unique by {column!r}, which claimjobs changes when it claims or retries a "
        "job: name columns of their payload"
    )


class NoTransaction(ClaimjobsError, TypeError):
    """What was given for the caller's transaction has none: nothing is sent."""

    def __init__(self, given: str, step: str) -> None:
        super().__init__(f"rows are written in a transaction that you commit, and {given} has none: {step}")


class CrossedFork(ClaimjobsError):
    """A Queue, or its Replica, was used in another process than the one that made it."""

    def __init__(self) -> None:
        super().__init__(
            "this Queue, or its Replica, was made in another process, and its connection must not be shared: "
            "make a Queue in each process, with a Replica of its own (and start processes with `spawn`)"
        )


class PoolUnfit(ClaimjobsError):
    """The pool of an engine has too few connections for a Queue, or gives one to two users at a time."""


class FolderGone(ClaimjobsError):
    """The working folder of the command was deleted."""

    def __init__(self) -> None:
        super().__init__(
            "the working folder was deleted, so no process can be started in it: choose a folder that exists, and "
            "start again there"
        )


class ReferenceNotFound(ClaimjobsError):
    """No object is found at `MODULE:ATTRIBUTE`."""

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(f"{reference!r} cannot be used: {reason}; check the spelling and the folder you are in")


class BadHandler(ClaimjobsError):
    """A handler, or another function of the user's, cannot do its work: its form is wrong, or it fails at once."""


class NothingDecided(ClaimjobsError):
    """A handler returned without an outcome for any job of its batch."""

    def __init__(self, handler: str) -> None:
        super().__init__(
            f"{handler} returned without an outcome for any job, so all were released: "
            "loop over the batch, or call `batch.done()`"
        )


class ExtraMissing(ClaimjobsError, ImportError):
    """A package is not installed that only an optional part of claimjobs needs."""

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(f"{package} is not installed: run `pip install 'claimjobs[{extra}]'`")


class PortUnusable(ClaimjobsError):
    """A port for monitoring cannot be listened on: another program has it, or the address is not this machine's."""

    def __init__(self, host: str, port: int, why: str) -> None:
        super().__init__(f"port {port} of {host} cannot be listened on ({why}): choose another port or address")


def unfinished_handler(handler: str, kind: str) -> BadHandler:
    """The error for a handler that returned a coroutine, another awaitable or a generator: its work was not done."""
    return BadHandler(
        f"{handler} returned {kind}, which nothing runs: let it do the work before it returns, with "
        "`asyncio.run(...)` where that is async"
    )
