"""Tables of earlier versions, with rows in every state, and what a test compares of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.table.create import make
from claimjobs.table.definitions import (
    DEMONSTRATION,
    article_table,
    claims_table,
    ledger_table,
    shared_tables,
)
from tests.backends import Backend

SCHEMAS: Final = Path(__file__).parent / "schemas"
NAMES: Final = ("before-heartbeats", "before-comments", "before-sleep", "schema-1")
OWNER: Final = 10_000_000
STATES: Final[tuple[dict[str, Any], ...]] = (
    {"status": "unclaimed"},
    {"status": "unclaimed", "attempts": 2, "last_error": "retried"},
    {"status": "claimed", "owner_id": OWNER},
    {"status": "done"},
    {"status": "dead", "attempts": 3, "last_error": "out of attempts"},
)


def install(backend: Backend, schema: str) -> None:
    """Make the tables of this earlier schema, with a row in each state."""
    family = "postgres" if backend.family == "postgres" else "mysql"
    execute(backend, (SCHEMAS / f"{schema}-{family}.sql").read_text())
    there = set(sa.inspect(backend.engine).get_table_names())
    owner = {"host": "elsewhere", "pid": 1, "claims": "jobs"}
    has_lease = "lease" in {column["name"] for column in sa.inspect(backend.engine).get_columns("claimjobs_owners")}
    backend.insert("claimjobs_owners", [{**owner, "lease": 3600.0} if has_lease else owner])
    backend.insert("jobs", [{"d": f"{place}", "e": "", **state} for place, state in enumerate(STATES)])
    if "orders_claims" in there:
        backend.insert("orders_claims", [{"id": place, **state} for place, state in enumerate(STATES)])
    if "claimjobs_ledger" in there:
        backend.insert("claimjobs_ledger", [{"digest": "0" * 64, "queue": "jobs", "job": "1"}])


def adopt(backend: Backend) -> None:
    """Say in the comment of the table of jobs that claimjobs made it, as docs/upgrading.md asks for."""
    said = "COMMENT ON TABLE jobs IS" if backend.family == "postgres" else "ALTER TABLE jobs COMMENT"
    backend.run(f"{said} 'made by claimjobs'")


def execute(backend: Backend, script: str) -> None:
    """Run the statements of a script, each by itself, without comments."""
    with backend.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in re.sub(r"^--.*\n", "", script, flags=re.MULTILINE).split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement.strip().removesuffix(";")).close()


def drop_all(backend: Backend) -> None:
    """Drop all tables and types."""
    found = sa.MetaData()
    found.reflect(backend.engine)
    found.drop_all(backend.engine)
    if backend.family == "postgres":
        backend.run("DROP TYPE IF EXISTS jobs_status, orders_claims_status")


def newly_made(backend: Backend) -> dict[str, Any]:
    """The shapes of the tables as they are made today. It drops those that are there."""
    drop_all(backend)
    side_car = claims_table("orders_claims", [sa.Column("id", sa.Integer, primary_key=True, autoincrement=False)])
    jobs = article_table()
    jobs.c.id.type = sa.Integer()  # an upgrade leaves the key as it is: the database would copy the table
    make(backend.engine, [jobs, *shared_tables(), side_car, ledger_table()])
    return shapes(backend)


def shapes(backend: Backend) -> dict[str, Any]:
    """Columns, keys, indexes and comments of each table, as the database has them."""
    inspector = sa.inspect(backend.engine)
    return {name: _shape(inspector, name) for name in inspector.get_table_names()}


def _shape(inspector: sa.Inspector, name: str) -> dict[str, Any]:
    columns = [
        {key: repr(value) if key == "type" else value for key, value in column.items() if key != "identity"}
        for column in inspector.get_columns(name)
    ]
    indexes = {index["name"]: (index["column_names"], index["unique"]) for index in inspector.get_indexes(name)}
    comment = inspector.get_table_comment(name)["text"] or ""
    key = inspector.get_pk_constraint(name)["constrained_columns"]
    # An earlier version wrote no word about the demonstration, and an upgrade does not guess it.
    return {"columns": columns, "indexes": indexes, "key": key, "comment": comment.removeprefix(f"{DEMONSTRATION}, ")}


def contents(backend: Backend) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table."""
    names = sa.inspect(backend.engine).get_table_names()
    return {name: [dict(row) for row in backend.rows(name)] for name in names}


def keeps(before: dict[str, list[dict[str, Any]]], after: dict[str, list[dict[str, Any]]]) -> bool:
    """Whether each row is there still, with its values."""
    pairs = [(row, now) for name, rows in before.items() for row, now in zip(rows, after[name], strict=True)]
    return all(row.items() <= now.items() for row, now in pairs)
