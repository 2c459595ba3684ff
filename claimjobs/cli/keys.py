"""Reads keys of jobs from a command line."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import sqlalchemy as sa

from claimjobs.cli.values import value_for
from claimjobs.dialects.types import Instant


class Keys:
    """Reads keys of jobs. A key of several columns is a line of CSV, such as `eu,17`."""

    def __init__(self, key: Sequence[sa.Column[Any]]) -> None:
        self._columns = tuple(key)

    def read(self, texts: Iterable[str]) -> list[Any]:
        """The keys as Python values. Raises BadParameter for a text that cannot be a key."""
        return [self._key(text) for text in texts]

    def _key(self, text: str) -> Any:
        fields = [text] if len(self._columns) == 1 else _fields(text)
        if len(fields) != len(self._columns):
            raise click.BadParameter(f"{text!r} is no key of {self._names()}: write its parts as {self._example()}")
        try:
            parts = tuple(map(_part, self._columns, fields))
        except ValueError as error:
            raise click.BadParameter(f"{text!r} is no key of {self._names()}: {error}") from None
        return parts if len(parts) > 1 else parts[0]

    def _names(self) -> str:
        return f"{self._columns[0].table.fullname} ({', '.join(column.name for column in self._columns)})"

    def _example(self) -> str:
        return ",".join(column.name.upper() for column in self._columns)


def _part(column: sa.Column[Any], text: str) -> Any:
    """A part of a key. An instant is in UTC if no other zone is given."""
    if not isinstance(column.type, Instant):
        return value_for(column, text)
    found: datetime = value_for(sa.Column(column.name, sa.DateTime()), text)
    return found.replace(tzinfo=UTC)


def _fields(text: str) -> list[str]:
    """The fields of a line of CSV; none if the text is no such line."""
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []
