"""`make examples`: the five articles at their own size, on Postgres and MySQL, the author's figures beside ours."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import cast

from benchmarks import machine
from examples.command import Example, defaults, heading, told
from examples.report import Figure, together
from servers import start
from servers.sources import BACKENDS, Backend

NAMES = ("s1_depesz", "s2_digoal", "s3_isotopp", "s4_tiikkaja", "s5_leontrolski")


def main() -> None:
    options = _parser().parse_args()
    before = machine.load()
    examples = [cast("Example", import_module(f"examples.{name}.run")) for name in options.only or NAMES]
    found: dict[str, dict[str, list[Figure]]] = {example.ARTICLE: {} for example in examples}
    titles = [_work_through(backend, examples, found) for backend in options.backend]
    print(heading(", ".join(titles), before), together(found, titles), sep="\n\n")


def _work_through(backend: Backend, examples: list[Example], found: dict[str, dict[str, list[Figure]]]) -> str:
    """Run the examples on one server, and put their figures under its name."""
    with start(backend) as server:
        title = f"{backend} {server.version}"
        for example in examples:
            print(f"{example.ARTICLE}, {title}", file=sys.stderr)
            found[example.ARTICLE][title] = list(told(example.run(server.url, defaults(example))))
    return title


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples", description=__doc__)
    parser.add_argument("--backend", nargs="+", choices=BACKENDS, default=["postgres", "mysql"])
    parser.add_argument("--only", nargs="+", choices=NAMES, help="not all of them")
    return parser


if __name__ == "__main__":
    main()
