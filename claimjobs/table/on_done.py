"""What happens to done jobs: the default, and a sentence that says it."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import sqlalchemy as sa

from claimjobs.dialects.partitions import Unit
from claimjobs.table.columns import DONE
from claimjobs.table.definitions import MADE_BY
from claimjobs.table.reflection import comment_in_database
from claimjobs.table.roles import ColumnRoles
from claimjobs.table.time_partitions import unit_of

Finish = Literal["delete", "keep"]
"""What happens to the row of a done job: it is deleted, or kept with the status `done`."""
FINISHES: Final = get_args(Finish)
LEAVE: Final = "leave"
"""A done job is only released: its handler has made the queue's predicate false."""


def default_finish(connection: sa.Connection, roles: ColumnRoles) -> Finish | None:
    """What happens to done jobs by default; None: there is no default, the user must choose.

    By default rows are deleted only from a table that claimjobs made, unless it has partitions by time, which are for
    kept jobs. They are kept as done only if a map, or the words of the column's type, give a value for done: a boolean
    `status` of the user's may mean something else.
    """
    comment = comment_in_database(connection, roles.table)
    if MADE_BY in comment:
        return finish_of_ours(unit_of(comment))
    says_done = roles.status is not None and DONE in roles.state.can
    return "keep" if says_done and (roles.states_named or isinstance(roles.state.values[DONE], str)) else None


def finish_of_ours(unit: Unit | None) -> Finish:
    """What happens by default to done jobs of a table that claimjobs makes. `unit`: the time of a partition, if any."""
    return "delete" if unit is None else "keep"


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
