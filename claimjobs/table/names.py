"""Names that are made of a table's name. A database cuts or refuses one that is too long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import quoted_name

from claimjobs.database.error_translation import reason
from claimjobs.dialects import Dialect
from claimjobs.errors import UnfitTable
from claimjobs.options import SIDE_CAR, SideCar


def check_names(dialect: Dialect, tables: list[sa.Table]) -> None:
    """Check the names of tables and their parts. Raises UnfitTable for one that some databases change or cut, or refuse
    after the table is made.
    """
    for table in tables:
        for name in _names(table):
            if flaw := dialect.table_rules.unnameable(name):
                raise bad_name(dialect, table, ValueError(f"{name!r}: {flaw}"))


def bad_name(dialect: Dialect, table: sa.Table, error: Exception) -> UnfitTable:
    """The error for a table that cannot be made because of its name."""
    rules = dialect.table_rules
    added = [name.removeprefix(table.name) for name in _names(table) if name.startswith(table.name)]
    longest = rules.longest - max(map(rules.length, added))
    hint = f", of at most {longest} {rules.counted_in}" if rules.length(table.name) > longest else ""
    return UnfitTable(f"table {table.fullname!r} cannot be made ({reason(error)}): choose another name for it{hint}")


def _names(table: sa.Table) -> Iterator[str]:
    """The names of a table and of its parts. SQLAlchemy shortens those that it generates: they have another class."""
    types = [column.type for column in table.columns if isinstance(column.type, sa.Enum)]
    parts: list[Any] = [table, *table.indexes, *table.constraints, *types]
    yield from (str(part.name) for part in parts if type(part.name) in (str, quoted_name))


def check_side_car_name(dialect: Dialect, source: str, side_car: SideCar) -> str:
    """The name of the side-car of this table. Raises UnfitTable if no table can have it."""
    name, rules = side_car.name_for(source), dialect.table_rules
    if flaw := rules.unnameable(name.rpartition(".")[2]):
        most = f"; --side-car is for a table whose name has at most {rules.longest - rules.length(SIDE_CAR)}"
        limit = "" if side_car.table else f"{most} {rules.counted_in}"
        step = f"choose the name of the side-car in Python, as in Queue(..., side_car=SideCar(table=...)){limit}"
        raise UnfitTable(f"table {source!r} cannot have a side-car {name!r} ({flaw}): {step}")
    return name
