"""DDL waits for its lock for a short time: all later statements on the table wait behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from claimjobs.errors import TableInUse
from claimjobs.table.create import alter
from claimjobs.table.definitions import article_table
from tests.backends import Backend

JOBS = article_table()
READ_LIMIT = {"postgres": "SHOW lock_timeout"}


def column(backend: Backend) -> None:
    alter(backend.engine, JOBS, ["ALTER TABLE jobs ADD COLUMN colour VARCHAR(8)"])


@pytest.fixture
def in_use(database: Backend) -> Iterator[Backend]:
    """A database, in whose table another transaction has written a row."""
    database.make()
    with database.new_engine().connect() as other:
        other.execute(sa.insert(JOBS).values(d="in hand", e=""))
        yield database


def limit(backend: Backend) -> object:
    with backend.engine.connect() as connection:
        return connection.exec_driver_sql(
            READ_LIMIT.get(backend.family, "SELECT @@SESSION.lock_wait_timeout")
        ).scalar_one()


def test_a_table_in_use_is_not_waited_for(in_use: Backend) -> None:
    before = limit(in_use)
    with pytest.raises(TableInUse, match="table 'jobs' was not free within 2 s: another session has a lock on it"):
        column(in_use)
    assert limit(in_use) == before


def test_setup_goes_on_when_the_table_is_free(database: Backend) -> None:
    database.make()
    column(database)
    assert "colour" in [one["name"] for one in sa.inspect(database.engine).get_columns("jobs")]
