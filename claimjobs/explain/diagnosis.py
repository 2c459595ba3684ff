"""Diagnosis: what a table lacks to be a queue, each with the statement that adds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import connected, dialect_for
from claimjobs.dialects import dialect_named_by
from claimjobs.errors import ColumnMissing, OwnersOutdated, UnfitTable
from claimjobs.settings import Settings
from claimjobs.table.acceptance import check_no_own, check_table
from claimjobs.table.claim_index import indexes_of, missing_among, missing_index
from claimjobs.table.columns import DEAD, STATES, UNCLAIMED, Columns
from claimjobs.table.create import tables_for
from claimjobs.table.ddl import add_column, add_value
from claimjobs.table.definitions import job_table
from claimjobs.table.predicates import order_of
from claimjobs.table.reflection import columns_in_database, resolve
from claimjobs.table.roles import AGAIN, REQUIRED, ColumnRoles, roles_of

WITHOUT: Final = {
    "status": "done jobs cannot be kept, and none can be dead",
    "owner_date": "it is not stored when a job was claimed",
    "priority": "jobs have no priorities",
    "run_at": f"no job can be delayed, and one that fails {AGAIN}",
    "attempts": f"a job that fails {AGAIN}",
    "last_error": "errors are not stored",
    "suspect": "a batch that fails as a whole is released, not halved until the bad job is alone",
}
"""What does not work without an optional column."""

INDEX: Final = "claim-index"
ADDABLE: Final = ("owner_id", *WITHOUT, INDEX)
"""What can be added to an existing table: columns by their roles, and the index that claims read."""


def checked_roles(engine: sa.Engine, settings: Settings) -> ColumnRoles:
    """The roles of the columns, after a check that the tables have all that a queue needs.

    Raises TableMissing, KeyUnfit, or UnfitTable with each ALTER TABLE to run.
    """
    try:
        return settings.inspect(engine).roles
    except (ColumnMissing, OwnersOutdated) as first:
        missing = [] if settings.side_car else list(_missing(engine, settings))
        raise (UnfitTable("\n".join(missing)) if missing else first) from first


def _missing(engine: sa.Engine, settings: Settings) -> Iterator[str]:
    """The required columns that the table of jobs lacks, each with the statement that adds it.

    They are those of a description in Python, or of a map; without both, two columns.
    """
    jobs, given = tables_for(settings.table)[0], settings.columns or Columns()
    written = (REQUIRED if settings.columns is None else ("owner_id",)) if settings.by_lease else ()
    named = [role for role, name in given.names.items() if name != role]
    roles = dict.fromkeys((*(() if settings.per_batch else written), *named))
    required = [column_for(role, jobs, given) for role in roles if role in ADDABLE]
    with connected(engine) as connection:
        there = columns_in_database(connection, jobs)
    for column in required if isinstance(settings.table, str) else jobs.columns:
        if column.name not in there:
            lack = f"table {jobs.fullname!r} has no column {column.name!r}, which a queue needs"
            yield f"{lack}: {add_column(engine, jobs, column)}"


def advice(engine: sa.Engine, settings: Settings, roles: ColumnRoles) -> list[str]:
    """What the table lacks for optional features, each with the statement that adds it.

    Empty for a table that must not be altered.
    """
    if settings.side_car:
        return []
    given = settings.map or Columns()
    optional = [role for role in WITHOUT if getattr(given, role) is not None]
    absent = [role for role in optional if getattr(roles, role) is None]
    lines = [
        f"without the column {given.names[role]} {WITHOUT[role]}: "
        f"{add_column(engine, roles.table, column_for(role, roles.table, given))}"
        for role in absent
        if role != "owner_date" or settings.by_lease
    ]
    with connected(engine) as connection:
        if (lack := missing_index(connection, roles, _order(engine, settings, roles))) is not None:
            lines.append(f"{lack.effect}: {lack.ddl}")
    return [*_state_advice(engine, roles), *lines]


def _state_advice(engine: sa.Engine, roles: ColumnRoles) -> list[str]:
    """Advice for a status column of which no value means that a job is dead."""
    status, fails = roles.status, f"a job that fails for the last time {AGAIN}"
    if status is None or roles.can_be_dead:
        return []
    if roles.states_named or not isinstance(status.type, sa.Enum):
        return [f"{fails}, because {lack}" for lack in roles.lacking()]
    return [f"without the value {DEAD!r} in the column {status.name} {fails}: {add_value(engine, status, DEAD)}"]


def additions(engine: sa.Engine, settings: Settings, wanted: Iterable[str]) -> list[str]:
    """The statements that add what the table lacks of `ADDABLE`. Raises TableMissing or NotClaimable."""
    given, wanted = settings.map or Columns(), list(dict.fromkeys(wanted))
    with connected(engine) as connection:
        there = resolve(connection, tables_for(settings.table)[0].fullname)
        check_no_own(there)
        check_table(connection, dialect_for(engine), there)
        found = indexes_of(connection, there)
    columns = [column_for(role, there, given) for role in wanted if role != INDEX]
    new = [column for column in columns if column.name not in there.c]
    statements = [add_column(engine, there, column) for column in new]
    if INDEX in wanted:
        for column in new:
            there.append_column(column)
        roles = roles_of(there, given)
        if (lack := missing_among(found, roles, _order(engine, settings, roles), engine)) is not None:
            statements += lack.statements
    return statements


def _order(engine: sa.Engine, settings: Settings, roles: ColumnRoles) -> Any:
    """The order that the index is for. If any order will do, it is the default, in which consumers sweep."""
    order = order_of(None if settings.any_order else settings.order_by, roles, dialect_named_by(engine).lexis)
    keys = () if settings.per_key is None else settings.per_key.names
    return (*(roles.table.c[name] for name in keys), *order)


def column_for(role: str, table: sa.Table, given: Columns) -> sa.Column[Any]:
    """The column for a role, under its name in the map, to be added to a table that may have rows."""
    ours = job_table(table.name, sa.MetaData()).c[role]
    type_, default = ours.type, ours.server_default
    if role == "status":
        type_, default = _status(given)
    return sa.Column(given.names.get(role, role), type_, nullable=ours.nullable, server_default=default)


def _status(given: Columns) -> tuple[sa.types.TypeEngine[Any], Any]:
    """The type and the default for the values of the map. No enum: its type would have to be created first."""
    values = dict(given.states or {state: state for state in STATES})
    first = values.get(UNCLAIMED, UNCLAIMED)
    if isinstance(first, int):
        return sa.Boolean() if isinstance(first, bool) else sa.SmallInteger(), sa.text(str(first).lower())
    return sa.String(max(16, *(len(str(value)) for value in values.values()))), str(first)
