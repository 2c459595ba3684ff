"""DDL waits for its lock for a short time: all later statements on the table wait behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import make, tables_for
from claimjobs.errors import TableInUse
from claimjobs.table.create import alter
from claimjobs.table.definitions import article_table
from tests.backends import Backend

JOBS = article_table()
READ_LIMIT = {"postgres": "SHOW lock_timeout"}


def index_again(backend: Backend) -> None:
    make(backend.engine, tables_for("jobs"))


def column(backend: Backend) -> None:
    alter(backend.engine, JOBS, ["ALTER TABLE jobs ADD COLUMN colour VARCHAR(8)"])


@pytest.fixture
def in_use(database: Backend) -> Iterator[tuple[Backend, int]]:
    """A table without its index, and the session of a transaction that has written a row of it."""
    database.make()
    dropped = "DROP INDEX jobs_claim" + ("" if database.family == "postgres" else " ON jobs")
    database.run(dropped)
    with database.new_engine().connect() as other:
        other.execute(sa.insert(JOBS).values(d="in hand", e=""))
        number = "pg_backend_pid()" if database.family == "postgres" else "connection_id()"
        yield database, other.execute(sa.text(f"SELECT {number}")).scalar_one()


def limit(backend: Backend) -> object:
    with backend.engine.connect() as connection:
        return connection.exec_driver_sql(
            READ_LIMIT.get(backend.family, "SELECT @@SESSION.lock_wait_timeout")
        ).scalar_one()


@pytest.mark.mariadb("it does not show who has a lock")
def test_a_table_in_use_is_not_waited_for_and_its_user_is_named(in_use: tuple[Backend, int]) -> None:
    database, session = in_use
    before = limit(database)
    ways: list[Callable[[Backend], None]] = [index_again, column]
    for way in ways:
        with pytest.raises(TableInUse, match=rf"table 'jobs' was not free within 2 s: .* session {session} \("):
            way(database)
    assert limit(database) == before
    assert "jobs_claim" not in [index["name"] for index in sa.inspect(database.engine).get_indexes("jobs")]


def test_a_reader_that_blocks_no_index_is_not_named(database: Backend) -> None:
    if database.family != "postgres":
        pytest.skip("there an index waits for readers, too")
    database.make()
    database.run("DROP INDEX jobs_claim")
    with database.new_engine().connect() as reader, database.new_engine().connect() as writer:
        reader.execute(sa.select(JOBS))
        writer.execute(sa.insert(JOBS).values(d="in hand", e=""))
        session = writer.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        with pytest.raises(TableInUse, match=rf" session {session} \("):
            index_again(database)


def test_setup_goes_on_when_the_table_is_free(database: Backend) -> None:
    database.make()
    column(database)
    index_again(database)
    assert "colour" in [one["name"] for one in sa.inspect(database.engine).get_columns("jobs")]


def test_several_make_the_same_tables_at_one_moment(database: Backend) -> None:
    """Another one comes first with each of them."""
    first = database.new_engine()

    @sa.event.listens_for(database.engine, "before_cursor_execute")
    def come_first(_connection: object, cursor: Any, statement: str, *_: object) -> None:
        if "CREATE T" in statement:
            if database.family != "postgres":
                cursor.execute("COMMIT")  # as the statement does itself
            with first.begin() as connection:
                connection.exec_driver_sql(statement)

    assert set(make(database.engine, tables_for("jobs")).existing) == {table.name for table in tables_for("jobs")}
