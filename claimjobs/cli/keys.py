"""Reads keys of jobs from a command line."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import sqlalchemy as sa

from claimjobs.cli.values import Read, reader
from claimjobs.dialects.types import Instant


class Keys:
    """Reads keys of jobs. A key of several columns is a line of CSV, such as `eu,17`."""

    def __init__(self, key: Sequence[sa.Column[Any]]) -> None:
        self._columns = tuple(key)
        self._readers = tuple(_reader(column.type) for column in self._columns)

    def read(self, texts: Iterable[str]) -> list[Any]:
        """The keys as Python values. Raises BadParameter for a text that cannot be a key."""
        return [self._key(text) for text in texts]

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


def _reader(type_: sa.types.TypeEngine[Any]) -> Read:
    return _in_utc if isinstance(type_, Instant) else reader(type_, text=True)


def _in_utc(text: str) -> datetime:
    """An instant: it is in UTC if no other zone is given."""
    found: datetime = reader(sa.DateTime(), text=True)(text)
    return found.replace(tzinfo=UTC)


def _fields(text: str) -> list[str]:
    """The fields of a line of CSV; none if the text is no such line."""
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []
