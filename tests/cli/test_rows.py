"""Rows from files, without a server."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
import sqlalchemy as sa

from claimjobs import job_table
from claimjobs.cli.enqueue import FileRows

TABLE = job_table(
    "things",
    sa.MetaData(),
    sa.Column("name", sa.String(8), nullable=False),
    sa.Column("count", sa.Integer),
    sa.Column("size", sa.Float),
    sa.Column("price", sa.Numeric(10, 2)),
    sa.Column("on", sa.Boolean),
    sa.Column("at", sa.DateTime(timezone=True)),
    sa.Column("local", sa.DateTime()),
    sa.Column("day", sa.Date),
    sa.Column("hour", sa.Time),
    sa.Column("ref", sa.Uuid),
    sa.Column("blob", sa.LargeBinary),
    sa.Column("doc", sa.JSON),
    sa.Column("exact", sa.Numeric(40, 12)),
    sa.Column("numbers", sa.ARRAY(sa.Numeric)),
    sa.Column("note", sa.Text, nullable=False, server_default="none"),
)


class Read:
    """What a reader makes of some bytes."""

    def __init__(self, kind: str, content: bytes, table: sa.Table = TABLE) -> None:
        self.reasons: list[tuple[int, str]] = []
        reader = FileRows(io.BytesIO(content), table, is_csv=kind == "csv")
        with patch.object(reader, "_report", lambda line, reason: self.reasons.append((line, reason))):
            self.rows = list(reader)
        self.lines = list(reader.lines)

    @property
    def reason(self) -> str:
        return self.reasons[0][1]


def from_csv(header: str, value: str) -> Any:
    read = Read("csv", f"name,{header}\nx,{value}\n".encode())
    assert not read.reasons
    return read.rows[0].get(header, "left out")


def from_json(name: str, value: str) -> Any:
    read = Read("jsonl", f'{{"name": "x", "{name}": {value}}}\n'.encode())
    assert not read.reasons
    return read.rows[0][name]


# --- values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("count", "-12", -12),
        ("size", "1.5", 1.5),
        ("price", "0.10", Decimal("0.10")),
        ("on", "TRUE", True),
        ("on", "0", False),
        ("at", "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("run_at", "2026-01-31T13:00:00+01:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("local", "2026-01-31 12:00:00", datetime(2026, 1, 31, 12)),  # noqa: DTZ001 - the column has no zone
        ("local", "2026-01-31T13:00:00+01:00", datetime(2026, 1, 31, 12)),  # noqa: DTZ001
        ("day", "2026-01-31", date(2026, 1, 31)),
        ("hour", "12:30", time(12, 30)),
        ("ref", "12345678-1234-5678-1234-567812345678", UUID("12345678123456781234567812345678")),
        ("blob", "aGVsbG8=", b"hello"),
        ("doc", '"{""a"": [1]}"', {"a": [1]}),
        ("note", "ça", "ça"),
    ],
)
def test_text_of_csv_becomes_the_columns_type(column: str, text: str, value: Any) -> None:
    assert from_csv(column, text) == value


@pytest.mark.parametrize(("column", "value"), [("count", None), ("note", "left out"), ("priority", "left out")])
def test_an_empty_field_is_the_default_or_null(column: str, value: Any) -> None:
    assert from_csv(column, "") == value
    assert from_csv("doc", "") is sa.null(), "and not the null of JSON"


def test_an_empty_field_of_a_text_that_must_be_given_is_an_empty_text() -> None:
    assert Read("csv", b"name,count\n,1\n").rows == [{"name": "", "count": 1}]


@pytest.mark.parametrize(
    ("column", "written", "value"),
    [
        ("count", "7", 7),
        ("size", "7", 7.0),
        ("price", "0.1", Decimal("0.1")),
        ("price", '"0.10"', Decimal("0.10")),
        ("on", "true", True),
        ("at", '"2026-01-31T12:00:00Z"', datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("day", '"2026-01-31"', date(2026, 1, 31)),
        ("doc", '{"a": [1, null]}', {"a": [1, None]}),
        ("count", "null", None),
        ("blob", '"aGVsbG8="', b"hello"),
        ("exact", "12345678901234567890.123456789", Decimal("12345678901234567890.123456789")),
        ("size", "1.5e3", 1500.0),
        ("doc", '{"a": [1.10, 1e5, -0.0, 18446744073709551615]}', {"a": [1.1, 100000.0, -0.0, 2**64 - 1]}),
        (
            "numbers",
            "[0.1, 12345678901234567890.123456789]",
            [Decimal("0.1"), Decimal("12345678901234567890.123456789")],
        ),
    ],
)
def test_json_becomes_the_columns_type(column: str, written: str, value: Any) -> None:
    assert from_json(column, written) == value


@pytest.mark.parametrize(
    ("column", "written", "reason"),
    [
        ("count", "7.5", "'7.5' is no whole number"),
        ("count", "true", "'True' is no whole number"),
        ("size", '"x"', "'x' is no number"),
        ("price", '"x"', "'x' is no number"),
        ("on", "1", "'1' is no truth: write true or false"),
        ("at", '"2026-01-31T12:00:00"', "has no time zone: write it as 2026-01-31T12:00:00Z"),
        ("at", "1234", "'1234' is no instant: write it as 2026-01-31T12:00:00Z"),
        ("day", '"31.1.2026"', "'31.1.2026' is no date: write it as 2026-01-31"),
        ("hour", '"noon"', "'noon' is no time: write it as 12:00:00"),
        ("ref", '"x"', "'x' is no UUID"),
        ("blob", '"?"', "'?' is no base64"),
        ("note", "5", "'5' is no text: put it in quotes"),
        ("size", "1e400", "'1E+400' is no number that it can hold"),
        ("doc", '{"a": [1e400]}', "1E+400 would change, because JSON has numbers of 64 bits: write it in quotes"),
        ("doc", "12345678901234567890.123456789", "12345678901234567890.123456789 would change"),
        ("doc", "123456789012345678901", "123456789012345678901 would change"),
    ],
)
def test_a_wrong_value_is_told_with_its_column(column: str, written: str, reason: str) -> None:
    read = Read("jsonl", f'{{"name": "x", "{column}": {written}}}\n'.encode())
    assert not read.rows
    assert f"column {column!r}: " in read.reason
    assert reason in read.reason


@pytest.mark.parametrize(
    ("column", "text", "reason"),
    [
        ("size", "1e400", "'1e400' is no number that it can hold"),
        ("doc", "[1e400]", "1E+400 would change"),
        ("doc", "NaN", "NaN is no number"),
        ("doc", "1e99999999999999999999", "has a number that nothing can hold"),
    ],
)
def test_a_number_of_csv_does_not_change_either(column: str, text: str, reason: str) -> None:
    read = Read("csv", f"name,{column}\nx,{text}\n".encode())
    assert reason in read.reason


def test_a_number_that_python_cannot_hold_is_a_bad_row() -> None:
    read = Read("jsonl", b'{"name": "x", "size": 1e99999999999999999999}\n{"name": "y"}\n')
    assert read.reasons == [(1, "has a number that nothing can hold")]
    assert read.lines == [2]


def test_a_type_of_the_users_own_gets_what_was_written() -> None:
    class Upper(sa.TypeDecorator[str]):
        impl = sa.Integer
        cache_ok = True

    table = job_table("own", sa.MetaData(), sa.Column("u", Upper))
    read = Read("jsonl", b'{"u": "x"}', table)
    assert (read.rows, read.reasons) == ([{"u": "x"}], [])


# --- lines ---------------------------------------------------------------------------------------------------


def test_lines_of_json_are_counted_with_the_empty_ones() -> None:
    read = Read("jsonl", b'\xef\xbb\xbf{"name": "a"}\r\n\n  \n{"name": "b"}')
    assert read.lines == [1, 4]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"name": ', "is no JSON (Expecting value at character 10)"),
        (b'{"name": "x", "size": NaN}', "is no JSON (NaN is no number)"),
        (b"5", 'is no JSON object: write a row as {"column": value, ...}'),
        (b"[]", "each on a line, as `jq -c` does"),
        (b'{"name": "\xff"}', "is not UTF-8"),
        (b'{"name":' + b"[" * 100_000, "is nested too deeply"),
        (b'{"count": ' + b"1" * 5_000 + b"}", "integer string conversion"),
    ],
)
def test_a_line_that_is_no_row_does_not_end_the_file(line: bytes, reason: str) -> None:
    read = Read("jsonl", b'{"name": "a"}\n' + line + b'\n{"name": "b"}\n')
    assert read.lines == [1, 3]
    assert [line for line, _ in read.reasons] == [2]
    assert reason in read.reason


def test_a_row_of_csv_has_the_line_it_begins_on() -> None:
    read = Read("csv", b'name,note\na,"two\nlines"\n\nb,x\n')
    assert read.lines == [2, 5]
    assert read.rows[0] == {"name": "a", "note": "two\nlines"}


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (b"b\n", "has 1 fields, and the header has 2"),
        (b"b,c,d\n", "has 3 fields, and the header has 2"),
        (b'b,"c"d\n', "is no CSV ("),
        (b"b,\xff\n", "is not UTF-8"),
        (b'b,"c\n\xff"\n', "is not UTF-8"),
    ],
)
def test_a_row_that_is_no_csv_does_not_end_the_file(lines: bytes, reason: str) -> None:
    read = Read("csv", b"name,note\na,x\n" + lines + b"z,x\n")
    assert [row["name"] for row in read.rows] == ["a", "z"]
    assert [line for line, _ in read.reasons] == [3]
    assert reason in read.reason


def test_a_quote_that_is_closed_too_late_is_told_with_the_lines_that_it_takes() -> None:
    read = Read("csv", b'name,note\na,x\nb,"y\nc,z\nd,z\n')
    assert read.reasons == [(3, "is no CSV (unexpected end of data); no row is enqueued of lines 3 to 5")]
    read = Read("csv", b'name,note\na,"x\nb,y\nc,z",z\nd,z\n')
    assert read.reasons == [(2, "has 3 fields, and the header has 2; no row is enqueued of lines 2 to 4")]
    assert [row["name"] for row in read.rows] == ["d"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the header names nothing"),
        (b"name,nome\n", "the header names 'nome', not each column once: table 'things' has "),
        (b"name,count,name\nx,1,x\n", "the header names 'name', 'name', not each column once"),
        (b"\xff\xfen\x00", "the header names "),
        (b'name,"count\nx,1\n', "the header is no CSV (unexpected end of data)"),
    ],
)
def test_a_header_must_fit(content: bytes, reason: str) -> None:
    read = Read("csv", content)
    assert read.rows == []
    assert [line for line, _ in read.reasons] == [1]
    assert reason in read.reason
