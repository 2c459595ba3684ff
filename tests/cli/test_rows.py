"""Rows from files, without a server."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from claimjobs import job_table
from claimjobs.cli.rows import ReadRows, Source, csv_rows, json_lines
from claimjobs.cli.values import Values
from claimjobs.errors import BadRow

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

    def __init__(self, reader: ReadRows, content: bytes, first: int = 1) -> None:
        self.bad: list[BadRow] = []
        self.source = Source(content.splitlines(keepends=True))
        self.rows = list(reader(self.source, TABLE, first, self.bad.append))

    @property
    def lines(self) -> list[int]:
        return [row.line for row in self.rows]

    @property
    def reasons(self) -> list[tuple[int, str]]:
        return [(bad.line, bad.reason) for bad in self.bad]


def from_csv(header: str, value: str) -> Any:
    read = Read(csv_rows, f"name,{header}\nx,{value}\n".encode())
    assert not read.bad, read.reasons
    return read.rows[0].get(header, "left out")


def from_json(name: str, value: str) -> Any:
    read = Read(json_lines, f'{{"name": "x", "{name}": {value}}}\n'.encode())
    assert not read.bad, read.reasons
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


@pytest.mark.parametrize(
    ("column", "value"), [("count", None), ("doc", None), ("note", "left out"), ("priority", "left out")]
)
def test_an_empty_field_is_the_default_or_null(column: str, value: Any) -> None:
    assert from_csv(column, "") == value


def test_an_empty_field_of_a_text_that_must_be_given_is_an_empty_text() -> None:
    assert Read(csv_rows, b"name,count\n,1\n").rows == [{"name": "", "count": 1}]


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
        ("numbers", "[0.1, 12345678901234567890.123456789]", [0.1, Decimal("12345678901234567890.123456789")]),
    ],
)
def test_json_becomes_the_columns_type(column: str, written: str, value: Any) -> None:
    assert from_json(column, written) == value


@pytest.mark.parametrize(
    ("column", "written", "reason"),
    [
        ("count", '"7"', "'7' is no whole number"),
        ("count", "7.5", "7.5 is no whole number"),
        ("count", "true", "True is no whole number"),
        ("size", '"x"', "'x' is no number"),
        ("price", '"x"', "'x' is no number"),
        ("on", "1", "1 is neither true nor false"),
        ("at", '"2026-01-31T12:00:00"', "has no time zone: write it as 2026-01-31T12:00:00Z"),
        ("at", "1234", "1234 is no datetime: write it as 2026-01-31T12:00:00Z"),
        ("day", '"31.1.2026"', "'31.1.2026' is no date: write it as 2026-01-31"),
        ("hour", '"noon"', "'noon' is no time: write it as 12:00:00"),
        ("ref", '"x"', "'x' is no UUID"),
        ("blob", '"?"', "'?' is no base64"),
        ("note", "5", "5 is no text: put it in quotes"),
        ("note", "null", "must not be null"),
        ("size", "1e400", "1E+400 is out of its range"),
        ("doc", '{"a": [1e400]}', "1E+400 would change, because JSON has numbers of 64 bits: write it in quotes"),
        ("doc", "12345678901234567890.123456789", "12345678901234567890.123456789 would change"),
        ("doc", "123456789012345678901", "123456789012345678901 would change"),
        ("status", '"new"', "'new' is none of unclaimed, claimed, done, dead"),
    ],
)
def test_a_wrong_value_is_told_with_its_column(column: str, written: str, reason: str) -> None:
    read = Read(json_lines, f'{{"name": "x", "{column}": {written}}}\n'.encode())
    assert not read.rows
    assert f"column {column!r}: " in read.bad[0].reason
    assert reason in read.bad[0].reason


@pytest.mark.parametrize(
    ("column", "text", "reason"),
    [
        ("size", "1e400", "'1e400' is out of its range"),
        ("doc", "[1e400]", "1E+400 would change"),
        ("doc", "NaN", "NaN is no number"),
        ("doc", "1e99999999999999999999", "nothing can hold the number"),
    ],
)
def test_a_number_of_csv_does_not_change_either(column: str, text: str, reason: str) -> None:
    read = Read(csv_rows, f"name,{column}\nx,{text}\n".encode())
    assert reason in read.bad[0].reason


def test_a_number_that_python_cannot_hold_is_a_bad_row() -> None:
    read = Read(json_lines, b'{"name": "x", "size": 1e99999999999999999999}\n{"name": "y"}\n')
    assert read.reasons == [(1, "is no JSON (nothing can hold the number 1e99999999999999999999)")]
    assert read.lines == [2]


def test_too_long_is_known_before_the_database_is_asked() -> None:
    read = Read(json_lines, b'{"name": "123456789"}\n{"name": "12345678"}')
    assert read.reasons == [(1, "column 'name': 9 characters are too long for it, it holds 8")]
    assert read.lines == [2]


def test_what_must_be_given_is_known_too() -> None:
    assert Read(json_lines, b'{"count": 1}').reasons == [(1, "column 'name' is missing, and has no default")]


def test_an_enum_without_a_default_is_left_to_the_database() -> None:
    """Some take the first of its values where none is given."""
    table = sa.Table(
        "t", sa.MetaData(), sa.Column("kind", sa.Enum("a", "b"), nullable=False), sa.Column("n", sa.Integer)
    )
    assert Values(table, text=False).read({"n": 1}) == {"n": 1}


def test_a_type_of_the_users_own_gets_what_was_written() -> None:
    class Upper(sa.TypeDecorator[str]):
        impl = sa.Integer
        cache_ok = True

    table = job_table("own", sa.MetaData(), sa.Column("u", Upper))
    bad: list[BadRow] = []
    assert list(json_lines(Source([b'{"u": "x"}']), table, 1, bad.append)) == [{"u": "x"}]
    assert not bad


# --- lines ---------------------------------------------------------------------------------------------------


def test_lines_of_json_are_counted_with_the_empty_ones() -> None:
    read = Read(json_lines, b'\xef\xbb\xbf{"name": "a"}\r\n\n  \n{"name": "b"}')
    assert read.lines == [1, 4]
    assert [row.raw for row in read.rows] == [b'{"name": "a"}\r\n', b'{"name": "b"}']


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"name": ', "is no JSON (Expecting value at character 10)"),
        (b'{"name": "x", "size": NaN}', "is no JSON (NaN is no number)"),
        (b"5", 'is no JSON object: write a row as {"column": value, ...}'),
        (b"[", "`jq -c '.[]'` makes lines of it"),
        (b'{"name": "\xff"}', "is not UTF-8 (byte 0xff at 10)"),
        (b'{"name":' + b"[" * 100_000, "is nested too deeply"),
        (b'{"count": ' + b"1" * 5_000 + b"}", "integer string conversion"),
    ],
)
def test_a_line_that_is_no_row_does_not_end_the_file(line: bytes, reason: str) -> None:
    read = Read(json_lines, b'{"name": "a"}\n' + line + b'\n{"name": "b"}\n')
    assert read.lines == [1, 3]
    assert read.bad[0].line == 2
    assert reason in read.bad[0].reason
    assert read.bad[0].row.raw == line + b"\n"


def test_a_row_of_csv_has_the_line_it_begins_on() -> None:
    read = Read(csv_rows, b'name,note\na,"two\nlines"\n\nb,x\n')
    assert read.lines == [2, 5]
    assert read.rows[0] == {"name": "a", "note": "two\nlines"}
    assert read.rows[0].raw == b'a,"two\nlines"\n'


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (b"b\n", "has 1 fields, and the header has 2"),
        (b"b,c,d\n", "has 3 fields, and the header has 2"),
        (b'b,"c"d\n', "is no CSV ("),
        (b"b,\xff\n", "is not UTF-8 (byte 0xff at 2)"),
        (b'b,"c\n\xff"\n', "is not UTF-8"),
    ],
)
def test_a_row_that_is_no_csv_does_not_end_the_file(lines: bytes, reason: str) -> None:
    read = Read(csv_rows, b"name,note\na,x\n" + lines + b"z,x\n")
    assert [row["name"] for row in read.rows] == ["a", "z"]
    assert read.bad[0].line == 3
    assert reason in read.bad[0].reason
    assert read.bad[0].row.raw == lines


def test_a_quote_that_is_never_closed_is_told_where_it_opened() -> None:
    read = Read(csv_rows, b'name,note\na,x\nb,"y\nc,z\n')
    assert read.reasons == [(3, "is no CSV (unexpected end of data)")]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"name,nome\n", "'nome', which is no column of table 'things': it has "),
        (b"name,count,name\n", "'name' twice"),
        (b"\xff\xfen\x00", "is not UTF-8"),
    ],
)
def test_a_header_must_fit(content: bytes, reason: str) -> None:
    with pytest.raises(BadRow, match=reason) as caught:
        Read(csv_rows, content)
    assert caught.value.line == 1


def test_reading_can_begin_at_a_line() -> None:
    assert Read(json_lines, b'{"name": "a"}\n' * 5, first=4).lines == [4, 5]
    assert Read(csv_rows, b"name\na\nb\nc\n", first=3).lines == [3, 4]
    assert Read(csv_rows, b"name\na\n", first=1).lines == [2]
    assert Read(json_lines, b'{"name": "a"}\n', first=10).lines == []


def test_the_source_knows_how_far_it_is() -> None:
    read = Read(json_lines, b'{"name": "a"}\n\n')
    assert (read.source.line, read.source.position) == (2, 15)
