"""What all errors share: their base class, and how a message writes names, keys and options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
