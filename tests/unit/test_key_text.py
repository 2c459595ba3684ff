"""Keys as text: what a message or `list --state dead` shows is what a command takes."""

from __future__ import annotations

from enum import Enum

import pytest
import sqlalchemy as sa

from claimjobs.cli.jobs import keys_of
from claimjobs.key_text import key_in_message, key_text

KEY = sa.Table("jobs", sa.MetaData(), sa.Column("shop", sa.String(9)), sa.Column("name", sa.String(9))).c.values()


@pytest.mark.parametrize("key", [("a,b", "c\nd"), ("a", "\r\n"), ("\r", "x"), ('"', "'"), ("", "")])
def test_a_key_of_several_columns_is_read_as_it_was_written(key: tuple[str, str]) -> None:
    assert keys_of(KEY, [key_text(key)]) == [key]
    assert len(key_in_message(key).splitlines()) == 1


class Size(Enum):
    LARGE = "up to 20 kg"


def test_a_member_of_an_enum_is_what_the_database_stores() -> None:
    column = sa.Table("jobs", sa.MetaData(), sa.Column("size", sa.Enum(Size))).c.size
    assert key_text(Size.LARGE) == "LARGE"
    assert keys_of([column], ["LARGE"]) == ["LARGE"]
