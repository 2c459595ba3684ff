"""Report: the figures of an example beside those of its author."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

NOTHING = "-"


@dataclass(frozen=True)
class Figure:
    """One line of an example's table."""

    what: str
    here: str
    author: str = NOTHING
    """The article's figure; `-` if it has none."""


Line = tuple[str, ...]


def alone(title: str, figures: Sequence[Figure]) -> str:
    """The table of one example on one database."""
    return table([("", "the author", title), *((figure.what, figure.author, figure.here) for figure in figures)])


def together(by_example: Mapping[str, Mapping[str, Sequence[Figure]]], titles: Sequence[str]) -> str:
    """One table of all examples: a heading for each article, then its lines with a column for each database."""
    lines: list[Line] = [("", "the author", *titles)]
    for article, by_title in by_example.items():
        lines += [(article, *[""] * (len(titles) + 1)), *_lines(by_title, titles)]
    return table(lines)


def _lines(by_title: Mapping[str, Sequence[Figure]], titles: Sequence[str]) -> Iterable[Line]:
    found = {title: {figure.what: figure.here for figure in figures} for title, figures in by_title.items()}
    authors = {figure.what: figure.author for figures in by_title.values() for figure in figures}
    for what, author in authors.items():
        yield (f"  {what}", author, *(found.get(title, {}).get(what, NOTHING) for title in titles))


def table(lines: Sequence[Line]) -> str:
    """Lines with aligned columns. A line with one cell is a heading, and may be longer."""
    columns = range(len(lines[0]))
    widths = [max(len(line[i]) for line in lines if i or any(line[1:])) for i in columns]
    return "\n".join("  ".join(line[i].ljust(widths[i]) for i in columns).rstrip() for line in lines)
