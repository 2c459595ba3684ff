"""Diagnosis: what a table lacks to be a queue, each with the statement that adds it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import connected, dialect_for
from claimjobs.dialects import dialect_named_by
from claimjobs.errors import ColumnMissing, OwnersOutdated, UnfitTable
from claimjobs.settings import Settings
from claimjobs.table.acceptance import check_no_own, check_table
from claimjobs.table.claim_index import indexes_of, missing_index
from claimjobs.table.columns import DEAD, STATES, UNCLAIMED, Columns
from claimjobs.table.create import tables_for
from claimjobs.table.ddl import add_column, add_value
from claimjobs.table.definitions import job_table
from claimjobs.table.predicates import order_of
from claimjobs.table.reflection import columns_in_database, resolve
from claimjobs.table.roles import AGAIN, ColumnRoles, roles_of

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
        if settings.side_car:  # the table must not be altered
            raise
        # The required columns are those of a description in Python, or of a map; without both, two columns.
        jobs, given = tables_for(settings.table)[0], settings.columns or Columns()
        wanted = (*settings.needed, *(role for role, name in given.names.items() if name != role))
        required = [column_for(role, jobs, given) for role in dict.fromkeys(wanted) if role in ADDABLE]
        with connected(engine) as connection:
            there = columns_in_database(connection, jobs)
        missing = [
            f"table {jobs.fullname!r} has no column {column.name!r}, which a queue needs: "
            f"{add_column(engine, jobs, column)}"
            for column in (required if isinstance(settings.table, str) else jobs.columns)
            if column.name not in there
        ]
        raise (UnfitTable("\n".join(missing)) if missing else first) from first


def advice(engine: sa.Engine, settings: Settings, roles: ColumnRoles) -> list[str]:
    """What the table lacks for optional features, each with the statement that adds it.

    Empty for a table that must not be altered.
    """
    if settings.side_car:
        return []
    lines, given, status = list[str](), settings.map or Columns(), roles.status
    if status is not None and not roles.can_be_dead:  # no value means that a job is dead
        fails = f"a job that fails for the last time {AGAIN}"
        if roles.states_named or not isinstance(status.type, sa.Enum):
            lines += [f"{fails}, because {lack}" for lack in roles.lacking()]
        else:
            statement = add_value(engine, status, DEAD)
            lines.append(f"without the value {DEAD!r} in the column {status.name} {fails}: {statement}")
    for role, effect in WITHOUT.items():
        is_absent = getattr(given, role) is not None and getattr(roles, role) is None
        if is_absent and (role != "owner_date" or settings.by_lease):
            statement = add_column(engine, roles.table, column_for(role, roles.table, given))
            lines.append(f"without the column {given.names[role]} {effect}: {statement}")
    with connected(engine) as connection:
        found = indexes_of(connection, roles.table)
        if (lack := missing_index(connection, roles, _order(engine, settings, roles), found)) is not None:
            lines.append(f"{lack.effect}: {lack.ddl}")
    return lines


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
        if (lack := missing_index(engine, roles, _order(engine, settings, roles), found)) is not None:
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
    type_: sa.types.TypeEngine[Any] = ours.type
    default: Any = ours.server_default
    if role == "status":  # of the values of the map. No enum: its type would have to be created first
        values = dict(given.states or {state: state for state in STATES})
        first: Any = values.get(UNCLAIMED, UNCLAIMED)
        type_, default = sa.String(max(16, *(len(str(value)) for value in values.values()))), str(first)
        if isinstance(first, int):
            type_ = sa.Boolean() if isinstance(first, bool) else sa.SmallInteger()
            default = sa.text(str(first).lower())
    return sa.Column(given.names.get(role, role), type_, nullable=ours.nullable, server_default=default)
