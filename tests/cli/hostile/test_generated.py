"""Whatever a person may write, thrown at every parser: a message or a value comes of it, and nothing else.

CLAIMJOBS_EXAMPLES is how many of each are generated: `make fuzz` takes five minutes.
"""

from __future__ import annotations

import io
import json
import math
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from claimjobs.cli.enqueue import FileRows
from claimjobs.cli.jobs import keys_of
from claimjobs.cli.options import COUNT, Duration, Number, Seconds
from claimjobs.database.connect import engine_of, shown
from claimjobs.dialects import DIALECTS
from claimjobs.errors import ClaimjobsError
from claimjobs.queue.map_file import described_in, queue_of
from claimjobs.table.definitions import article_table
from tests.cli.hostile import inputs

EXAMPLES = int(os.environ.get("CLAIMJOBS_EXAMPLES", "40"))
generated = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

TABLE = sa.Table(
    "every",
    sa.MetaData(),
    *(sa.Column(name, type_) for name, type_ in (("d", sa.String(9)), ("n", sa.Integer), ("big", sa.BigInteger))),
    *(sa.Column(name, type_) for name, type_ in (("f", sa.Float), ("m", sa.Numeric(5, 2)), ("b", sa.LargeBinary))),
    *(sa.Column(name, type_) for name, type_ in (("t", sa.DateTime(True)), ("day", sa.Date), ("clock", sa.Time))),
    *(sa.Column(name, type_) for name, type_ in (("u", sa.Uuid), ("j", sa.JSON), ("yes", sa.Boolean))),
)
NAMES = [*TABLE.c.keys(), "colour", ""]
SQL = st.lists(
    st.sampled_from(
        ["(", ")", "'", '"', "`", "--", "#", "/*", "*/", "/*!", ";", "$$", "$x$", "E'", "\\", "\n", " ", "d", "1"]
    )
    | st.text(max_size=3),
    max_size=15,
).map("".join)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part, max_size=3)
)
PIECES = st.sampled_from(
    [
        "mysql",
        "postgresql",
        "+",
        "pymysql",
        "psycopg",
        "://",
        ":",
        "@",
        "/",
        "?",
        "&",
        "=",
        "password",
        "%",
        "[",
        "]",
        "::1",
        "1",
    ]
)
WORDS = st.text(max_size=12) | st.sampled_from(inputs.NO_NUMBERS) | st.integers().map(str) | st.floats().map(str)


@generated
@given(st.lists(PIECES | st.text(max_size=4), max_size=12).map("".join))
def test_urls(text: str) -> None:
    try:
        engine = engine_of(text)
    except ClaimjobsError:
        return
    assert repr(engine)
    assert shown(engine.url)


@generated
@given(SQL)
@pytest.mark.parametrize("name", DIALECTS)
def test_predicates(name: str, text: str) -> None:
    """What is one whole expression is so in parentheses, too, and beside another one."""
    lexis = DIALECTS[name].lexis
    if lexis.flaw(f"{text}\n") is None:
        assert lexis.flaw(f"({text}\n)") is None
        assert lexis.flaw(f"(a = 1) and ({text}\n) and (b = '')") is None
        assert lexis.flaw(f"({text}\n") is not None
        assert lexis.flaw(f"{text}\n)") is not None


@generated
@given(WORDS)
def test_numbers_and_spans(text: str) -> None:
    kinds: list[click.ParamType[Any]] = [COUNT, Number(1, 1_000), Seconds(), Seconds(2), Duration()]
    for kind in kinds:
        found = allowed(partial(kind.convert, text, None, None))
        assert not isinstance(found, float) or math.isfinite(found)


@generated
@given(st.lists(WORDS, min_size=1, max_size=3))
def test_ids(texts: list[str]) -> None:
    for column in TABLE.c:
        allowed(partial(keys_of, [column], texts))
    allowed(lambda: keys_of([TABLE.c.d, TABLE.c.n], texts))


@generated
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4), st.binary(max_size=20))
def test_rows_of_json(row: dict[str, Any], noise: bytes) -> None:
    line = json.dumps(row).encode()
    place = len(noise) % (len(line) + 1)
    for text in (line, line[:place] + noise + line[place:], line[:place], noise):
        each_row(text + b"\n")


@generated
@given(st.lists(st.sampled_from(NAMES), max_size=4), st.lists(WORDS | SQL, max_size=5), st.binary(max_size=20))
def test_rows_of_csv(names: list[str], fields: list[str], noise: bytes) -> None:
    body = ",".join(fields).encode("utf-8", "surrogatepass")
    for text in (body, noise, body + noise):
        each_row(",".join(names).encode() + b"\n" + text + b"\n", is_csv=True)


def each_row(text: bytes, *, is_csv: bool = False) -> None:
    rows = FileRows(io.BytesIO(text), TABLE, is_csv=is_csv)
    assert len(list(rows)) == rows.count


@generated
@given(
    st.text(max_size=60) | st.dictionaries(st.sampled_from(["table", "where", "hold", "columns", "x"]), VALUES).map(str)
)
def test_maps(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "map.toml"
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        allowed(lambda: queue_of("postgresql://nowhere", described_in(file)))


def allowed(parse: Callable[[], Any]) -> Any:
    """What a parser makes of it; None where it says what is wrong."""
    try:
        return parse()
    except (click.ClickException, ClaimjobsError):
        return None


def test_the_table_of_a_queue_is_read_as_well() -> None:
    rows = FileRows(io.BytesIO(b'{"d": "a", "e": "b", "priority": 7}\n'), article_table(), is_csv=False)
    assert ([dict(row) for row in rows], rows.bad) == ([{"d": "a", "e": "b", "priority": 7}], 0)
