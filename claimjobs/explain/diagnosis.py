"""Diagnosis: what a table lacks to be a queue, each with the statement that adds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import connected, dialect_for
from claimjobs.dialects import dialect_named_by
from claimjobs.errors import ColumnMissing, DoneUndecided, OwnersOutdated, UnfitTable
from claimjobs.settings import Settings
from claimjobs.table.acceptance import check_no_own, check_table
from claimjobs.table.backend import Backend, inspect_table
from claimjobs.table.claim_index import claim_index, holds, indexes_of, missing_index, renewed
from claimjobs.table.columns import DEAD, STATES, UNCLAIMED, Columns
from claimjobs.table.create import exists, tables_for
from claimjobs.table.ddl import add_column, add_value
from claimjobs.table.definitions import job_table
from claimjobs.table.on_done import Finish, default_finish, sentence
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
    """The roles of the columns, checked as by `checked_backend`."""
    return checked_backend(engine, settings).roles


def checked_backend(engine: sa.Engine, settings: Settings) -> Backend:
    """The tables of a queue, after a check that they have all that a queue needs.

    Raises TableMissing, KeyUnfit, or UnfitTable with each ALTER TABLE to run.
    """
    try:
        return inspect_table(
            engine,
            settings.table,
            columns=settings.columns,
            by_lease=settings.by_lease,
            per_batch=settings.per_batch,
            side_car=settings.side_car,
        )
    except (ColumnMissing, OwnersOutdated) as first:
        missing = list(_missing(engine, settings))
        raise (UnfitTable("\n".join(missing)) if missing else first) from first


def _missing(engine: sa.Engine, settings: Settings) -> Iterator[str]:
    """The required columns that the table of jobs lacks, each with the statement that adds it."""
    jobs = tables_for(settings.table)[0]
    with connected(engine) as connection:
        for column in _required(settings, jobs):
            if column.name not in columns_in_database(connection, jobs):
                lack = f"table {jobs.fullname!r} has no column {column.name!r}, which a queue needs"
                yield f"{lack}: {add_column(engine, jobs, column)}"


def _required(settings: Settings, jobs: sa.Table) -> list[sa.Column[Any]]:
    """The required columns: those of a description in Python, or of a map; without both, two columns."""
    if settings.side_car:
        return []
    if not isinstance(settings.table, str):
        return list(jobs.columns)
    needed = REQUIRED if settings.columns is None else ("owner_id",)
    named = [role for role, name in settings.columns.names.items() if name != role] if settings.columns else []
    is_written = settings.by_lease and not settings.per_batch
    roles = dict.fromkeys((*(needed if is_written else ()), *named))
    return [column_for(role, jobs, settings.columns or Columns()) for role in roles if role in ADDABLE]


def what_becomes_of_done_jobs(engine: sa.Engine, settings: Settings, *, recreate: bool) -> str:
    """What happens to done jobs, as a sentence. The table of jobs may be missing, and the owners table, too.

    `recreate`: a table that is there will be made anew.
    """
    jobs = tables_for(settings.table)[0]
    with connected(engine) as connection:
        is_there = exists(connection, jobs) and not recreate
        given = (settings.map or Columns()).beside_claims if settings.side_car else settings.map
        described = resolve(connection, jobs.fullname) if is_there else jobs
        check_no_own(described)
        roles = roles_of(described, given)
        if settings.side_car:
            default: Finish | None = "keep"
        else:
            default = default_finish(connection, roles) if is_there else "delete"
    if (on_done := settings.on_done or default) is None:
        return str(DoneUndecided(roles.name))
    return sentence(roles, on_done, beside=settings.side_car is not None)


# --- optional columns and the index --------------------------------------------------------------------------


def advice(engine: sa.Engine, settings: Settings, roles: ColumnRoles) -> list[str]:
    """What the table lacks for optional features, each with the statement that adds it.

    Empty for a table that must not be altered.
    """
    if settings.side_car:
        return []
    given = settings.map or Columns()
    absent = [role for role in WITHOUT if getattr(roles, role) is None and getattr(given, role) is not None]
    lines = [
        f"without the column {given.names[role]} {WITHOUT[role]}: "
        f"{add_column(engine, roles.table, column_for(role, roles.table, given))}"
        for role in absent
        if not (role == "owner_date" and not settings.by_lease)
    ]
    return [*_state_advice(engine, roles), *lines, *_index_advice(engine, settings, roles)]


def _state_advice(engine: sa.Engine, roles: ColumnRoles) -> list[str]:
    """Advice for a status column of which no value means that a job is dead."""
    status = roles.status
    if status is None or roles.can_be_dead:
        return []
    fails = f"a job that fails for the last time {AGAIN}"
    if roles.states_named or not isinstance(status.type, sa.Enum):
        return [f"{fails}, because {lack}" for lack in roles.lacking()]
    return [f"without the value {DEAD!r} in the column {status.name} {fails}: {add_value(engine, status, DEAD)}"]


def _index_advice(engine: sa.Engine, settings: Settings, roles: ColumnRoles) -> list[str]:
    """Advice for the index that claims read, if the table has none with all columns of phase 1.

    If any order will do, that is the index of the default order, in which consumers sweep.
    """
    order = order_of(None if settings.any_order else settings.order_by, roles, dialect_named_by(engine).lexis)
    with connected(engine) as connection:
        lack = missing_index(connection, roles, order)
    return [] if lack is None else [f"{lack.effect}: {lack.ddl}"]


# --- adding --------------------------------------------------------------------------------------------------


def additions(engine: sa.Engine, settings: Settings, wanted: Iterable[str]) -> list[str]:
    """The statements that add what the table lacks of `ADDABLE`. Raises TableMissing, OwnTable or NotClaimable."""
    given, dialect = settings.map or Columns(), dialect_for(engine)
    with connected(engine) as connection:
        there = resolve(connection, tables_for(settings.table)[0].fullname)
        check_no_own(there)
        check_table(connection, dialect, there)
        columns = [column_for(role, there, given) for role in dict.fromkeys(wanted) if role != INDEX]
        new = [column for column in columns if column.name not in there.c]
        statements = [add_column(engine, there, column) for column in new]
        index = _wanted_index(engine, settings, there, new) if INDEX in wanted else None
        found = indexes_of(connection, there)
    if index is not None and not holds(found, index.columns.keys()):
        statements.append(renewed(index, found, engine))
    return statements


def _wanted_index(engine: sa.Engine, settings: Settings, there: sa.Table, new: list[sa.Column[Any]]) -> sa.Index | None:
    """The index on the table with its new columns."""
    for column in new:
        there.append_column(column)
    roles = roles_of(there, settings.map or Columns())
    return claim_index(
        roles, order_of(None if settings.any_order else settings.order_by, roles, dialect_named_by(engine).lexis)
    )


def column_for(role: str, table: sa.Table, given: Columns) -> sa.Column[Any]:
    """The column for a role, under its name in the map, to be added to a table that may have rows."""
    ours = job_table(table.name, sa.MetaData()).c[role]
    type_, default = ours.type, ours.server_default
    if role == "status":
        type_, default = _status_type(given)
    return sa.Column(given.names.get(role, role), type_, nullable=ours.nullable, server_default=default)


def _status_type(given: Columns) -> tuple[sa.types.TypeEngine[Any], Any]:
    """A status column for the values of the map. It is no enum: an enum type would have to be created first."""
    values = dict(given.states or {state: state for state in STATES})
    first = values.get(UNCLAIMED, UNCLAIMED)
    if isinstance(first, bool):
        return sa.Boolean(), sa.text(str(first).lower())
    if isinstance(first, int):
        return sa.SmallInteger(), sa.text(str(first))
    return sa.String(max(16, *(len(str(value)) for value in values.values()))), str(first)
