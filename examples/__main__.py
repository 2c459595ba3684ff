"""`make examples`: the five articles at their own size, on Postgres and MySQL, the author's figures beside ours."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import cast

from benchmarks import machine
from examples.command import Example, defaults, heading, printed
from examples.report import Figure, together
from servers import start
from servers.sources import BACKENDS, Backend

NAMES = ("s1_depesz", "s2_digoal", "s3_isotopp", "s4_tiikkaja", "s5_leontrolski")


Found = dict[str, dict[str, list[Figure]]]
"""The figures of each article, by the server that they were taken on."""


def main() -> None:
    options = _parser().parse_args()
    before = machine.load()
    found: Found = {}
    titles = [_work_through(backend, options, found) for backend in options.backend]
    print(heading(", ".join(titles), before), together(found, titles), sep="\n\n")


def _work_through(backend: Backend, options: argparse.Namespace, found: Found) -> str:
    """Run the examples on one server, and put their figures under its name."""
    with start(backend) as server:
        title = f"{backend} {server.version}"
        for example in _chosen(options):
            print(f"{example.ARTICLE}, {title}", file=sys.stderr)
            figures = example.run(server.url, defaults(example, small=options.small))
            found.setdefault(example.ARTICLE, {})[title] = list(printed(figures))
    return title


def _chosen(options: argparse.Namespace) -> list[Example]:
    return [cast("Example", import_module(f"examples.{name}.run")) for name in options.only or NAMES]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples", description=__doc__)
    parser.add_argument("--backend", nargs="+", choices=BACKENDS, default=["postgres", "mysql"])
    parser.add_argument("--small", action="store_true", help="not the articles' sizes, but some minutes")
    parser.add_argument("--only", nargs="+", choices=NAMES, help="not all of them")
    return parser


if __name__ == "__main__":
    main()
