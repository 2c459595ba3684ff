"""The text of a key, and the lock on it: the same for every driver, and every description of a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from claimjobs.contrib.advisory_locks import key_text_of
from claimjobs.dialects import DIALECTS
from claimjobs.dialects.types import Instant
from claimjobs.table.columns import Columns
from claimjobs.table.roles import roles_of

HERE: dict[str, sa.Dialect] = {
    "postgres": postgresql.dialect(),  # type: ignore[no-untyped-call]
    "mysql": mysql.dialect(),
}
SOME = UUID("00000000-0000-0000-0000-0000000000ff")
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(params=HERE)
def here(request: pytest.FixtureRequest) -> sa.Dialect:
    return HERE[request.param]


def text(here: sa.Dialect, key: Any, *types: Any) -> str:
    columns = [sa.Column(f"k{place}", kind) for place, kind in enumerate(types)]
    table = sa.Table("t", sa.MetaData(), *columns)
    return key_text_of(roles_of(table, Columns(key=[column.name for column in columns])), here)(key)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((7, sa.Integer), (Decimal(7), sa.Numeric)),
        ((True, sa.Boolean), (1, sa.SmallInteger)),
        ((b"\x01", sa.LargeBinary), (memoryview(b"\x01"), sa.LargeBinary)),
        ((NOON, Instant), (NOON.astimezone(timezone(timedelta(hours=3))), Instant)),
        ((NOON, Instant), (NOON.replace(tzinfo=None), sa.DateTime)),
    ],
    ids=["number", "truth", "bytes", "instant of another zone", "instant without a zone"],
)
def test_the_same_value_has_the_same_text(here: sa.Dialect, one: Any, other: Any) -> None:
    assert text(here, *one) == text(here, *other)


def test_a_uuid_has_the_same_text_as_what_stands_in_the_table() -> None:
    assert text(HERE["mysql"], SOME, sa.Uuid) == text(HERE["mysql"], SOME.hex, sa.CHAR(32))
    as_text = str(SOME), sa.Uuid(as_uuid=False)
    assert text(HERE["postgres"], SOME, sa.Uuid) == text(HERE["postgres"], *as_text)


def test_the_parts_of_a_key_are_told_apart(here: sa.Dialect) -> None:
    both = (sa.String, sa.String)
    assert text(here, ("a", "bc"), *both) != text(here, ("ab", "c"), *both)
    assert text(here, ('a", "b', "c"), *both) != text(here, ("a", 'b", "c'), *both)


def test_a_lock_of_a_server_with_numbers_shows_the_key() -> None:
    lock_of = DIALECTS["postgresql"]().sessions.key_lock
    assert lock_of("public.jobs", "7") & 0xFFFFFFFF == 7
    assert lock_of("public.jobs", "7") >> 32 == lock_of("public.jobs", "x") >> 32 != lock_of("public.mails", "7") >> 32
    numbers = [lock_of(f"public.t{n}", key) for n in range(50) for key in ("1", "-1", "99999999999999999", "x", "é")]
    assert len(set(numbers)) == len(numbers)
    assert all(-(1 << 63) <= number < 1 << 63 for number in numbers)


def test_a_lock_of_a_server_with_names_has_a_short_one() -> None:
    lock_of = DIALECTS["mysql"]().sessions.key_lock
    names = [lock_of(f"{'database' * 8}.{table}", key) for table in ("a" * 64, "b") for key in ("1", "2", "x" * 700)]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 64 for name in names)
    assert lock_of("shop.Jobs", "1") == lock_of("shop.jobs", "1")  # which some servers take for the same table
    assert lock_of("shop.jobs", "1").startswith("cj.shop.jobs.")
