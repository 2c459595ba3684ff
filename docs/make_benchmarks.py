"""Put the figures of `make bench` into docs/benchmarks.md, and their pictures into docs/images and the README.

`make bench BENCH_ARGS='--json benchmarks/results'`, then `python -m docs.make_benchmarks` in the repository. The words
between the figures are written by hand; what stands between a pair of marks is made.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import chart, scenario
from benchmarks.scenario import Record

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "benchmarks.md"
README: Final = ROOT / "README.md"
IMAGES: Final = ROOT / "docs" / "images"
RESULTS: Final = ROOT / "benchmarks" / "results"

SHOWN_FIRST: Final = ("drain",)
"""The picture of the README."""
NOTHING: Final = "*Not measured yet.*"
GOALS: Final = ("point", "what", "bound", "here", "")

Records = dict[str, list[Record]]
"""By scenario, those of all servers."""


def records(folder: Path = RESULTS) -> Records:
    """What the files of a folder say, in the order of the scenarios; Postgres first."""
    found = [scenario.read(path) for path in sorted(folder.glob("*.json"), reverse=True)]
    return {name: [record for record in found if record.scenario == name] for name in scenario.NAMES}


def pictures(found: Records) -> dict[str, str]:
    """The SVGs, by name."""
    drawn = {name: some for name, some in found.items() if some and some[0].module.PLOT}
    return {picture(name): chart.svg([record.chart() for record in some]) for name, some in drawn.items()}


def picture(name: str) -> str:
    """The file of a scenario's picture."""
    return f"bench-{name.replace('_', '-')}.svg"


def filled(page: str, found: Records, images: str) -> str:
    """A page with everything between its marks made anew. `images` is where it finds the pictures."""
    parts: dict[str, Callable[[], Iterable[str]]] = {
        "machine": lambda: _machine(found),
        "goals": lambda: _goals(found),
        "pictures": lambda: _first_pictures(found, images),
        **{name: partial(_section, some, images) for name, some in found.items()},
    }

    def made(match: re.Match[str]) -> str:
        if match["name"] not in parts:  # another command's
            return match[0]
        text = "\n\n".join(parts[match["name"]]()) or NOTHING
        return f"{match['begin']}\n\n{text}\n\n{match['end']}"

    marks = r"(?P<begin><!-- bench: (?P<name>\w+) -->)\n.*?(?P<end><!-- bench: end -->)"
    return re.sub(marks, made, page, flags=re.DOTALL)


def _machine(found: Records) -> Iterator[str]:
    every = [record for some in found.values() for record in some]
    if not every:
        return
    facts = every[0].facts
    yield markdown(
        [
            ("", ""),
            ("machine", str(facts["machine"])),
            *((record.title, _durability(record)) for record in {r.backend: r for r in every}.values()),
            ("client", ", ".join(f"{name} {version}" for name, version in facts["versions"].items())),
            ("commands", ", ".join(f"`{command}`" for command in dict.fromkeys(r.command for r in every))),
            ("took", f"{sum(record.facts['seconds'] for record in every) / 60:.0f} minutes"),
        ]
    )
    yield "\n".join(f"- {remark}" for remark in dict.fromkeys(r for record in every for r in record.facts["remarks"]))


def _durability(record: Record) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in record.facts["durability"].items())
    return f"{record.server}; {settings}"


def _goals(found: Records) -> Iterator[str]:
    lines = [
        (goal.line()[0], record.backend, *goal.line()[1:])
        for some in found.values()
        for record in some
        for goal in record.goals
    ]
    if lines:
        yield markdown([(GOALS[0], "", *GOALS[1:]), *sorted(lines, key=lambda line: int(line[0]))])


def _first_pictures(found: Records, images: str) -> Iterator[str]:
    for name in SHOWN_FIRST:
        yield from _picture(found[name], images)


def _picture(some: Sequence[Record], images: str) -> Iterator[str]:
    if some and some[0].module.PLOT:
        yield f"![{some[0].module.TITLE}]({images}/{picture(some[0].scenario)})"


def _section(some: Sequence[Record], images: str) -> Iterator[str]:
    yield from _picture(some, images)
    for record in some:
        sizes = ", ".join(f"{name} {value}" for name, value in record.facts["sizes"].items())
        yield f"{record.title}; {sizes}:"
        yield markdown(record.lines())


def markdown(lines: Sequence[tuple[str, ...]]) -> str:
    """A table; the first line is its heading."""
    heading, *rest = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([heading, "| " + " | ".join(["---"] * len(lines[0])) + " |", *rest])


def main() -> None:
    """Write the page, the pictures and the README."""
    found = records()
    for name, text in pictures(found).items():
        (IMAGES / name).write_text(text, encoding="utf-8")
    for page, images in ((PAGE, "images"), (README, "docs/images")):
        page.write_text(filled(page.read_text(encoding="utf-8"), found, images), encoding="utf-8")
        sys.stderr.write(f"{page}: written\n")


if __name__ == "__main__":
    main()
