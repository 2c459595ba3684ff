"""Diagnosis: the statements that add to a table what it lacks to be a queue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import connected, dialect_for
from claimjobs.dialects import dialect_named_by
from claimjobs.settings import Settings
from claimjobs.table.acceptance import check_no_own, check_table
from claimjobs.table.claim_index import indexes_of, missing_index
from claimjobs.table.columns import OURS, STATES, UNCLAIMED, Columns
from claimjobs.table.create import tables_for
from claimjobs.table.ddl import add_column
from claimjobs.table.definitions import job_table
from claimjobs.table.predicates import order_of
from claimjobs.table.reflection import resolve
from claimjobs.table.roles import roles_of

INDEX: Final = "claim-index"
ADDABLE: Final = (*OURS, INDEX)
"""What can be added to an existing table: columns by their roles, and the index that claims read."""


def additions(engine: sa.Engine, settings: Settings, wanted: Iterable[str]) -> list[str]:
    """The statements that add what the table lacks of `ADDABLE`. Raises TableMissing or NotClaimable."""
    given, wanted = settings.map or Columns(), list(dict.fromkeys(wanted))
    with connected(engine) as connection:
        there = resolve(connection, tables_for(settings.table)[0].fullname)
        check_no_own(there)
        check_table(connection, dialect_for(engine), there)
        found = indexes_of(connection, there)
    columns = [_column_for(role, there, given) for role in wanted if role != INDEX]
    new = [column for column in columns if column.name not in there.c]
    statements = [add_column(engine, there, column) for column in new]
    if INDEX in wanted:
        for column in new:
            there.append_column(column)
        roles, keys = roles_of(there, given), () if settings.per_key is None else settings.per_key.names
        # If any order will do, the index is for the default one.
        order = order_of(None if settings.any_order else settings.order_by, roles, dialect_named_by(engine).lexis)
        if (lack := missing_index(engine, roles, (*(there.c[name] for name in keys), *order), found)) is not None:
            statements += lack.statements
    return statements


def _column_for(role: str, table: sa.Table, given: Columns) -> sa.Column[Any]:
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
