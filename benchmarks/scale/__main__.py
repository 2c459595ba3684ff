"""What one primary carries, by its cores, the kind of claims and the size of a batch.

The costs are read from the files that `python -m benchmarks --json FOLDER` writes. `--rate` says what is enough for so
many jobs a second, with a reserve. `--held` shows how far the model is from runs that were made; `--measure` makes such
runs first, on servers that it starts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.report import aligned
from benchmarks.scale import held, sizes
from benchmarks.scale.costs import NAMES, RESULTS, WITH_HANDLERS, NotMeasured, Results, read
from benchmarks.scale.sizes import HANDLERS_MS, Primary
from servers.sources import BACKENDS

BATCHES = (10, 100, 1_000)
CORES = (2, 4, 8)
ROUND_TRIP_MS = 0.5

Titled = tuple[str, Sequence[tuple[str, ...]]]
"""A table and its title."""


def main() -> None:
    """`python -m benchmarks.scale`"""
    parser = _parser()
    options = parser.parse_args()
    if options.rate and (options.batch or min(options.rate) <= 0):
        parser.error("--rate: jobs a second, above 0, for which the size of a batch is chosen: leave out --batch")
    options.batch = options.batch or BATCHES
    try:
        _run(options)
    except NotMeasured as error:
        parser.error(str(error))


def _run(options: argparse.Namespace) -> None:
    if options.measure:
        _measure(options)
    for backend in options.backend:
        results = read(backend, options.results)
        for title, lines in _chosen(options)(results, options):
            print(f"{results.title}: {title}", aligned(lines), sep="\n", end="\n\n")


def _chosen(options: argparse.Namespace) -> Callable[[Results, argparse.Namespace], Iterator[Titled]]:
    if options.held or options.measure:
        return _held
    return _steps if options.rate else _sizes


def _steps(results: Results, options: argparse.Namespace) -> Iterator[Titled]:
    title = f"a primary that carries {sizes.RESERVE} times the rate, {options.round_trip_ms:g} ms from its consumers"
    yield title, list(sizes.step_lines(results, options.rate, options.round_trip_ms / 1000, options.handler_ms))


def _sizes(results: Results, options: argparse.Namespace) -> Iterator[Titled]:
    primaries = [Primary(cores, options.round_trip_ms / 1000) for cores in options.cores]
    found = [
        sizes.size(results, claims, batch, primary, handlers_ms=options.handler_ms)
        for claims in options.claims
        for batch in options.batch
        for primary in primaries
    ]
    title = f"a primary that is {sizes.BUSY:.0%} busy, {options.round_trip_ms:g} ms from its consumers"
    yield title, list(sizes.lines(found))


def _held(results: Results, _options: argparse.Namespace) -> Iterator[Titled]:
    yield "drains, predicted from CPU costs", list(held.lines(list(held.drains(results))))
    yield "two consumers, predicted from CPU costs", list(held.lines(list(held.by_batch(results))))
    yield "one consumer that is often away, predicted from CPU costs", list(held.lines(list(held.alone(results))))
    if runs := list(held.with_handlers(results)):
        yield "drains with a handler, predicted from those without", list(held.lines(runs))


def _measure(options: argparse.Namespace) -> None:
    """Run the scenario whose runs the model is held against, into the folder of results."""
    from benchmarks import command  # noqa: PLC0415 - it finds servers, which takes a second

    given = argparse.Namespace(backend=options.backend, small=options.small, full=False, json=options.results)
    command.run([WITH_HANDLERS], given, {})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--backend", nargs="+", choices=BACKENDS, default=["postgres", "mysql"])
    parser.add_argument("--claims", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--batch", nargs="+", type=int, help="measured sizes, such as 10 100 500 1000")
    parser.add_argument("--cores", nargs="+", type=int, default=CORES, help="of the primary")
    parser.add_argument("--round-trip-ms", type=float, default=ROUND_TRIP_MS, help="from a consumer to the primary")
    parser.add_argument("--handler-ms", nargs="+", type=float, default=HANDLERS_MS, help="that a job takes")
    parser.add_argument("--rate", nargs="+", type=float, help="instead: what is enough for so many jobs a second")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of measured figures")
    parser.add_argument("--held", action="store_true", help="instead: predictions beside what was measured")
    parser.add_argument("--measure", action="store_true", help="as --held, after new runs with handlers; 10 minutes")
    parser.add_argument("--small", action="store_true", help="with --measure: seconds, to see that it works")
    return parser


if __name__ == "__main__":
    main()
