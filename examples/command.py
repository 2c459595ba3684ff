"""The command line of an example: `python -m examples.NAME`.

Only the main process imports this module: it takes a second, because it imports what finds a server.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from benchmarks import machine
from examples.report import Figure, alone
from servers import start
from servers.sources import BACKENDS


class Example(Protocol):
    """The interface of the module `run` of each example."""

    ARTICLE: str
    """One line: who wrote what, and when."""
    DEFAULTS: Mapping[str, Any]
    """The article's sizes, by the names of the command's options."""
    SMALL: Mapping[str, Any]
    """The sizes that are smaller for a short run."""

    def options(self, parser: argparse.ArgumentParser) -> None:
        """The command's options."""

    def run(self, url: str, options: argparse.Namespace) -> Iterator[Figure]:
        """Run the example; yield one figure after the other. Raises WrongResult."""


def command(name: str, example: Example) -> None:
    """`python -m examples.NAME`: run one example on one database, print its figures."""
    parser = argparse.ArgumentParser(prog=f"python -m examples.{name}", description=example.ARTICLE)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--backend", choices=BACKENDS, default="postgres", help="start a server of this kind")
    where.add_argument("--url", help="use a database of your own; the example's tables in it are dropped")
    example.options(parser)
    parser.set_defaults(**example.DEFAULTS)
    options = parser.parse_args()
    before = machine.load()
    with database(options) as (title, url):
        print(*[title, *machine.remarks(before)], sep="\n", file=sys.stderr)
        print(alone(title, list(printed(example.run(url, options)))))


def defaults(example: Example, *, small: bool = False) -> argparse.Namespace:
    """The default options of an example: the article's sizes."""
    return argparse.Namespace(**{**example.DEFAULTS, **(example.SMALL if small else {})})


@contextmanager
def database(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The name and the URL of the database that was asked for."""
    if options.url:
        yield "your database", options.url
    else:
        with start(options.backend) as server:
            yield f"{server.backend} {server.version}", server.url


def heading(title: str, before: float) -> str:
    """A heading: what was run, and where. `before`: the load average before the start."""
    return "\n".join([shlex.join(["python", "-m", "examples", *sys.argv[1:]]), title, *machine.remarks(before)])


def printed(figures: Iterator[Figure]) -> Iterator[Figure]:
    """The figures, each also printed on stderr."""
    for figure in figures:
        print(f"{figure.what}: {figure.here}", file=sys.stderr, flush=True)
        yield figure
