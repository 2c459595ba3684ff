"""How rows are handed to a driver."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pymysql
import pytest
import sqlalchemy as sa
from pymysql.converters import escape_item
from sqlalchemy.dialects import mysql

from claimjobs.enqueue.bulk_insert import RowValues, size_in_sql

VALUES: list[Any] = [
    None,
    True,
    -(2**63),
    0.1 + 0.2,
    1e-300,
    Decimal("-" + "9" * 65),
    date(2024, 2, 29),
    datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC),
    time(23, 59, 59, 999_999),
    timedelta(days=-34, microseconds=1),
    "",
    "plain",
    "\"'\\\n\r\0\x1a%s" * 100,
    "é☃𝄞" * 100,
    b"",
    bytes(range(256)) * 10,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_the_size_in_sql_of_a_value_is_never_underestimated(value: Any) -> None:
    written = escape_item(value, "utf8mb4")
    assert size_in_sql((value,)) >= len(f"({written}), ".encode("utf8", "surrogateescape"))
    assert size_in_sql((value,) * 1_000) >= 1_000 * len(f"({written}), ".encode("utf8", "surrogateescape"))


def test_values_of_several_kinds_count_all() -> None:
    texts, data = ("x" * 1_000,) * 3, (b"y" * 1_000,) * 4
    assert size_in_sql((*texts, *data, 1, None)) >= 7_000


def test_the_size_in_sql_of_what_is_not_known_has_no_bound() -> None:
    class Text(str):
        __slots__ = ()

    assert size_in_sql(("x", Text("x"))) == float("inf")
    assert size_in_sql(("x", {"a": 1})) == float("inf")


def test_values_are_read_by_name_and_written_by_their_types() -> None:
    rows: list[dict[str, Any]] = [{"b": {"x": 1}, "a": "one"}, {"a": "two", "b": None}]
    values = RowValues({"a": sa.String(), "b": sa.JSON()}, mysql.dialect())
    assert values.rows(rows) == [("one", '{"x": 1}'), ("two", "null")]
    assert RowValues({"a": sa.String()}, mysql.dialect()).rows(rows) == [("one",), ("two",)]


def test_the_bound_is_one_that_the_driver_keeps_as_well() -> None:
    from claimjobs.dialects import DIALECTS

    assert DIALECTS["mysql"].joins_rows <= pymysql.cursors.Cursor.max_stmt_length
