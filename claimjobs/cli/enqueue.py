"""`claimjobs enqueue`: enqueue each row of a file as a job."""

from __future__ import annotations

import csv
import io
import json
import time
from array import array
from collections.abc import Iterator
from datetime import datetime
from typing import Any, BinaryIO, Final

import click
import sqlalchemy as sa

from claimjobs.cli import exits
from claimjobs.cli.console import data, number, say
from claimjobs.cli.queue_options import Target, next_command, queue_options
from claimjobs.enqueue.unique_key import CHOICES, OnDuplicate
from claimjobs.errors import BadRow
from claimjobs.queue.queue import Queue
from claimjobs.signals import stop_on_signals
from claimjobs.table.values import parsed_json, value_for

LONGEST_FIELD: Final = 64 * 2**20
"""The most characters of a CSV field: a missing closing quote must not read the whole file into memory."""
REPORT_EVERY: Final = 5.0
"""Seconds between two lines of progress."""
BAD: Final = (ValueError, ArithmeticError, RecursionError, csv.Error)
"""The errors of a record that is no row."""
REASONS: Final = {
    UnicodeEncodeError: "is not UTF-8",
    RecursionError: "is nested too deeply",
    ArithmeticError: "has a number that nothing can hold",
}


def _columns(_context: click.Context, _option: click.Parameter, given: str | None) -> tuple[str, ...]:
    names = () if given is None else tuple(name.strip() for name in given.split(","))
    if not all(names):
        raise click.BadParameter(f"{given!r}: give the names of columns, as in --unique region,number")
    return names


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--format", "format_", type=click.Choice(["jsonl", "csv"]), help="Default: csv if the name ends so.")
@click.option(
    "--unique",
    metavar="COLUMN[,COLUMN]",
    callback=_columns,
    help="Leave out rows whose values of these columns are in the table already; it must have a unique index on them.",
)
@click.option(
    "--on-duplicate",
    type=click.Choice(CHOICES),
    default="skip",
    help="What happens to jobs that --unique finds: nothing; or one that waits is written anew, or waits until this "
    "row's run_at; or one that is claimed, done or dead runs again.",
)
@click.option(
    "--every", metavar="SCHEDULE", help="Enqueue the rows at each tick: an interval (15m), or cron's five fields."
)
@click.option("--tick", metavar="COLUMN", help="The column of --unique that gets the tick of --every.")
@click.option("--zone", default="UTC", metavar="NAME", help="The time zone of --every, such as Europe/Berlin.")
@queue_options
@click.pass_context
def enqueue(
    context: click.Context,
    target: Target,
    file: BinaryIO,
    format_: str | None,
    unique: tuple[str, ...],
    on_duplicate: OnDuplicate,
    every: str | None,
    tick: str | None,
    zone: str,
) -> None:
    """Enqueue each row of FILE (- is standard input) as a job, and print how many.

    A row is a JSON object on one line, {"column": value, ...}, or a record of CSV after a header with column names.
    Write instants as 2026-01-31T12:00:00Z, and bytes in base64. A number goes in as it is written; one that a JSON
    document of the database would change does not fit: write it in quotes. An empty field of CSV is the column's
    default, NULL, or an empty text: the first of these that the column allows. A row with an instant in the column
    run_at waits until then. A row with a lower number in the column priority is claimed first.

    All rows are one transaction. A row that does not fit is told with its line and the reason, and all other rows are
    enqueued (exit code 5 then). After any other error none is enqueued. With --unique the same file can be enqueued
    again: rows that are there already stay as they are.

    With --every the rows are enqueued again for each tick of a schedule, until the command is stopped. It may run in
    any number of processes: --unique with the column --tick makes that each tick is enqueued once. The rows of a
    tick are there before it, and wait for it.

    \b
    Examples:
      claimjobs enqueue jobs.jsonl
      claimjobs enqueue reports.jsonl --every "0 6 * * 1" --unique name,due --tick due
      claimjobs enqueue jobs.csv --unique d,e
      tail -n +1000 jobs.jsonl | claimjobs enqueue -
    """
    if (every is None) != (tick is None) or (every and not unique):
        raise click.UsageError("a schedule needs --every, --tick and --unique: give all three")
    if every is not None and on_duplicate != "skip":
        raise click.UsageError("--on-duplicate has no effect with --every: leave it out")
    if every is None and zone != "UTC":
        raise click.UsageError("--zone has no effect without --every: leave it out")
    is_csv = format_ == "csv" if format_ else str(getattr(file, "name", "-")).lower().endswith(".csv")
    began = time.monotonic()
    with target.queue() as queue:
        rows = FileRows(file, queue.table, is_csv=is_csv)
        if every is not None and tick is not None:
            context.exit(_enqueue_every(queue, rows, every, tick=tick, unique=unique, zone=zone))
        try:
            enqueued = queue.enqueue(rows, on_bad=rows.report_bad, unique=unique, on_duplicate=on_duplicate)
        except BaseException as error:
            broke = getattr(error, "connection_invalidated", not isinstance(error, Exception))
            unsure = f"all rows are enqueued, or none: see {next_command('status')}"
            say(unsure if broke and rows.ended else "nothing is enqueued")
            raise
    known = f", {rows.count - enqueued:,} were there already" if unique else ""
    unfit = f"; {number(rows.bad, 'row')} did not fit: correct these lines, and enqueue them" if rows.bad else ""
    say(f"{number(enqueued, 'row')} enqueued in {time.monotonic() - began:.1f} s{known}{unfit}")
    data(enqueued)
    context.exit(exits.INPUT if rows.bad else exits.OK)


