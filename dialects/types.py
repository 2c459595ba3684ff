"""Types of columns and of parameters, expressions and table options that differ between databases."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.engine import Dialect as SQLAlchemyDialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

_WITHOUT_TIME_ZONES = ("mysql", "mariadb")
"""Their DATETIME has no time zone: claimjobs stores UTC in it. (TIMESTAMP ends in 2038.)"""


class Instant(sa.TypeDecorator[datetime]):
    """A point in time: always aware in Python, to the microsecond in the table.

    Raises ValueError (as SQLAlchemy's StatementError) for a datetime without a time zone.
    """

    impl = sa.DateTime(timezone=True)
    cache_ok = True
    digits: ClassVar[int | None] = 6
    """Digits of a second on MySQL."""

    def load_dialect_impl(self, dialect: SQLAlchemyDialect) -> sa.types.TypeEngine[Any]:
        if dialect.name in _WITHOUT_TIME_ZONES:
            return dialect.type_descriptor(mysql.DATETIME(fsp=self.digits))
        return dialect.type_descriptor(sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: SQLAlchemyDialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone: give an aware datetime, such as one in UTC")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name in _WITHOUT_TIME_ZONES else value

    def process_result_value(self, value: datetime | None, dialect: SQLAlchemyDialect) -> datetime | None:
        if not isinstance(value, datetime):
            if value is None:
                return None
            raise ValueError(f"{value!r} is no date and time")  # PyMySQL gives a zero date as text
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class WholeSecond(Instant):
    """An instant to the second on MySQL: `owner_date datetime`, as in the article."""

    cache_ok = True
    digits = None


JSON_DOCUMENT: Final[sa.types.TypeEngine[Any]] = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
"""A JSON document, in the form that a database searches fastest."""


def exact_text(length: int) -> sa.types.TypeEngine[str]:
    """Text that is compared exactly: for the default collation of MySQL `Ada` equals `ADA`."""
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_bin"), *_WITHOUT_TIME_ZONES)


class database_now(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL function it is
    """The database's clock, as an instant in UTC; as a column default as well."""

    type = Instant()
    inherit_cache = True
    sql = "now()"


class statement_now(database_now):  # noqa: N801 - reads as the SQL function it is
    """The database's clock at the start of the statement, not of the transaction."""

    inherit_cache = True
    sql = "statement_timestamp()"


@compiles(database_now)
def _now(element: database_now, _compiler: SQLCompiler, **_kw: Any) -> str:
    return element.sql


@compiles(database_now, *_WITHOUT_TIME_ZONES)
def _utc_now(_element: database_now, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "utc_timestamp(6)"


def table_options(**options: Any) -> dict[str, Any]:
    """Keyword arguments of `Table` that only one family of databases reads.

    InnoDB has the row locks that a claim needs. utf8mb4 holds any text, also if the server's default is older. An index
    of the row format DYNAMIC holds 3,072 bytes; one of COMPACT, which may be the default, 767: too few for a name.
    """
    options = {"engine": "InnoDB", "charset": "utf8mb4", "row_format": "DYNAMIC", **options}
    return {f"{name}_{option}": str(value) for name in _WITHOUT_TIME_ZONES for option, value in options.items()}


# --- the keys of jobs as their database stores them ------------------------------------------------------------

# A user's type may give Python other values than the database has: an Enum gives members, a TypeDecorator what it
# likes. So a key that is sent within a JSON document or a list is written by the types of its columns first. SQLAlchemy
# does it only for a value that is a parameter by itself.


def stored_type(type_: sa.types.TypeEngine[Any], here: sa.Dialect) -> sa.types.TypeEngine[Any]:
    """The type on this database, without the decorators around it, as it is described."""
    found = type_._variant_mapping.get(here.name, type_)
    return stored_type(found.load_dialect_impl(here), here) if isinstance(found, sa.TypeDecorator) else found


def with_stored(
    type_: sa.types.TypeEngine[Any], here: sa.Dialect, change: Callable[[Any], sa.types.TypeEngine[Any]]
) -> sa.types.TypeEngine[Any]:
    """The type with another stored type within the decorators around it: the one that `change` makes of it."""
    found = type_._variant_mapping.get(here.name, type_)
    if not isinstance(found, sa.TypeDecorator):
        return change(found)
    decorator: sa.TypeDecorator[Any] = found.copy()
    decorator.impl = decorator.impl_instance = with_stored(found.impl_instance, here, change)
    return decorator


def whole_numbers(type_: sa.Integer) -> sa.Integer:
    """The largest type of whole numbers, with or without a sign, as this one."""
    return mysql.BIGINT(unsigned=True) if getattr(type_, "unsigned", False) else sa.BigInteger()


class StoredKeys(sa.TypeDecorator[Sequence[Any]]):
    """Keys as a driver gets them, in one parameter for any number of keys."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, here: sa.Dialect, types: tuple[sa.types.TypeEngine[Any], ...]) -> None:
        """`here`: a dialect without a driver: the values are not wrapped for one. `types`: those of the key."""
        super().__init__()
        self.here, self.types = here, types

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


class WrittenKeys(StoredKeys):
    """Keys of several columns as a list in SQL. A text is converted to the character set of its column."""

    cache_ok = True

    def literal_processor(self, dialect: sa.Dialect) -> Any:
        collations = [getattr(stored_type(type_, self.here), "collation", None) for type_ in self.types]

        def write(keys: Sequence[Any]) -> str:
            rows = [", ".join(map(_written, row, collations)) for row in self.process_bind_param(keys, dialect)]
            return f"(({'), ('.join(rows)}))" if rows else f"(SELECT 1{', 1' * (len(collations) - 1)} WHERE FALSE)"

        return write


def _written(part: Any, collation: str | None) -> str:
    """A value in SQL. A text is written as hex, which no mode of the server reads in another way."""
    if part is None:
        return "NULL"
    if isinstance(part, int | Decimal):
        return format(part, "f" if isinstance(part, Decimal) else "d")
    if isinstance(part, bytes | bytearray | memoryview):
        return f"X'{bytes(part).hex()}'"
    text = f"_utf8mb4 X'{str(part).encode().hex()}'"
    return f"CONVERT({text} USING {collation.partition('_')[0]}) COLLATE {collation}" if collation else text


def _as_text(part: Any) -> str:
    return bytes(part).hex() if isinstance(part, bytes | bytearray | memoryview) else str(part)


_JSON: Final = json.JSONEncoder(default=_as_text, ensure_ascii=False)
"""A character that is no ASCII has four bytes at most so, and not up to fourteen, when the driver has escaped them."""
