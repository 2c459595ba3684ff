"""Keys of jobs, and values of columns, as text for a person and a shell."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterable, Sequence
from datetime import date, time
from typing import Any

import click
import sqlalchemy as sa

from claimjobs.cli.values import reader


class Keys:
    """Reads and writes the keys of jobs. A key of several columns is a line of CSV, such as `eu,17`."""

    def __init__(self, key: Sequence[sa.Column[Any]]) -> None:
        self._columns = tuple(key)
        self._readers = tuple(reader(column.type, text=True) for column in self._columns)

    def read(self, texts: Iterable[str]) -> list[Any]:
        """The keys as Python values. Raises BadParameter for a text that cannot be a key."""
        return [self._key(text) for text in texts]

    def written(self, key: Any) -> str:
        """A key as text, as `read` takes it."""
        return plain(key) if len(self._columns) == 1 else _line(map(plain, key))

    def _key(self, text: str) -> Any:
        fields = [text] if len(self._columns) == 1 else _fields(text)
        if len(fields) != len(self._columns):
            raise click.BadParameter(f"{text!r} is no key of {self._names()}: write its parts as {self._example()}")
        try:
            parts = tuple(read(field) for read, field in zip(self._readers, fields, strict=True))
        except ValueError as error:
            raise click.BadParameter(f"{text!r} is no key of {self._names()}: {error}") from None
        return parts if len(parts) > 1 else parts[0]

    def _names(self) -> str:
        return f"{self._columns[0].table.fullname} ({', '.join(column.name for column in self._columns)})"

    def _example(self) -> str:
        return ",".join(column.name.upper() for column in self._columns)


def plain(value: Any) -> str:
    """A value as text, as in a file for `claimjobs enqueue`: bytes in base64, instants in ISO 8601."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, (date, time)) else str(value)


def _fields(text: str) -> list[str]:
    """The fields of a line of CSV; none if the text is no such line."""
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


def _line(fields: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()
