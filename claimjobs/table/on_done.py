"""Finish: what becomes of done jobs where nobody has said it, and the sentence that tells it."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import sqlalchemy as sa

from claimjobs.table.columns import DONE
from claimjobs.table.reflection import is_made_by_us
from claimjobs.table.roles import Roles

Finish = Literal["delete", "keep"]
"""What is written when a job is done: its row is deleted, or kept with the status `done`."""
FINISHES: Final = get_args(Finish)
LEAVE: Final = "leave"
"""Nothing is written when a job is done, but that nobody holds it: the handler has made the queue's predicate false."""


def default_finish(connection: sa.Connection, roles: Roles) -> Finish | None:
    """What becomes of done jobs where nobody has said it; None: somebody has to.

    Rows are deleted unasked only from a table that claimjobs made, and kept as done unasked only where a map or the
    column's own words name a value for done: a boolean `status` of the user's may be about something else.
    """
    if is_made_by_us(connection, roles.table):
        return "delete"
    says_done = roles.status is not None and DONE in roles.state.can
    return "keep" if says_done and (roles.states_named or isinstance(roles.state.values[DONE], str)) else None


def sentence(roles: Roles, on_done: Any, *, beside: bool = False) -> str:
    """What becomes of done jobs, for a person to read. `beside`: their claims are in a table of their own."""
    if callable(on_done):
        return f"What becomes of done jobs of {roles.name} is for a function to say."
    if on_done == LEAVE:
        return f"Done jobs of {roles.name} are left as the handler leaves them."
    if on_done == "keep" and beside:
        return f"Done jobs of {roles.name} are kept; their keys are noted as done in the table of claims."
    if on_done == "keep" and roles.status is not None:
        return f"Done jobs of {roles.name} are kept with {roles.status.name} {roles.state.values[DONE]!r}."
    return f"Jobs of {roles.name} are deleted when they are done."
