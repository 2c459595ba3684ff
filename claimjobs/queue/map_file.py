"""What describes a queue as text: a TOML file (`--map`), the same parameters for other processes, MODULE:ATTRIBUTE."""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import Bind
from claimjobs.errors import FOLDER_GONE, BadMap, ClaimjobsError, ReferenceNotFound
from claimjobs.log_records import enable_loggers
from claimjobs.options import PerKey, Retry
from claimjobs.queue.queue import Queue
from claimjobs.table import reflection
from claimjobs.table.columns import STATES, Columns
from claimjobs.table.definitions import DEFAULT_TABLE

Described = Mapping[str, Any]
"""Parameters of a Queue as plain data. The table may be MODULE:ATTRIBUTE of a Table or a mapped class."""

PLAIN: Final = ("table", "where", "order_by", "hold", "claims", "side_car", "on_done")
"""The parameters of a Queue that a map may have, beside its sections."""
SECTIONS: Final[Mapping[str, Collection[str]]] = {
    "columns": [field.name for field in fields(Columns) if field.name != "states"],
    "states": STATES,
    "retry": [field.name for field in fields(Retry)],
    "per_key": [field.name for field in fields(PerKey)],
}
"""The names that each section may have."""


def read_map(path: str | Path) -> dict[str, Any]:
    """The parameters of the Queue that a TOML file describes: `Queue(url, **read_map("orders.toml"))`.

    Raises BadMap, and ReferenceNotFound or UnfitTable for a table that is MODULE:ATTRIBUTE.
    """
    described = described_in(path)
    return {**described, "table": table_of(described)}


def described_in(path: str | Path) -> Described:
    """What the file says, without a look at the table. Raises BadMap."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise BadMap(f"{path} is no TOML: {error}: correct it there; text stands in quotes") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadMap(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}): check the path") from None
    _check_known(f"{path}:", found, (*PLAIN, *SECTIONS))
    given = {name: found.pop(name, {}) for name in SECTIONS}
    for name, section in given.items():
        if not isinstance(section, dict):
            raise BadMap(f"{path}: {name!r} is a section: write a line [{name}], and its names below")
        _check_known(f"{path}: [{name}]", section, SECTIONS[name])
    if given["per_key"]:
        found["per_key"] = per_key_of(f"{path}: [per_key]", given["per_key"])
    try:
        if given["columns"] or given["states"]:
            names = {role: None if name == "" else name for role, name in given["columns"].items()}
            found["columns"] = Columns(**names, states=given["states"] or None)
        if given["retry"]:
            found["retry"] = Retry(**given["retry"])
    except ValueError as error:
        raise BadMap(f"{path}: {error}") from None
    return found


def _check_known(where: str, found: Collection[str], known: Collection[str]) -> None:
    for name in found:
        if name not in known:
            raise BadMap(f"{where} {name!r} is not known there: choose one of {', '.join(known)}")


def per_key_of(where: str, given: Mapping[str, Any], base: PerKey | None = None) -> PerKey:
    """What is given, or `base` with what is given changed. Raises BadMap for values that do not go together."""
    try:
        return PerKey(**given) if base is None else replace(base, **given)
    except (TypeError, ValueError) as error:
        raise BadMap(f"{where}: {error}") from None


def queue_of(bind: Bind, described: Described, **options: Any) -> Queue:
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
    if ":" not in table:
        return table
    found: sa.Table | type[Any] = load(table)
    reflection.table_of(found, table)  # raises for what is none
    return found


def load(reference: str) -> Any:
    """The object that `MODULE:ATTRIBUTE` names. Modules of the current folder are found, too.

    Raises ReferenceNotFound, with the reason.
    """
    name, _, path = reference.partition(":")
    if path and ("/" in name or name.endswith(".py")):
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        raise ReferenceNotFound(reference, f"{name!r} is a path: name the module, as in {module}:{path}")
    if not name or not path:
        raise ReferenceNotFound(reference, "it is not of the form MODULE:ATTRIBUTE")
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise ClaimjobsError(FOLDER_GONE) from None
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        # A user's module may raise any error while it is imported. The message names the reference.
        raise ReferenceNotFound(reference, f"importing {name!r} failed: {type(error).__name__}: {error}") from error
    finally:
        enable_loggers()  # it may have configured the log
    for attribute in path.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            raise ReferenceNotFound(reference, f"module {name!r} has no {path!r}") from None
    return found
