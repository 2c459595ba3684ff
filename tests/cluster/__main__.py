"""`python -m tests.cluster`: every setting, one table; it ends with 1 if a job was lost or settled twice."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.cluster.row import Row, run
from tests.cluster.settings import all_settings

BROKEN = 1
HEADINGS = ("setting", "jobs", "lost", "settled twice", "longest gap (s)", "refusals", "jobs/s")


def main() -> int:
    """Run the settings, print the table, and return the exit code."""
    options = _parser().parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of every connection that is lost
    chosen = [one for one in all_settings() if not options.only or any(word in one.name for word in options.only)]
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cj-cluster-")))
        folder.mkdir(exist_ok=True)
        rows = []
        for setting in chosen:
            began = time.monotonic()
            rows.append(run(setting, folder, options.seconds))
            print(f"{setting.name}: {', '.join(cells(rows[-1])[1:])} ({time.monotonic() - began:.0f} s)", flush=True)
    _show(rows)
    if options.markdown:
        options.markdown.write_text(markdown(rows))
    return exit_code(rows)


def exit_code(rows: Sequence[Row]) -> int:
    """1 if a job was lost or settled twice, or another promise was not kept."""
    return BROKEN if any(row.lost or row.settled_twice or row.broken for row in rows) else 0


def cells(row: Row) -> list[str]:
    """A line of the table."""
    if row.said:
        return [row.setting, row.said, *["-"] * (len(HEADINGS) - 2)]
    counts = [f"{row.jobs:,}", str(row.lost), str(row.settled_twice)]
    refusals = f"{row.refusals:,} ({row.share:.1%})" if row.refusals and row.claims else f"{row.refusals:,}"
    return [row.setting, *counts, f"{row.longest_gap:.2f}", refusals, f"{row.per_second:,.0f}"]


def markdown(rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    lines = [HEADINGS, ["---"] * len(HEADINGS), *map(cells, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _show(rows: Sequence[Row]) -> None:
    table = Table(*HEADINGS)
    for row in rows:
        table.add_row(*cells(row))
    Console(width=150).print(table)
    for row in rows:
        for promise in row.broken:
            print(f"BROKEN {row.setting}: {promise}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--only", action="append", metavar="WORD", help="settings whose name has this word")
    parser.add_argument("--seconds", type=float, default=10.0, help="of work before each fault, and after the last")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there as well")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what consumers say in this folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
