"""`claimjobs setup-tables --add` while another command does the same."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs.cli import exits
from claimjobs.table import create, reflection
from tests.backends import Backend
from tests.cli.command import claimjobs


@pytest.fixture
def orders(database: Backend) -> Backend:
    """A database with a table of a user's own."""
    database.run("CREATE TABLE orders (id int PRIMARY KEY, status varchar(10), owner_id int)")
    return database


def test_what_another_command_adds_meanwhile_is_not_added_again(
    orders: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter = create.alter

    def overtaken(engine: sa.Engine, table: sa.Table, statements: list[str]) -> None:
        monkeypatch.setattr(create, "alter", alter)
        alter(engine, table, statements[:2])
        alter(engine, table, statements)

    monkeypatch.setattr(create, "alter", overtaken)
    added = "run_at,priority,last_error"
    ended = claimjobs("setup-tables", "--table", "orders", "--add", added, "--yes", "--url", orders.url)
    assert ended.code == exits.OK, ended.err
    there = {column["name"] for column in sa.inspect(orders.engine).get_columns("orders")}
    assert there == {"id", "status", "owner_id", "run_at", "priority", "last_error"}


def test_a_column_that_is_added_between_two_readings_is_in_neither(
    orders: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = reflection.columns_in_database

    def early(connection: sa.Connection, table: sa.Table) -> dict[str, Any]:
        return {name: column for name, column in read(connection, table).items() if name != "owner_id"}

    monkeypatch.setattr(reflection, "columns_in_database", early)
    with orders.engine.connect() as connection:
        assert [*reflection.resolve(connection, "orders").c.keys()] == ["id", "status"]
