"""Errors of a program that uses the library: wrong arguments, and handlers that do not do their work."""

from __future__ import annotations

from typing import Any

from claimjobs.errors.base import ClaimjobsError


class BadSize(ClaimjobsError, ValueError):
    """A batch size is not a positive whole number."""

    def __init__(self, size: Any) -> None:
        super().__init__(f"a batch of {size!r} jobs cannot be claimed: give a whole number from 1")


class NoTransaction(ClaimjobsError, TypeError):
    """What was given for the caller's transaction has none: nothing is sent."""

    def __init__(self, given: str, step: str) -> None:
        super().__init__(f"rows are written in a transaction that you commit, and {given} has none: {step}")


class CrossedFork(ClaimjobsError):
    """A Queue was used in another process than the one that made it."""

    def __init__(self) -> None:
        super().__init__(
            "this Queue was made in another process, and its connection must not be shared: "
            "make a Queue in each process (and start processes with `spawn`)"
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
    """The object that a handler's name leads to cannot handle jobs."""


class NothingDecided(ClaimjobsError):
    """A handler returned without an outcome for any job of its batch."""

    def __init__(self, handler: str) -> None:
        super().__init__(
            f"{handler} returned without an outcome for any job, so all were released: "
            "loop over the batch, or call `batch.done()`"
        )


class NoWakeTrigger(ClaimjobsError):
    """`setup-tables --wake-trigger` on a database in which no trigger can wake consumers."""

    def __init__(self, title: str, why: str) -> None:
        super().__init__(
            f"{title} can have no trigger that wakes consumers, because {why}; there is none to make or to drop: "
            "change the producers to `enqueue`, which wakes consumers; other rows are found some 5 s later"
        )


class SetupFailed(ClaimjobsError):
    """The context manager of `--setup` could not be entered by a consumer process."""

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(
            f"--setup {name!r} failed before the first batch ({cause}): correct the function, and start again"
        )


class UnfinishedHandler(ClaimjobsError):
    """A handler returned a coroutine, another awaitable or a generator, so its work was not done."""

    def __init__(self, handler: str, kind: str) -> None:
        super().__init__(
            f"{handler} returned {kind}, which nothing runs: let it do the work before it returns, "
            "with `asyncio.run(...)` where that is async"
        )


class BadOnDone(ClaimjobsError, ValueError):
    """`on_done` returned a value that does not say what happens to the done jobs. Its transaction is rolled back."""

    def __init__(self, found: str) -> None:
        super().__init__(f"on_done returned {found}, and nothing was written: return 'delete', 'keep' or None")


class ExtraMissing(ClaimjobsError, ImportError):
    """A package is not installed that only an optional part of claimjobs needs."""

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(f"{package} is not installed: run `pip install 'claimjobs[{extra}]'`")


class PortUnusable(ClaimjobsError):
    """A port for monitoring cannot be listened on: another program has it, or the address is not this machine's."""

    def __init__(self, host: str, port: int, why: str) -> None:
        super().__init__(f"port {port} of {host} cannot be listened on ({why}): choose another port or address")
