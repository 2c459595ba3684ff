"""What a driver is given is what SQLAlchemy would give it, or it is SQLAlchemy that has to."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine.interfaces import BindTyping

from claimjobs.database.compiled_statement import text_of


class Doubled(sa.TypeDecorator[int]):
    impl = sa.Integer
    cache_ok = True

    def process_bind_param(self, value: int | None, _dialect: sa.Dialect) -> int:
        return 2 * (value or 0)


JOBS = sa.Table(
    "jobs",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("a (b)%", sa.Text),
    sa.Column("number", Doubled),
    sa.Column("changed", sa.Integer),
)
FILLED = sa.Table("filled", sa.MetaData(), sa.Column("a", sa.Integer), sa.Column("b", sa.Integer, onupdate=lambda: 1))
ODD_NAME = JOBS.c["a (b)%"]
ID = JOBS.c.id
POSTGRES = PGDialect_psycopg()  # type: ignore[no-untyped-call]


@pytest.fixture(params=["postgres", "mysql"])
def here(request: pytest.FixtureRequest) -> sa.Dialect:
    kinds: dict[str, type[sa.Dialect]] = {"postgres": PGDialect_psycopg, "mysql": MySQLDialect_pymysql}
    return kinds[request.param]()


def test_values_that_are_known_and_values_that_are_given(here: sa.Dialect) -> None:
    given = sa.bindparam("given", type_=Doubled)
    text = text_of(sa.select(ID).where(JOBS.c.number == 4, ODD_NAME == "x", JOBS.c.number < given), here, {"given": 1})
    assert text.is_complete
    parameters = text.parameters({"given": 3})
    written = text.string % parameters
    assert [value for value in ("= 8", "= x", "< 6") if value not in written.replace("'x'", "x")] == []


def test_constants_are_written_into_a_text_that_the_server_prepares() -> None:
    given = {"given": 1, "size": 10}
    statement = sa.select(ID).where(JOBS.c.changed == -4, ODD_NAME == "x", sa.bindparam("given") > ID)
    text = text_of(statement.limit(sa.bindparam("size")), POSTGRES, given, "size")
    assert list(text.parameters(given)) == ["given"]
    assert text.string % {"given": 1} == (
        "SELECT jobs.id \nFROM jobs \nWHERE jobs.changed = (-4)::INTEGER AND jobs.\"a (b)%\" = 'x'::VARCHAR "
        "AND 1 > jobs.id \n LIMIT 10"
    )


class Kind(str, Enum):  # noqa: UP042 - a StrEnum prints its value
    RARE = "rare"


@pytest.mark.parametrize("value", ["it's", "50%", Kind.RARE, True])
def test_a_constant_that_is_no_plain_word_leaves_all_of_them_parameters(value: Any) -> None:
    given = {"size": 10}
    statement = sa.select(ID).where(JOBS.c.changed == 4, sa.literal(value, sa.Text) == ODD_NAME)
    text = text_of(statement.limit(sa.bindparam("size")), POSTGRES, given, "size")
    assert list(text.parameters(given).values()) == [4, value, 10]


@pytest.mark.parametrize(
    "statement",
    [
        sa.select(ID).where(ID.in_([1, 2])),
        sa.select(ID).where(sa.bindparam("x", "y", literal_execute=True) == ODD_NAME),
        sa.select(ID).where(sa.bindparam("x", callable_=lambda: "y") == ODD_NAME),
        sa.update(FILLED).values(a=1),
    ],
    ids=["a list of any length", "written into it", "asked for each time", "filled with each update"],
)
def test_what_is_another_text_or_another_value_each_time(here: sa.Dialect, statement: Any) -> None:
    assert not text_of(statement, here, {}).is_complete


def test_a_driver_that_is_told_the_types_of_parameters(here: sa.Dialect) -> None:
    assert text_of(sa.select(ID), here, {}).is_complete
    here.bind_typing = BindTyping.SETINPUTSIZES
    assert not text_of(sa.select(ID), here, {}).is_complete
