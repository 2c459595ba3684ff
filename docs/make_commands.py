"""Fill docs/commands.md with what the commands say of themselves. Run `python -m docs.make_commands` in the repository.

What stands between a pair of marks, `<!-- options: NAME -->` and `<!-- options: end -->`, is made: how the command is
called, its help and its own options. The rest of the page is written by hand.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from claimjobs.cli.exits import MEANINGS
from claimjobs.cli.main import COMMANDS, main

PAGE: Final = Path(__file__).with_name("commands.md")
MARKS: Final = r"(?P<begin><!-- options: (?P<name>[\w -]+) -->)\n.*?(?P<end><!-- options: end -->)"
BEFORE, EVERYWHERE, EXITS = "before a command", "every command", "exit codes"
"""Names of parts that belong to no single command."""
PLACEHOLDERS: Final = {"integer range": "N", "float range": "N", "path": "FILE", "filename": "FILE", "text": "TEXT"}


def page() -> str:
    """The page as it should be."""
    return filled(PAGE.read_text(encoding="utf-8"))


def filled(page: str) -> str:
    """A page with what stands between its marks made anew. Raises LookupError for the name of no part."""
    parts = dict(_parts())

    def made(match: re.Match[str]) -> str:
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(parts[match["name"]]))
        return f"{match['begin']}\n\n{text.strip()}\n\n{match['end']}"

    return re.sub(MARKS, made, page, flags=re.DOTALL)


def _parts() -> Iterator[tuple[str, list[str]]]:
    commands = dict(_commands())
    of_a_queue = [
        c for c in commands.values() if not isinstance(c, click.Group) and "table" in {o.name for o in c.params}
    ]
    shared = set.intersection(*({*map(_row, _options(command))} for command in of_a_queue))
    yield BEFORE, _table(map(_row, _options(main)))
    yield EVERYWHERE, _table(row for row in map(_row, _options(commands["status"])) if row in shared)
    yield EXITS, ["| code | meaning |\n| --- | --- |", *(f"| {code} | {text} |" for code, text in MEANINGS.items())]
    for name, command in commands.items():
        yield name, [*_usage(name, command), *_help(command), *_own_options(command, shared)]


def _commands() -> Iterator[tuple[str, click.Command]]:
    """Each by the words after `claimjobs`; of a group itself and its own."""
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        if command is None:
            raise LookupError(name)
        yield name, command
        for own, part in command.commands.items() if isinstance(command, click.Group) else ():
            yield f"{name} {own}", part


def _usage(name: str, command: click.Command) -> Iterator[str]:
    if not isinstance(command, click.Group):
        arguments = (p for p in command.params if isinstance(p, click.Argument))
        words = "".join(f" {p.make_metavar(click.Context(command))}" for p in arguments)
        yield f"```text\nclaimjobs {name} [OPTIONS]{words}\n```\n"


def _help(command: click.Command) -> Iterator[str]:
    """The paragraphs; one that click is not to fold holds the examples."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            examples = [line.strip() for line in paragraph.splitlines()[2:]]
            yield "\n".join(["```sh", *examples, "```", ""])
        else:
            yield paragraph + "\n"


def _own_options(command: click.Command, shared: set[str]) -> list[str]:
    rows = [row for row in map(_row, _options(command)) if row not in shared]
    return _table(rows) if rows and not isinstance(command, click.Group) else []


def _table(rows: Iterable[str]) -> list[str]:
    return ["| option | |\n| --- | --- |", *rows]


def _options(command: click.Command) -> Iterator[click.Option]:
    return (option for option in command.params if isinstance(option, click.Option))


def _row(option: click.Option) -> str:
    return f"| {_names(option)} | {_cell(option.help or '')}{_default(option)} |"


def _names(option: click.Option) -> str:
    value = "" if option.is_flag else f" {_cell(option.metavar or _placeholder(option.type))}"
    return f"`{', '.join(option.opts)}{value}`"


def _placeholder(kind: click.ParamType[Any]) -> str:
    return "|".join(kind.choices) if isinstance(kind, click.Choice) else PLACEHOLDERS.get(kind.name, kind.name.upper())


def _default(option: click.Option) -> str:
    told = option.show_default if isinstance(option.show_default, str) else option.default
    return f" Default: `{told}`." if isinstance(told, (str, int, float)) and not isinstance(told, bool) else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stderr.write(f"{PAGE}: written\n")
