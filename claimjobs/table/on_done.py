"""What happens to done jobs: the default, and a sentence that says it."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import sqlalchemy as sa

from claimjobs.dialects import dialect_of
from claimjobs.table.columns import DONE, OURS
from claimjobs.table.ddl import table_comment, text
from claimjobs.table.definitions import OWNER_TABLE
from claimjobs.table.reflection import is_made_by_us
from claimjobs.table.roles import ColumnRoles

Finish = Literal["delete", "keep"]
"""What happens to the row of a done job: it is deleted, or kept with the status `done`."""
FINISHES: Final = get_args(Finish)
LEAVE: Final = "leave"
"""A done job is only released: its handler has made the queue's predicate false."""
MARK_LOST: Final = (
    "the tables of claimjobs have lost their comments (a dump without comments?), so that done jobs are kept by "
    "default; if claimjobs made this table, say it again"
)


def default_finish(connection: sa.Connection, roles: ColumnRoles) -> Finish | None:
    """What happens to done jobs by default; None: there is no default, the user must choose.

    By default rows are deleted only from a table that claimjobs made. They are kept as done only if a map, or the words
    of the column's type, give a value for done: a boolean `status` of the user's may mean something else.
    """
    if is_made_by_us(connection, roles.table):
        return "delete"
    says_done = roles.status is not None and DONE in roles.state.can
    return "keep" if says_done and (roles.states_named or isinstance(roles.state.values[DONE], str)) else None


def lost_mark(connection: sa.Connection, jobs: sa.Table) -> str | None:
    """The statement that says again that claimjobs made a table of jobs; None: nothing shows that this was lost.

    A dump without comments loses it. Then the table of owners, which only claimjobs makes, has no comment either.
    """
    owners = sa.Table(OWNER_TABLE, sa.MetaData(schema=jobs.schema))
    if not {*jobs.columns.keys()} >= {*OURS} or is_made_by_us(connection, jobs):
        return None
    try:
        is_there = sa.inspect(connection).has_table(OWNER_TABLE, schema=jobs.schema)
        lost = is_there and not is_made_by_us(connection, owners)
    except sa.exc.DBAPIError as error:  # who claims by transaction may have no right on it
        if not dialect_of(connection).errors.refuses_account(error):
            raise
        return None
    return text(table_comment(jobs), connection) if lost else None


def sentence(roles: ColumnRoles, on_done: Any, *, beside: bool = False) -> str:
    """What happens to done jobs, as a sentence. `beside`: their claims are in a side-car."""
    if callable(on_done):
        return f"A function decides what happens to done jobs of {roles.name}."
    if on_done == LEAVE:
        return f"Done jobs of {roles.name} are left as the handler leaves them."
    if on_done == "keep" and beside:
        return f"Done jobs of {roles.name} are kept; their keys are marked as done in the side-car."
    if on_done == "keep" and roles.status is not None:
        return f"Done jobs of {roles.name} are kept with {roles.status.name} {roles.state.values[DONE]!r}."
    return f"Jobs of {roles.name} are deleted when they are done."
