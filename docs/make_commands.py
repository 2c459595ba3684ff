"""Write docs/commands.md from the commands themselves. Run `python -m docs.make_commands` in the repository."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from claimjobs.cli.exits import MEANINGS
from claimjobs.cli.main import COMMANDS, main

PAGE: Final = Path(__file__).with_name("commands.md")

HEAD: Final = """\
# The commands

Made by `python -m docs.make_commands` from what `claimjobs COMMAND --help` says; do not edit. The tests fail when
this page is stale.

Standard output is data, standard error is everything else. Passwords are shown in neither.
"""
PLACEHOLDERS: Final = {"integer range": "N", "float range": "N", "path": "FILE", "text": "TEXT"}


def page() -> str:
    """The page."""
    lines = [HEAD, *_common(), *(line for name in COMMANDS for line in _section(name)), *_exits(), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _common() -> Iterator[str]:
    yield "\n## claimjobs\n"
    yield "Options that stand before the command: `claimjobs --verbose status`.\n"
    yield from _options(main)


def _section(name: str) -> Iterator[str]:
    command = main.get_command(click.Context(main), name)
    if command is None:
        raise LookupError(name)
    if not isinstance(command, click.Group):
        yield from _command(name, command)
        return
    yield f"\n## claimjobs {name}\n"
    yield from _help(command)
    for own, part in command.commands.items():
        yield from _command(f"{name} {own}", part)


def _command(name: str, command: click.Command) -> Iterator[str]:
    arguments = "".join(f" {p.make_metavar(click.Context(command))}" for p in command.params if _is_argument(p))
    yield f"\n## claimjobs {name}\n"
    yield f"```text\nclaimjobs {name} [OPTIONS]{arguments}\n```\n"
    yield from _help(command)
    yield from _options(command)


def _help(command: click.Command) -> Iterator[str]:
    """The paragraphs; one that click is not to fold holds the examples."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            examples = [line.strip() for line in paragraph.splitlines()[2:]]
            yield "\n".join(["```sh", *examples, "```", ""])
        else:
            yield paragraph + "\n"


def _options(command: click.Command) -> Iterator[str]:
    yield "| option | |\n| --- | --- |"
    for option in command.params:
        if isinstance(option, click.Option):
            yield f"| {_names(option)} | {_cell(option.help or '')}{_default(option)} |"
    yield ""


def _names(option: click.Option) -> str:
    value = "" if option.is_flag else f" {_cell(option.metavar or _placeholder(option.type))}"
    return f"`{', '.join(option.opts)}{value}`"


def _placeholder(kind: click.ParamType[Any]) -> str:
    return "|".join(kind.choices) if isinstance(kind, click.Choice) else PLACEHOLDERS.get(kind.name, kind.name.upper())


def _default(option: click.Option) -> str:
    told = option.show_default if isinstance(option.show_default, str) else option.default
    return f" Default: `{told}`." if option.show_default else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def _is_argument(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument)


def _exits() -> Iterator[str]:
    yield "\n## Exit codes\n"
    yield "| code | meaning |\n| --- | --- |"
    for code, meaning in MEANINGS.items():
        yield f"| {code} | {meaning} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stderr.write(f"{PAGE}: written\n")
