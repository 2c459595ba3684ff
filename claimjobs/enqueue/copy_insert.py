"""Inserts rows by COPY, where that writes the same values as an INSERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from claimjobs.enqueue.bulk_insert import FEW, Row, RowValues
from claimjobs.enqueue.insert import InsertTarget, PlainInsert


class CopyInsert(PlainInsert):
    """COPY for large chunks. Small chunks, and values that COPY writes otherwise than INSERT, are inserted."""

    def __init__(self, target: InsertTarget) -> None:
        super().__init__(target)
        self._table = target.roles.table
        self._read: dict[frozenset[str], RowValues | None] = {}

    def _insert(self, rows: Sequence[Row]) -> int:
        values = self._values(rows) if len(rows) >= FEW else None
        written = None if values is None else values.rows(rows)
        if values is None or written is None or not self._means_the_same(values.names, written):
            return super()._insert(rows)
        self._dialect.copy(self._connection, self._table, values.names, written)
        return len(rows)

    def _values(self, rows: Sequence[Row]) -> RowValues | None:
        """How to read the values of rows of this shape; None where a copy cannot write all of them."""
        shape = frozenset(rows[0])
        if shape not in self._read:
            types = {key: self._table.c[key].type for key in rows[0]}
            self._read[shape] = RowValues(types, self._connection.dialect) if self._can_copy(shape) else None
        return self._read[shape]

    def _can_copy(self, shape: frozenset[str]) -> bool:
        """Whether SQLAlchemy adds nothing to these columns: no schema translation, no default computed in Python."""
        translated = self._connection.get_execution_options().get("schema_translate_map")
        completed = [column.key for column in self._table.columns if column.default is not None]
        return bool(shape) and not translated and shape.issuperset(completed) and shape <= self._copyable.keys()

    @cached_property
    def _copyable(self) -> Mapping[str, Any]:
        return self._dialect.copyable(self._connection, self._table)

    def _means_the_same(self, keys: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> bool:
        values = tuple(chain.from_iterable(rows))
        return all(self._copyable[key](values[place :: len(keys)]) for place, key in enumerate(keys))
