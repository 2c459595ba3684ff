"""Errors of a program that uses the library: wrong arguments, and handlers that do not do their work."""

from __future__ import annotations

from typing import Final

from claimjobs.errors.base import ClaimjobsError


class BadArgument(ClaimjobsError, ValueError):
    """A value that was given, or that a function of the user's returned, cannot be meant."""


class CrossedFork(ClaimjobsError):
    """A Queue, or its Replica, was used in another process than the one that made it."""

    def __init__(self) -> None:
        super().__init__(
            "this Queue, or its Replica, was made in another process, and its connection must not be shared: "
            "make a Queue in each process, with a Replica of its own (and start processes with `spawn`)"
        )


FOLDER_GONE: Final = (
    "the working folder was deleted, so no process can be started in it: choose one that exists, and start again"
)


class ReferenceNotFound(ClaimjobsError):
    """No object is found at `MODULE:ATTRIBUTE`."""

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(f"{reference!r} cannot be used: {reason}; check the spelling and the folder you are in")


class BadHandler(ClaimjobsError):
    """A handler, or another function of the user's, cannot do its work: its form is wrong, or it fails at once."""


class NothingDecided(ClaimjobsError):
    """A handler returned without an outcome for any job of its batch."""


class ExtraMissing(ClaimjobsError, ImportError):
    """A package is not installed that only an optional part of claimjobs needs."""
