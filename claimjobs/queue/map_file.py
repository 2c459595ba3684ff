"""What describes a queue as plain data: a TOML file (`--map`), and the same parameters for other processes."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.errors import BadMap
from claimjobs.options import Retry
from claimjobs.per_key import PerKey
from claimjobs.queue.queue import Queue
from claimjobs.queue.references import is_reference, load
from claimjobs.table.columns import STATES, Columns
from claimjobs.table.definitions import DEFAULT_TABLE
from claimjobs.table.reflection import checked_table

Described = Mapping[str, Any]
"""Parameters of a Queue as plain data. The table may be MODULE:ATTRIBUTE of a Table or a mapped class."""

PLAIN: Final = ("table", "where", "order_by", "hold", "claims", "side_car", "on_done")
"""The parameters of a Queue that a map may have, beside its sections."""
COLUMNS, STATES_OF_MAP, RETRY, PER_KEY = "columns", "states", "retry", "per_key"
KEYED: Final = tuple(field.name for field in fields(PerKey))
RETRIES: Final = tuple(field.name for field in fields(Retry))
ROLES: Final = tuple(field.name for field in fields(Columns) if field.name != STATES_OF_MAP)


def read_map(path: str | Path) -> dict[str, Any]:
    """The parameters of the Queue that a TOML file describes: `Queue(url, **read_map("orders.toml"))`.

    Raises BadMap, and ReferenceNotFound or UnfitTable for a table that is MODULE:ATTRIBUTE.
    """
    described = described_in(path)
    return {**described, "table": table_of(described)}


def described_in(path: str | Path) -> Described:
    """What the file says, without a look at the table. Raises BadMap."""
    found = _parsed(path)
    sections = (COLUMNS, STATES_OF_MAP, RETRY, PER_KEY)
    _check_known(f"{path}:", found, (*PLAIN, *sections))
    columns, states, retry, per_key = (_section(path, name, found.pop(name, {})) for name in sections)
    _check_known(f"{path}: [{COLUMNS}]", columns, ROLES)
    _check_known(f"{path}: [{STATES_OF_MAP}]", states, STATES)
    _check_known(f"{path}: [{RETRY}]", retry, RETRIES)
    _check_known(f"{path}: [{PER_KEY}]", per_key, KEYED)
    if per_key:
        found[PER_KEY] = per_key_of(f"{path}: [{PER_KEY}]", per_key)
    names = {role: None if name == "" else name for role, name in columns.items()}
    try:
        if columns or states:
            found[COLUMNS] = Columns(**names, states=states or None)
        return {**found, RETRY: Retry(**retry)} if retry else found
    except ValueError as error:
        raise BadMap(f"{path}: {error}") from None


def per_key_of(where: str, given: Mapping[str, Any], base: PerKey | None = None) -> PerKey:
    """What is given, or `base` with what is given changed. Raises BadMap for values that do not go together."""
    try:
        return PerKey(**given) if base is None else replace(base, **given)
    except (TypeError, ValueError) as error:
        raise BadMap(f"{where}: {error}") from None


def queue_of(bind: str | sa.URL | sa.Engine, described: Described, **options: Any) -> Queue:
    """The Queue that is described. `options`: further parameters, such as `liveness`.

    Raises BadMap for values that do not go together, ReferenceNotFound, or UnfitTable.
    """
    given = {**described, "table": table_of(described), **options}
    try:
        return Queue(bind, **given)
    except ValueError as error:
        raise BadMap(str(error)) from error


def table_of(described: Described) -> str | sa.Table | type[Any]:
    """The table: a name, a Table or a mapped class. Raises BadMap, ReferenceNotFound or UnfitTable."""
    table = described.get("table", DEFAULT_TABLE)
    if not isinstance(table, str) or not table:
        raise BadMap(f"table = {table!r}: give the name of a table in quotes, or MODULE:ATTRIBUTE")
    return checked_table(load(table), table) if is_reference(table) else table


def _parsed(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise BadMap(f"{path} is no TOML: {error}: correct it there; text stands in quotes") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadMap(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}): check the path") from None


def _section(path: str | Path, name: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise BadMap(f"{path}: {name!r} is a section: write a line [{name}], and its names below")
    return found


def _check_known(where: str, found: Collection[str], known: Collection[str]) -> None:
    for name in found:
        if name not in known:
            raise BadMap(f"{where} {name!r} is not known there: choose one of {', '.join(known)}")
