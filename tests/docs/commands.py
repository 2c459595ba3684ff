"""Every `claimjobs ...` that the documentation and the help texts show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from claimjobs.cli.main import COMMANDS, main
from tests.docs.markdown import PAGES, blocks, prose


@dataclass(frozen=True)
class Shown:
    """A command line, and where it is shown."""

    where: str
    line: str

    def __str__(self) -> str:
        return f"{self.where} {self.line}"

    @property
    def words(self) -> list[str]:
        """The words after `claimjobs`, up to a pipe or a redirection."""
        words = shlex.split(self.line[self.line.index("claimjobs ") :], comments=True)[1:]
        ends = [place for place, word in enumerate(words) if word in {"|", ">", "&&", ";"}]
        return words[: min(ends, default=len(words))]


def shown() -> list[Shown]:
    """All of them."""
    return [*_in_pages(), *_in_help()]


def _in_pages() -> Iterator[Shown]:
    for page in PAGES:
        for block in blocks(page, "sh"):
            for number, line in enumerate(block.text.splitlines(), block.line):
                if re.match(r"(.*\| )?claimjobs ", line):
                    yield Shown(f"{page.name}:{number}", line)


def in_prose(page: Path) -> list[Shown]:
    """Those that a page names within a sentence, which may leave out what a command needs."""
    named = re.findall(r"`(claimjobs [^`]+)`", re.sub(r"\s+", " ", prose(page)))
    return [Shown(page.name, line) for line in named]


def _in_help() -> Iterator[Shown]:
    for words, found in every().items():
        for line in (found.help or "").splitlines():
            if re.match(r"\s+(.*\| )?claimjobs ", line):
                yield Shown(f"{' '.join(words)} --help", line.strip())


def every() -> dict[tuple[str, ...], click.Command]:
    """All commands by their words; in place of a group each of its own."""
    return dict(_parts())


def _parts() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in COMMANDS:
        found = main.get_command(click.Context(main), name)
        assert found is not None, name
        if isinstance(found, click.Group):
            yield from (((name, own), part) for own, part in found.commands.items())
        else:
            yield (name,), found


def options(words: tuple[str, ...]) -> set[str]:
    """The long options of a command."""
    return {word for option in every()[words].params for word in option.opts if word.startswith("--")}