def _enqueue_every(queue: Queue, rows: FileRows, every: str, **how: Any) -> int:
    template = list(rows)
    if rows.bad:
        say("nothing is enqueued: correct these lines first")
        return exits.INPUT
    total = 0

    def on_tick(tick: datetime, count: int) -> None:
        nonlocal total
        total += count
        by = f"{number(count, 'row')} enqueued" if count else "enqueued by another process"
        say(f"{tick:%Y-%m-%dT%H:%M:%SZ}: {by}")

    with stop_on_signals(queue):
        queue.enqueue_every(every, template, on_tick=on_tick, **how)
    data(total)
    return exits.OK


class FileRows:
    """The rows of a file, one at a time. A record that is no row is told on standard error, and left out."""

    def __init__(self, file: BinaryIO, table: sa.Table, *, is_csv: bool) -> None:
        # What is not UTF-8 becomes half characters, which no row may have: so the lines after it are read, too.
        self._lines = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="\n")
        numbered = ((line, line, text) for line, text in enumerate(self._lines, 1) if text.strip())
        self._records = self._csv() if is_csv else numbered
        self._table = table
        plain = (column for column in table.c if (column.default, column.server_default) == (None, None))
        self._wanted = {column.key for column in plain if column is not table.autoincrement_column}
        """Columns without a default: an empty field of CSV is a value of them."""
        self.count = self.bad = 0
        """Rows that fit, as far as they were read; rows that do not fit."""
        self.lines = array("Q")
        """The line on which each row begins, counted as in an editor."""
        self.ended = False
        """Whether all were read. Before that none is committed."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        report_at = time.monotonic() + REPORT_EVERY
        for line, last, record in self._records:
            try:
                row = self._row(record)
            except BAD as error:
                lost = f"; no row is enqueued of lines {line} to {last}" if last > line else ""
                self._report(line, _reason(error) + lost)
                continue
            self.lines.append(line)
            self.count += 1
            if time.monotonic() >= report_at:
                report_at = time.monotonic() + REPORT_EVERY
                say(f"{number(self.count, 'row')} read")
            yield row
        self.ended = True

    def report_bad(self, bad: BadRow) -> None:
        """Tell that a row does not fit the table."""
        self.count -= 1
        self._report(self.lines[bad.line - 1], bad.reason)

    def _report(self, line: int, reason: str) -> None:
        self.bad += 1
        say(f"line {line}: {reason}")

    def _row(self, record: str | list[str] | csv.Error) -> dict[str, Any]:
        """The values of a record by their columns. Raises one of BAD."""
        if isinstance(record, csv.Error):
            raise record
        "".join(record).encode()
        if isinstance(record, list):
            if len(record) != len(self._header):
                raise ValueError(f"has {len(record)} fields, and the header has {len(self._header)}")
            fields = zip(self._header, record, strict=True)
            given = {name: text for name, text in fields if text or name in self._wanted}
        else:
            found = parsed_json(record.rstrip("\r\n"))
            given = found if isinstance(found, dict) else {}
            if given is not found:
                words = 'write a row as {"column": value, ...}, each on a line, as `jq -c` does'
                raise ValueError(f"is no JSON object: {words}")
        row = {}
        for name, value in given.items():
            column = self._table.c.get(name)  # None: the Queue refuses the row
            try:
                if column is None:
                    row[name] = value
                else:
                    row[name] = _from_csv(column, value) if isinstance(record, list) else value_for(column, value)
            except BAD as error:
                raise ValueError(f"column {name!r}: {_reason(error)}") from None
        return row

    def _csv(self) -> Iterator[tuple[int, int, list[str] | csv.Error]]:
        """The first and the last line of each record after the header, and the record."""
        csv.field_size_limit(LONGEST_FIELD)
        reader = csv.reader(self._lines, strict=True)
        try:
            self._header = next(reader, [])
        except csv.Error as error:
            self._report(1, f"the header {_reason(error)}")
            return
        unfit = [name for name in self._header if name not in self._table.c or self._header.count(name) > 1]
        if unfit or not self._header:
            has = f"table {self._table.fullname!r} has {', '.join(self._table.columns.keys())}"
            self._report(1, f"the header names {', '.join(map(repr, unfit)) or 'nothing'}, not each column once: {has}")
            return
        while True:
            line = reader.line_num + 1
            try:
                if record := next(reader):
                    yield line, reader.line_num, record
            except StopIteration:
                return
            except csv.Error as error:
                yield line, reader.line_num, error


def _from_csv(column: sa.Column[Any], text: str) -> Any:
    if not text and (column.nullable or not isinstance(column.type, sa.String)):
        return sa.null() if isinstance(column.type, sa.JSON) else None  # None would be the null of JSON
    return value_for(column, parsed_json(text) if isinstance(column.type, (sa.JSON, sa.ARRAY)) else text)


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"is no JSON ({error.msg} at character {error.pos + 1})"
    if isinstance(error, csv.Error):
        return f"is no CSV ({error})"
    return next((words for kind, words in REASONS.items() if isinstance(error, kind)), str(error))
