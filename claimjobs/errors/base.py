"""What all errors share: their base class, and how a message writes names, keys and options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from claimjobs.key_text import key_in_message

Quote = Callable[[str], str]
"""Writes a name as the database needs it in a statement: `order`, or a name with capitals, needs quotes."""


class ClaimjobsError(Exception):
    """The base of every error that claimjobs itself raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Without this, unpickling would call the constructor with the finished message in place of the thing.
        return _unpickled, (type(self), self.args, vars(self))


def _unpickled(kind: type[ClaimjobsError], args: tuple[Any, ...], attributes: dict[str, Any]) -> ClaimjobsError:
    error = kind.__new__(kind, *args)
    vars(error).update(attributes)
    return error


def unique_index(table: str, columns: Sequence[str], quote: Quote) -> str:
    """The statement that makes a unique index over these columns."""
    name = "_".join((table.rpartition(".")[2], *columns))
    return f"CREATE UNIQUE INDEX {quote(name)} ON {quoted(table, quote)} ({', '.join(map(quote, columns))})"


def quoted(table: str, quote: Quote) -> str:
    """A table's name, with its schema if it has one."""
    return ".".join(map(quote, table.split(".")))


def first_keys(keys: Sequence[Any]) -> str:
    """The first three keys, as text."""
    return ", ".join(key_in_message(key) for key in keys[:3]) + (", ..." if len(keys) > 3 else "")


def column_option(role: str) -> str:
    """The text that tells a user how to name the column of a role: in Python, and in a map file."""
    return f"Columns({role}=...), or [columns] of the --map file"


def state_option(state: str) -> str:
    """The text that tells a user how to name the value of a state: in Python, and in a map file."""
    return f"Columns(states={{{state!r}: ...}}), or [states] of the --map file"


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
