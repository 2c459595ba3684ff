"""The two-phase claim: find candidates without a lock, then lock those that are still free and mark them ours.

Two named algorithms do it, chosen by what the database can: `OneStatement` and `TwoPhases`.
How many candidates to read for the jobs wanted is `claimjobs.overfetch`'s to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, Protocol, get_args

import sqlalchemy as sa

from claimjobs.backend import Backend
from claimjobs.columns import CLAIMED
from claimjobs.errors import KeyNotUnique
from claimjobs.job import Job
from claimjobs.phases import Claimed, JobMaker, Look, Looks, at_most, check_keys, phases
from claimjobs.statements.claim import claim
from claimjobs.statements.find import Selection, Walk
from claimjobs.statements.mark import mark

Hold = Literal["lease", "transaction"]
"""What holds a claim while the work is done: the name of an owner that lives, or the locks of an open transaction."""
HOLDS: Final = get_args(Hold)
Lock = Literal["rows", "advisory"]
"""What keeps others from claiming the same job: the lock of its row, or an advisory lock on its key."""
LOCKS: Final = get_args(Lock)


class OwnerDead(Exception):
    """The owner in whose name this was to be claimed was declared dead; nothing was claimed."""


class Algorithm(Protocol):
    """A way to claim jobs for owner `me`, in the caller's transaction.

    Suspects, jobs that were in hand when something went wrong that names none of them, are taken with their like
    alone, and half as many at most as they were, until the one that spoils its batch is alone. Raises OwnerDead.
    """

    walk: Walk | None
    """The order, if a claim can begin anywhere in it."""
    is_one_statement: bool
    """Whether it needs no transaction around it."""

    def __call__(self, connection: sa.Connection, me: int, look: Look) -> Claimed: ...


class TwoPhases:
    """Find and lock, then mark: for any database with SKIP LOCKED."""

    is_one_statement = False

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        roles, dialect = backend.roles, backend.dialect
        self._phases = phases(backend, selection)
        self._roles = roles
        self._mark = mark(roles, dialect, now, backend.owners)
        self.walk = self._phases.walk

    def __call__(self, connection: sa.Connection, me: int, look: Look) -> Claimed:
        # As they will be once they are marked; `owner_date` is the server's to say.
        marked = self._roles.state.becomes(CLAIMED, sa.literal(me))
        shown = {column.name: _value(told) for column, told in marked.items()}
        claimed = self._phases(connection, look, shown)
        if claimed.jobs:
            self._mark_all(connection, me, claimed.jobs)
        return replace(claimed, owner=me)

    def _mark_all(self, connection: sa.Connection, me: int, jobs: list[Job]) -> None:
        marked = connection.execute(
            self._mark, {"claimjobs_keys": [job.key for job in jobs], "claimjobs_me": me}
        ).rowcount
        if marked > len(jobs):
            raise KeyNotUnique(self._roles.name)
        if marked < len(jobs):
            raise OwnerDead


class LockOnly:
    """Find and lock, and nothing is written: the locks are the claim, for as long as the transaction is open."""

    is_one_statement = False

    def __init__(self, backend: Backend, selection: Selection) -> None:
        self._phases = phases(backend, selection)
        self.walk = self._phases.walk

    def __call__(self, connection: sa.Connection, me: int, look: Look) -> Claimed:
        return replace(self._phases(connection, look), owner=me)


class OneStatement:
    """Find, lock and mark in a single statement, for a database that can return what it updates."""

    is_one_statement = True

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        self._roles = backend.roles
        self._job = JobMaker(backend.roles)
        self._backend, self._selection, self._now = backend, selection, now
        self.key_columns = len(backend.roles.key)
        self._claim = self._looks()
        self.walk = self._claim.walk

    def __call__(self, connection: sa.Connection, me: int, look: Look) -> Claimed:
        given = {**look.candidates, "claimjobs_size": look.size, "claimjobs_me": me}
        rows = connection.execute(self._claim.begun(look), given).all()
        found, alive = rows[0][:2]
        if not alive:
            raise OwnerDead
        return replace(self.claimed([row[2:] for row in rows], look.size, found), owner=me)

    def after(self, settle: sa.Delete | sa.Update) -> Looks[sa.Select[Any]]:
        """The same statement after one that settles the batch before; `claimed` reads what it returns of jobs."""
        return self._looks(settled=settle.cte("settled"))

    def _looks(self, **options: Any) -> Looks[sa.Select[Any]]:
        roles, dialect, owners = self._backend.roles, self._backend.dialect, self._backend.owners
        build = partial(claim, roles, dialect, now=self._now, owners=owners, **options)
        return Looks(build, self._selection, dialect)

    def claimed(self, rows: Sequence[Any], size: int, found: int) -> Claimed:
        """What the rows tell of the jobs: their columns, and their places; None in the only row of an empty claim."""
        taken = [row for row in rows if row[-1] is not None]
        jobs = [self._job(row[:-1]) for row in taken]
        check_keys(self._roles, jobs)
        company = self._roles.told("suspect", jobs[0], 0) if jobs else 0
        reach = taken[-1][-1] if len(taken) == at_most(size, company) else found
        return Claimed(jobs, found, reach, suspects=bool(company))


def algorithm(backend: Backend, selection: Selection, now: sa.ColumnElement[Any], hold: Hold = "lease") -> Algorithm:
    """The shortest way to claim that the database is capable of, for what is to hold the claim."""
    if hold == "transaction":
        return LockOnly(backend, selection)
    return (OneStatement if backend.dialect.claims_in_one_statement else TwoPhases)(backend, selection, now)


def _value(told: Any) -> Any:
    """What a column will hold that is written like this."""
    return told.value if isinstance(told, sa.BindParameter) else told
