"""The commands: `python -m benchmarks` for all scenarios, `python -m benchmarks.NAME` for one.

Imported by the main process alone: what finds a server takes a second to import, which a worker need not.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import crew, machine, profiled, report, scenario
from benchmarks.report import Sample
from benchmarks.scenario import Record, Scenario, named
from servers import Server, start
from servers.sources import BACKENDS, Backend

JOBS_TO_PROFILE = 60_000


def all_of_them() -> None:
    """`python -m benchmarks`"""
    parser = _parser("benchmarks", "Every scenario on every server, one after the other; twenty minutes.")
    parser.add_argument("--only", nargs="+", choices=scenario.NAMES, help="not all of them", default=scenario.NAMES)
    parser.add_argument("--repeat", type=int, metavar="N", help="runs of each contestant, where a scenario repeats")
    parser.add_argument("--profile", action="store_true", help="instead: where a consumer's time goes")
    options = parser.parse_args()
    if options.profile:
        show_profiles(options.backend, JOBS_TO_PROFILE)
        return
    run(options.only, options, {"repeat": options.repeat} if options.repeat else {})


def alone(name: str) -> None:
    """`python -m benchmarks.NAME`"""
    module = named(name)
    parser = _parser(f"benchmarks.{name}", module.TITLE)
    for size, default in module.SIZES.items():
        _add(parser, size, default)
    options = parser.parse_args()
    given = {size: getattr(options, size) for size in module.SIZES}
    run([name], options, {size: value for size, value in given.items() if value is not None})


def profile() -> None:
    """`python -m benchmarks.profiled`"""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiled", description=profiled.__doc__)
    parser.add_argument("--backend", nargs="+", choices=BACKENDS, default=["postgres", "mysql"])
    parser.add_argument("--jobs", type=int, default=JOBS_TO_PROFILE)
    options = parser.parse_args()
    show_profiles(options.backend, options.jobs)


def show_profiles(backends: Sequence[Backend], jobs: int) -> None:
    """Where the time of one consumer of each contestant goes, on each of the servers."""
    print("\n".join(machine.remarks(machine.load())), end="\n\n")
    for backend in backends:
        with start(backend) as server:
            print(f"{server.backend} {server.version}, one consumer, {jobs:,} jobs")
            print(profiled.text(dict(profiled.profiles(server, jobs))), end="\n\n", flush=True)


def run(names: Sequence[str], options: argparse.Namespace, given: Mapping[str, Any]) -> None:
    """Run these scenarios on each of the servers; print tables, write files."""
    crew.warm()
    before = machine.load()
    print("\n".join([_line(), machine.name(), *machine.remarks(before)]), end="\n\n")
    for backend in options.backend:
        with start(backend) as server:
            for name in names:
                record = _record(name, server, _sizes(name, options, given), before)
                show(record)
                if options.json:
                    record.write(options.json)


def _sizes(name: str, options: argparse.Namespace, given: Mapping[str, Any]) -> dict[str, Any]:
    sizes = scenario.sizes_of(named(name), small=options.small, full=options.full)
    return {**sizes, **{size: value for size, value in given.items() if size in sizes}}


def _record(name: str, server: Server, sizes: Mapping[str, Any], before: float) -> Record:
    chosen = scenario.for_server(sizes, server.backend)
    began = time.monotonic()
    samples = list(_told(named(name), server, chosen))
    facts = {
        "machine": machine.name(),
        "versions": machine.versions(),
        "durability": machine.durability(server.backend, server.url),
        "sizes": vars(chosen),
        "remarks": machine.remarks(before),
        "seconds": round(time.monotonic() - began),
    }
    title = f"{server.backend} {server.version} ({server.how})"
    return Record(name, server.backend, title, _line(), facts, samples)


def _told(module: Scenario, server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """The samples, each shown on stderr as it comes."""
    for sample in module.measure(server, sizes):
        what = f"{server.backend}: {sample.at:,.10g} {module.VARIES}, {sample.contestant}"
        print(f"{what}: {report.said(sample.value)} {module.UNIT}", file=sys.stderr, flush=True)
        yield sample


def show(record: Record) -> None:
    """What was run, and its table."""
    durability = ", ".join(f"{name}={value}" for name, value in record.facts["durability"].items())
    sizes = ", ".join(f"{name} {value}" for name, value in record.facts["sizes"].items())
    print(f"{record.module.TITLE}\n{record.server}; {durability}\n{sizes}; {record.facts['seconds']} s")
    print(report.aligned(record.lines()), end="\n\n", flush=True)


def _line() -> str:
    """The command line, as it can be given again."""
    module = Path(sys.argv[0]).stem.replace("__main__", "")
    return shlex.join(["python", "-m", ".".join(filter(None, ["benchmarks", module])), *sys.argv[1:]])


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument("--backend", nargs="+", choices=BACKENDS, default=["postgres", "mysql"])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--small", action="store_true", help="seconds, to see that it works: its figures mean nothing")
    size.add_argument("--full", action="store_true", help="larger sizes, where time does not matter")
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="write everything there, a file a table")
    return parser


def _add(parser: argparse.ArgumentParser, size: str, default: Any) -> None:
    """A size of the scenario as an option."""
    option = "--" + size.replace("_", "-")
    one = next(iter(default.values())) if isinstance(default, Mapping) else default
    if isinstance(one, bool):
        parser.add_argument(option, action="store_const", const=True)
    elif isinstance(one, list):
        parser.add_argument(option, type=_numbers, metavar="N,N,...", help=f"{default}")
    else:
        parser.add_argument(option, type=type(one), metavar="N", help=f"{default}")


def _numbers(text: str) -> list[float]:
    return [float(number) if "." in number else int(number) for number in text.split(",")]
