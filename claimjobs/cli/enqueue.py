"""`claimjobs enqueue`: enqueue each row of a file as a job."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import click

from claimjobs.cli import exits
from claimjobs.cli.console import data, number, say
from claimjobs.cli.next_step import command
from claimjobs.cli.numbers import WholeNumber
from claimjobs.cli.options import queue_for, url_option
from claimjobs.cli.progress import ProgressWatch, watch
from claimjobs.cli.queue_options import queue_options
from claimjobs.cli.rejects import Rejects
from claimjobs.cli.rows import BadHeader, FileRow, ReadRows, Source, csv_rows, json_lines
from claimjobs.enqueue.insert import raise_bad
from claimjobs.errors import BadRow
from claimjobs.queue.map_file import Described
from claimjobs.queue.queue import Queue

READERS: dict[str, ReadRows] = {"jsonl": json_lines, "csv": csv_rows}
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv"}
WATCH_EVERY = 1_000
"""Rows between two updates of the progress."""


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--format", "format_", type=click.Choice(list(READERS)), help="Default: by the name of FILE; jsonl for -."
)
@click.option("--chunk", type=WholeNumber(1), metavar="ROWS", help="Commit after every ROWS rows.")
@click.option("--rejects", type=click.Path(dir_okay=False, path_type=Path), help="A new file for bad lines.")
@click.option("--from-line", type=WholeNumber(1), default=1, help="Begin at this line of FILE.")
@click.option(
    "--unique",
    metavar="COLUMN[,COLUMN]",
    callback=lambda _context, option, given: _columns(option, given),
    help="Leave out rows whose values of these columns are in the table already; it must have a unique index on them.",
)
@url_option
@queue_options
@click.pass_context
def enqueue(
    context: click.Context,
    file: BinaryIO,
    format_: str | None,
    chunk: int | None,
    rejects: Path | None,
    from_line: int,
    unique: tuple[str, ...],
    url: str | None,
    described: Described,
) -> None:
    """Enqueue each row of FILE (- is standard input) as a job, and print how many.

    A row is a JSON object on one line, {"column": value, ...}, or a record of CSV after a header with column names.
    Write instants as 2026-01-31T12:00:00Z, and bytes in base64. A number goes in as it is written; one that a JSON
    document of the database would change does not fit: write it in quotes. An empty field of CSV is the column's
    default, NULL, or an empty text: the first of these that the column allows. A row with an instant in the column
    run_at waits until then. A row with a lower number in the column priority is claimed first.

    All rows are one transaction: if a row does not fit, none is enqueued, and its line and the reason are printed. With
    --chunk the rows that were committed before stay, and --from-line goes on after them. With --rejects the lines that
    do not fit are copied to a file, and all other rows are enqueued (exit code 5 if any did not fit). With --unique the
    same file can be enqueued again: rows that are there already stay as they are.

    \b
    Examples:
      claimjobs enqueue jobs.jsonl
      claimjobs enqueue jobs.csv --chunk 10000 --rejects bad.csv
      claimjobs enqueue jobs.jsonl --unique id
      grep urgent jobs.jsonl | claimjobs enqueue -
    """
    reader = READERS[format_ or _format_of(getattr(file, "name", "-"))]
    began = time.monotonic()
    with (
        Rejects(rejects) if rejects else nullcontext() as bad,
        queue_for(url, described) as queue,
        watch(_size(file)) as eye,
    ):
        work = Enqueuing(queue, Source(file), reader, bad, eye, unique)
        enqueued = work.run(chunk, from_line)
    known = f", {work.known:,} were there already" if unique else ""
    say(f"{number(enqueued, 'row')} enqueued in {time.monotonic() - began:.1f} s{known}")
    data(enqueued)
    if bad is not None and bad.count:
        say(f"{number(bad.count, 'row')} did not fit: correct {rejects} and enqueue it")
        context.exit(exits.INPUT)


def _columns(option: click.Parameter, given: str | None) -> tuple[str, ...]:
    names = () if given is None else tuple(name.strip() for name in given.split(","))
    if not all(names):
        raise click.BadParameter(f"{given!r}: give the names of columns, as in --unique region,number", param=option)
    return names


def _format_of(name: str | int) -> str:
    if name in ("-", "<stdin>") or not isinstance(name, str):  # a number: of a stream that has no name
        return "jsonl"
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise click.UsageError(f"the name {name!r} does not tell the format of the file: give --format jsonl or csv")
    return SUFFIXES[suffix]


def _size(file: BinaryIO) -> int | None:
    """The size in bytes; None for a stream without a size, such as a pipe."""
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


class BadLine(BadRow):
    """A row of the file does not fit."""

    def __init__(self, bad: BadRow, stands: str, advice: str) -> None:
        super().__init__(bad.row.line, bad.reason, bad.row)
        self.args = (f"line {self.line}: {bad.reason}; {stands}: correct the line and {advice}",)


@dataclass
class Enqueuing:
    """Enqueues one file, and knows how far it is committed."""

    queue: Queue
    source: Source
    reader: ReadRows
    rejects: Rejects | None
    watch: ProgressWatch
    unique: tuple[str, ...]
    fit: int = 0
    """Rows that were read and did fit."""
    enqueued: int = 0
    committed: int = 0
    """The last line of the last transaction."""

    def run(self, chunk: int | None, first: int) -> int:
        """Enqueue from line `first` on; return how many rows. After an error, say how many rows are committed."""
        try:
            self._transactions(chunk, first)
        except BadRow as bad:
            raise BadLine(bad, self._stands(), self._advice(bad)) from bad
        except BaseException as error:
            self.watch.say(self._unsure() if getattr(error, "connection_invalidated", False) else self._stands())
            raise
        return self.enqueued

    def _transactions(self, chunk: int | None, first: int) -> None:
        on_bad = None if self.rejects is None else self._reject
        rows = self._watched(self.reader(self.source, self.queue.table, first, on_bad or raise_bad))
        for row in rows:
            part = chain([row], islice(rows, chunk and chunk - 1))
            self.enqueued += self.queue.enqueue(part, on_bad=on_bad, unique=self.unique)
            self.committed = self.source.line

    def _watched(self, rows: Iterator[FileRow]) -> Iterator[FileRow]:
        for count, row in enumerate(rows, 1):
            self.fit += 1
            if count % WATCH_EVERY == 0:
                self.watch.at(count, self.source.position)
            yield row

    @property
    def known(self) -> int:
        """Rows that were left out, because they were there already."""
        return self.fit - self.enqueued

    def _reject(self, bad: BadRow) -> None:
        if self.rejects is not None:
            self.rejects.add(self.source.header, bad.row.raw)
            self.fit -= bool(bad.row)  # a line that is no row at all was not counted
            self.watch.say(f"line {bad.row.line}: {bad.reason}")

    # --- messages after an error -----------------------------------------------------------------------

    def _stands(self) -> str:
        if not self.enqueued:
            return "nothing is enqueued"
        return f"{number(self.enqueued, 'row')} up to line {self.committed} stay enqueued, nothing after it"

    def _advice(self, bad: BadRow) -> str:
        if isinstance(bad, BadHeader):
            return "run this again"
        again = f"go on with --from-line {self.committed + 1}" if self.enqueued else "run this again"
        return f"{again}, or give --rejects FILE to enqueue all others"

    def _unsure(self) -> str:
        """If the connection broke during a commit, it is not known whether that happened."""
        return f"{self._stands()}, unless the connection broke in a commit: see {command('status')}"
