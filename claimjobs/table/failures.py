"""Failures: what a table lacks to store one, and what happens to a job without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from claimjobs.errors import UnfitTable
from claimjobs.table.columns import DEAD
from claimjobs.table.roles import ColumnRoles

NEEDED: Final = ("attempts", "run_at")
"""The roles without which no failed job can wait for its next attempt."""
PURPOSE: Final = "storing a failure"
AGAIN: Final = "is released and claimed again without end (a run with --drain gives up)"
"""What happens to a job whose failure cannot be stored."""


def lacking(roles: ColumnRoles, *more: str) -> Iterator[UnfitTable]:
    """What a table lacks to store a failure, each as the error of the write. `more`: further roles to ask for."""
    for role in (*NEEDED, *more):
        try:
            roles.need(role, PURPOSE)
        except UnfitTable as lack:
            yield lack
    yield from lacking_dead(roles)


def lacking_dead(roles: ColumnRoles) -> Iterator[UnfitTable]:
    """The error of a job's last failure, if no value means that a job is dead."""
    try:
        roles.need_state(DEAD, PURPOSE)
    except UnfitTable as lack:
        yield lack
