"""Reads the rows of a file one at a time, each with the number of its first line, counted as in an editor."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from claimjobs.cli.values import BadValue, Values, parsed_json
from claimjobs.enqueue.insert import OnBad
from claimjobs.errors import BadRow

LONGEST_FIELD = 64 * 2**20
"""The most bytes of a CSV field: a missing closing quote must not read the whole file into memory."""

BOM = b"\xef\xbb\xbf"
"""The byte order mark, with which some programs begin a UTF-8 file."""


class FileRow(dict[str, Any]):
    """A row, the line that it begins on, and the bytes that it was read from."""

    def __init__(self, values: Mapping[str, Any], line: int, raw: bytes) -> None:
        super().__init__(values)
        self.line = line
        self.raw = raw


class Source:
    """The lines of a file, and how far they are read."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)
        self.line = 0
        """The number of the last line that was read."""
        self.position = 0
        """Bytes that were read."""
        self.header = b""
        """The header lines, if the format has any."""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        raw = next(self._lines)
        self.line += 1
        self.position += len(raw)
        return raw.removeprefix(BOM) if self.line == 1 else raw

    def skip_to(self, line: int) -> None:
        """Skip the lines before `line`."""
        while self.line < line - 1 and next(self, None) is not None:
            pass


ReadRows = Callable[[Source, sa.Table, int, OnBad], Iterator[FileRow]]

BAD = (ValueError, csv.Error, RecursionError)
"""The errors of a line that is no row."""


def json_lines(source: Source, table: sa.Table, first: int, on_bad: OnBad) -> Iterator[FileRow]:
    """The rows of JSON lines from line `first` on. `on_bad` is called for each line that is no row of this table."""
    values = Values(table, text=False)
    source.skip_to(first)
    for raw in source:
        if not raw.strip():
            continue
        try:
            row = FileRow(values.read(_object(raw)), source.line, raw)
        except BAD as error:
            on_bad(_bad(error, source.line, raw))
        else:
            yield row


def csv_rows(source: Source, table: sa.Table, first: int, on_bad: OnBad) -> Iterator[FileRow]:
    """The rows of CSV with a header, from line `first` on. A row may have several lines.

    `on_bad` is called for each record that is no row of this table. Raises BadHeader for a header that does not fit.
    """
    values = Values(table, text=True)
    header = _header(source, table)
    source.skip_to(first)
    records = _Records(source)
    while True:
        try:
            fields = next(records)
            row = FileRow(values.read(_named(header, fields)), records.line, records.raw) if fields else None
        except StopIteration:
            return
        except BAD as error:
            on_bad(_bad(error, records.line, records.raw))
        else:
            if row:
                yield row


def _bad(error: Exception, line: int, raw: bytes) -> BadRow:
    return BadRow(line, _reason(error), FileRow({}, line, raw))


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 (byte {error.object[error.start]:#04x} at {error.start})"
    if isinstance(error, csv.Error):
        return f"is no CSV ({error})"
    return str(error) if isinstance(error, ValueError) else "is nested too deeply"


# --- JSON ----------------------------------------------------------------------------------------------------


def _object(raw: bytes) -> dict[str, Any]:
    text = raw.decode().rstrip("\r\n")
    try:
        found = parsed_json(text, object_pairs_hook=_distinct)
    except json.JSONDecodeError as error:
        hint = "; is the file one array? `jq -c '.[]'` makes lines of it" if text.lstrip().startswith("[") else ""
        raise BadValue(f"is no JSON ({error.msg} at character {error.pos + 1}){hint}") from None
    if not isinstance(found, dict):
        raise BadValue('is no JSON object: write a row as {"column": value, ...}')
    return found


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise BadValue(f"names {next(name for name in names if names.count(name) > 1)!r} twice")
    return found


# --- CSV -----------------------------------------------------------------------------------------------------


class _Records:
    """The records of CSV, each with the lines from which it was read."""

    def __init__(self, source: Source) -> None:
        csv.field_size_limit(LONGEST_FIELD)
        self._source = source
        self._taken: list[bytes] = []
        self._reader = csv.reader(_Texts(source, self._taken), strict=True)
        self.line = 0
        """The first line of the last record."""

    def __next__(self) -> list[str]:
        self._taken.clear()
        self.line = self._source.line + 1
        return next(self._reader)

    @property
    def raw(self) -> bytes:
        return b"".join(self._taken)


class _Texts:
    """The lines as text, collected in `taken`. It is no generator, because it must go on after an error."""

    def __init__(self, source: Source, taken: list[bytes]) -> None:
        self._source = source
        self._taken = taken

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self._taken.append(next(self._source))
        return self._taken[-1].decode()


class BadHeader(BadRow):
    """The first line of a CSV file names no columns of the table, so that no row of the file can be read."""


def _bad_header(error: Exception, raw: bytes) -> BadHeader:
    return BadHeader(1, _reason(error), FileRow({}, 1, raw))


def _header(source: Source, table: sa.Table) -> list[str]:
    records = _Records(source)
    try:
        header = [name.strip() for name in next(records)]
    except StopIteration:
        raise _bad_header(BadValue("the file is empty: its first line names the columns"), b"") from None
    except BAD as error:
        raise _bad_header(error, records.raw) from None
    source.header = records.raw
    for place, name in enumerate(header):
        if name not in table.columns or name in header[:place]:
            raise _bad_header(BadValue(_misfit(name, table)), records.raw)
    return header


def _misfit(name: str, table: sa.Table) -> str:
    if name in table.columns:
        return f"the header names column {name!r} twice"
    columns = ", ".join(table.columns.keys())
    return f"the header names {name!r}, which is no column of table {table.fullname!r}: it has {columns}"


def _named(header: list[str], fields: list[str]) -> dict[str, str]:
    if len(fields) != len(header):
        raise BadValue(f"has {len(fields)} fields, and the header has {len(header)}")
    return dict(zip(header, fields, strict=True))
