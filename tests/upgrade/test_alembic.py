"""Alembic's autogenerate leaves alone what claimjobs made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import claimjobs
from claimjobs import job_table, make, tables_for
from claimjobs.table.definitions import SHARED_TABLES, side_car_table
from tests.backends import Backend

THEIRS = {"theirs", "theirs_default"}


def proposals(backend: Backend, metadata: sa.MetaData, include: Callable[..., bool] | None) -> list[Any]:
    """What autogenerate proposes for this metadata."""
    with backend.engine.connect() as connection:
        options: dict[str, Any] = {"include_object": include, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options if include else {})
        return list(compare_metadata(context, metadata))


def emails(*more: sa.Column[Any]) -> sa.MetaData:
    metadata = sa.MetaData()
    job_table("emails", metadata, sa.Column("address", sa.String(80), nullable=False), *more)
    return metadata


@pytest.fixture
def made(database: Backend) -> Backend:
    """A database with tables of all kinds, and some of somebody else's."""
    side_car = side_car_table("orders_claims", [sa.Column("id", sa.Integer, primary_key=True, autoincrement=False)])
    described = emails().tables["emails"]
    make(database.engine, [*tables_for(described), tables_for("jobs")[0], side_car])
    for name in THEIRS:
        database.run(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY)")
    return database


@pytest.mark.thorough("the next test shows what it is for")
def test_without_it_autogenerate_proposes_to_drop_our_tables(made: Backend) -> None:
    dropped = {change[1].name for change in proposals(made, emails(), None) if change[0] == "remove_table"}
    ours = {*SHARED_TABLES, "orders_claims", "jobs"}
    assert dropped == {*ours, *THEIRS}


def test_with_it_autogenerate_proposes_only_what_is_about_other_tables(made: Backend) -> None:
    found = proposals(made, emails(), claimjobs.include_object)
    assert {(change[0], change[1].name) for change in found} == {("remove_table", name) for name in THEIRS}


def test_a_column_of_the_payload_is_proposed(made: Backend) -> None:
    found = proposals(made, emails(sa.Column("subject", sa.Text)), claimjobs.include_object)
    assert [change[3].name for change in found if change[0] == "add_column"] == ["subject"]
    assert len(found) == 1 + len(THEIRS)


@pytest.mark.thorough("upgrade-tables is tested beside it")
def test_tables_of_an_earlier_schema_are_left_to_upgrade_tables(made: Backend) -> None:
    made.run("ALTER TABLE emails DROP COLUMN suspect")
    said = "COMMENT ON TABLE emails IS" if made.family == "postgres" else "ALTER TABLE emails COMMENT"
    made.run(f"{said} 'made by claimjobs, schema 0'")
    assert proposals(made, emails(), None)
    assert {change[1].name for change in proposals(made, emails(), claimjobs.include_object)} == THEIRS
