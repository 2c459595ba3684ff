"""Rows from a file, one at a time, each with the line it begins on. Lines are counted as an editor counts them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from claimjobs.cli.values import Values
from claimjobs.enqueue import OnBad
from claimjobs.errors import BadRow

LONGEST_FIELD = 64 * 2**20
"""Bytes of a CSV field. A quote that is never closed must not read the whole file into memory."""

BOM = b"\xef\xbb\xbf"
"""Some programs begin their UTF-8 with it."""


class FileRow(dict[str, Any]):
    """A row, the line that it begins on, and the bytes that it was read from."""

    def __init__(self, values: Mapping[str, Any], line: int, raw: bytes) -> None:
        super().__init__(values)
        self.line = line
        self.raw = raw


class Source:
    """The lines of a file, and how far it is read."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)
        self.line = 0
        """The number of the last line that was read."""
        self.position = 0
        """Bytes that were read."""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        raw = next(self._lines)
        self.line += 1
        self.position += len(raw)
        return raw.removeprefix(BOM) if self.line == 1 else raw

    def skip_to(self, line: int) -> None:
        """Read on until `line` is the next one."""
        while self.line < line - 1 and next(self, None) is not None:
            pass


Reader = Callable[[Source, sa.Table, int, OnBad], Iterator[FileRow]]


def json_lines(source: Source, table: sa.Table, first: int, on_bad: OnBad) -> Iterator[FileRow]:
    """The rows of JSON lines from line `first` on; `on_bad` is told what is no row for this table."""
    values = Values(table, text=False)
    source.skip_to(first)
    for raw in source:
        if raw.strip():
            yield from _row(source.line, raw, lambda raw=raw: values(_object(raw)), on_bad)


def csv_rows(source: Source, table: sa.Table, first: int, on_bad: OnBad) -> Iterator[FileRow]:
    """The same for CSV with a header. A row may be several lines."""
    values = Values(table, text=True)
    csv.field_size_limit(LONGEST_FIELD)
    header = _header(source, table)
    source.skip_to(first)
    lines = _Lines(source)
    reader = csv.reader(lines, strict=True)
    while lines.more():
        yield from _row(source.line + 1, lines, lambda: values(_fields(header, next(reader))), on_bad)


def _row(line: int, raw: Any, read: Callable[[], dict[str, Any]], on_bad: OnBad) -> Iterator[FileRow]:
    """What `read` returns as a row; nothing, and a word to `on_bad`, where it raises."""
    try:
        yield FileRow(read(), line, bytes(raw))
    except _Blank:
        pass
    except (ValueError, csv.Error, RecursionError) as error:
        on_bad(BadRow(line, _reason(error), FileRow({}, line, bytes(raw))))


class _Blank(Exception):  # ends one row, is never seen
    """A line without anything on it."""


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 (byte {error.object[error.start]:#04x} at {error.start})"
    if isinstance(error, csv.Error):
        return f"is no CSV ({error})"
    return str(error) if isinstance(error, ValueError) else "is nested too deeply"


# --- JSON ----------------------------------------------------------------------------------------------------


def _object(raw: bytes) -> dict[str, Any]:
    text = raw.decode()
    try:
        found = json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        hint = "; is the file one array? `jq -c '.[]'` makes lines of it" if text.lstrip().startswith("[") else ""
        raise ValueError(f"is no JSON ({error.msg} at character {error.pos + 1}){hint}") from None
    if not isinstance(found, dict):
        raise ValueError('is no JSON object: write a row as {"column": value, ...}')
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"is no JSON ({name} is no number)")


# --- CSV -----------------------------------------------------------------------------------------------------


class _Lines:
    """Lines for the csv module, which asks for as many as a row has; `bytes()` of it are those of the row."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._taken: list[bytes] = []
        self._next: bytes | None = None

    def more(self) -> bool:
        """Whether another row can be read; forgets the lines of the last one."""
        self._taken.clear()
        return True

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        raw = next(self._source)
        self._taken.append(raw)
        return raw.decode()

    def __bytes__(self) -> bytes:
        return b"".join(self._taken)
