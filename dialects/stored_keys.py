"""The keys of jobs as their database stores them.

A user's type may give Python other values than the database has: an Enum gives members, a TypeDecorator what it likes.
Wherever a key is sent within something else (a JSON document, a list), each of its values is written by the type of its
column first, as SQLAlchemy does it for a value that is a parameter by itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

import sqlalchemy as sa


def stored_type(type_: sa.types.TypeEngine[Any], here: sa.Dialect) -> sa.types.TypeEngine[Any]:
    """The type on this database, without the decorators around it, as it is described."""
    found = type_._variant_mapping.get(here.name, type_)
    return stored_type(found.load_dialect_impl(here), here) if isinstance(found, sa.TypeDecorator) else found


class StoredKeys(sa.TypeDecorator[Sequence[Any]]):
    """Keys as a driver gets them, in one parameter for any number of keys."""

    impl = sa.Text
    cache_ok = True

    here: ClassVar[sa.Dialect]
    """A dialect without a driver: the values are not wrapped for one."""

    def __init__(self, types: tuple[sa.types.TypeEngine[Any], ...]) -> None:
        super().__init__()
        self.types = types

    @cached_property
    def _write(self) -> list[Any]:
        """What converts the values of each column; None: nothing does."""
        return [type_.dialect_impl(self.here).bind_processor(self.here) for type_ in self.types]

    def process_bind_param(self, value: Sequence[Any] | None, _dialect: sa.Dialect) -> Any:
        write = self._write
        keys: Sequence[Any] = value or ()
        if len(write) == 1:
            [to] = write
            return [to(key) for key in keys] if to else list(keys)
        return [tuple(to(part) if to else part for to, part in zip(write, key, strict=True)) for key in keys]


class JsonKeys(StoredKeys):
    """Keys as JSON. A key of several columns is a list; bytes are hex."""

    cache_ok = True

    def process_bind_param(self, value: Sequence[Any] | None, dialect: sa.Dialect) -> str:
        return _JSON.encode(super().process_bind_param(value, dialect))


def _as_text(part: Any) -> str:
    return bytes(part).hex() if isinstance(part, bytes | bytearray | memoryview) else str(part)


_JSON: Final = json.JSONEncoder(default=_as_text)
