"""Shape: a description of a queue as plain data. It can be read from a TOML file and sent to other processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa

from claimjobs.errors import BadMap
from claimjobs.options import ClaimsKind, HoldKind, SideCar, is_per_batch
from claimjobs.queue import config_file as shapefile
from claimjobs.queue.queue import Queue
from claimjobs.queue.references import is_reference, load
from claimjobs.table.columns import Columns
from claimjobs.table.definitions import DEFAULT_TABLE
from claimjobs.table.reflection import checked_table, map_of


@dataclass(frozen=True)
class Shape:
    """A table, the map of its columns, and the parameters of a Queue that are plain data.

    `Shape.read("orders.toml").queue(url)` is the Queue that a file describes. The defaults are those of Queue.
    """

    table: str = DEFAULT_TABLE
    """A name, or MODULE:ATTRIBUTE of a Table or a mapped class."""
    columns: Columns | None = None
    hold: HoldKind = "lease"
    claims: ClaimsKind | None = None
    """None: `per_batch` says which one."""
    lock: Literal["rows", "advisory"] = "rows"
    side_car: bool = False
    order_by: tuple[str, ...] | None = None
    """Names of columns, `-name` for the highest first, or SQL as after ORDER BY."""
    where: str | None = None
    """SQL as after WHERE."""
    on_done: Literal["delete", "keep", "leave"] | None = None

    @classmethod
    def read(cls, path: str | Path) -> Shape:
        """The shape that a file of TOML describes. Raises BadMap with the line and the next step."""
        return cls().over(**shapefile.read(path))

    def over(
        self, *, roles: Mapping[str, Any] | None = None, states: Mapping[str, Any] | None = None, **others: Any
    ) -> Shape:
        """This shape with other values; None keeps a value. `roles` and `states` replace single entries of the map.

        Raises BadMap, ReferenceNotFound, or UnfitTable if MODULE:ATTRIBUTE has no map.
        """
        shape = replace(self, **{name: value for name, value in others.items() if value is not None})
        if not roles and not states:
            return shape
        columns = shape.map or Columns()
        stated = {**(columns.states or {}), **(states or {})} or None
        try:
            return replace(shape, columns=replace(columns, **{**(roles or {}), "states": stated}))
        except ValueError as error:
            raise BadMap(str(error)) from error

    @property
    def map(self) -> Columns | None:
        """The map that was given, or that of the Table or mapped class."""
        return self.columns or map_of(self.load())

    @property
    def per_batch(self) -> bool:
        """Whether a claim is recorded as one row for its batch."""
        return is_per_batch(self.claims, self.hold, SideCar() if self.side_car else None)

    def load(self) -> str | sa.Table | type[Any]:
        """The table: a name, a Table or a mapped class. Raises ReferenceNotFound or UnfitTable."""
        return checked_table(load(self.table), self.table) if is_reference(self.table) else self.table

    def queue(self, bind: str | sa.URL | sa.Engine, **options: Any) -> Queue:
        """A Queue of this shape. `options`: other parameters of Queue, such as `retry`.

        Raises BadMap for values that do not go together.
        """
        names = ("columns", "order_by", "lock", "hold", "claims", "side_car", "on_done")
        chosen = {name: getattr(self, name) for name in names}
        try:
            return Queue(bind, self.load(), where=self.where, **chosen, **options)
        except ValueError as error:
            raise BadMap(str(error)) from error
