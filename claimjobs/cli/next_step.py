"""Commands in messages: they name the queue as the command that prints them was told to."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

GIVEN: Final = "claimjobs.given"
"""The key in `meta` of the options that describe the queue, by their names."""
DESCRIBING: Final = ("table", "map", "hold", "claims", "side_car")
"""The options that each command has which works on one queue."""
OF_ALL_TABLES: Final = ("upgrade-tables", "--")
"""How the words begin that name no queue."""
QUOTED: Final = re.compile(r"`claimjobs ([^`]+)`")


def remember(context: click.Context, given: Mapping[str, Any]) -> None:
    """Keep the options of this command for the commands that its messages name."""
    context.meta[GIVEN] = {name: given[name] for name in DESCRIBING if given.get(name)}


def command(words: str) -> str:
    """A command line in backquotes that works on the queue of this command: `claimjobs resume --table emails`."""
    context = click.get_current_context(silent=True)
    given: Mapping[str, Any] = {} if context is None else context.meta.get(GIVEN, {})
    more = [word for name, value in given.items() for word in _option(name, value, words)]
    return f"`{' '.join(['claimjobs', words, *map(shlex.quote, more)])}`"


def completed(message: str) -> str:
    """A message of the library, which does not know the options that describe the queue: its commands get them."""
    return QUOTED.sub(lambda found: _completed(found[1]), message)


def _completed(words: str) -> str:
    is_of_a_queue = not words.startswith(OF_ALL_TABLES) and "--ledger" not in words
    return command(words) if is_of_a_queue else f"`claimjobs {words}`"


def _option(name: str, value: Any, words: str) -> Iterator[str]:
    """The words of an option, unless the command has it already."""
    option = f"--{name.replace('_', '-')}"
    if option in words.split():
        return
    for one in value if isinstance(value, tuple) else (value,):
        yield from (option,) if one is True else (option, str(one))
