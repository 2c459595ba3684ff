"""The two-phase claim: find candidates without a lock, then lock those that are still free and mark them ours.

Two named algorithms do it, chosen by what the database can: `OneStatement` and `TwoPhases`.
How many candidates to read for the jobs wanted is `claimjobs.overfetch`'s to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, get_args

import sqlalchemy as sa

from claimjobs.backend import Backend
from claimjobs.columns import CLAIMED
from claimjobs.dialects import Key
from claimjobs.errors import KeyNotUnique
from claimjobs.job import Job
from claimjobs.roles import Roles
from claimjobs.statements.claim import claim
from claimjobs.statements.find import Selection, find
from claimjobs.statements.lock import lock
from claimjobs.statements.mark import mark

Hold = Literal["lease", "transaction"]
"""What holds a claim while the work is done: the name of an owner that lives, or the locks of an open transaction."""
HOLDS: Final = get_args(Hold)
Lock = Literal["rows", "advisory"]
"""What keeps others from claiming the same job: the lock of its row, or an advisory lock on its key."""
LOCKS: Final = get_args(Lock)


@dataclass(frozen=True)
class Claimed:
    """The outcome of one claim."""

    jobs: list[Job]
    found: int
    """Candidates found in phase 1."""
    reach: int
    """How far down the candidates phase 2 went to take these jobs."""
    owner: int = 0
    """In whose name they are claimed."""
    suspects: bool = False
    """Whether these are suspects, of which fewer are taken than were wanted."""

    @property
    def collisions(self) -> int:
        """Candidates on the way that others had, or had taken."""
        return self.reach - len(self.jobs)


NOTHING = Claimed([], 0, 0)


class OwnerDead(Exception):
    """The owner in whose name this was to be claimed was declared dead; nothing was claimed."""


class Algorithm(Protocol):
    """A way to claim: `size` jobs for owner `me`, out of `limit` candidates, in the caller's transaction.

    Suspects, jobs that were in hand when something went wrong that names none of them, are taken with their like
    alone, and half as many at most as they were, until the one that spoils its batch is alone. Raises OwnerDead.
    """

    def __call__(self, connection: sa.Connection, me: int, size: int, limit: int) -> Claimed: ...


class TwoPhases:
    """Find, lock and mark as three statements: for any database with SKIP LOCKED."""

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        roles, dialect = backend.roles, backend.dialect
        self._phases = Phases(backend, selection)
        self._roles = roles
        self._mark = mark(roles, dialect, now, backend.owners)

    def __call__(self, connection: sa.Connection, me: int, size: int, limit: int) -> Claimed:
        # As they will be once they are marked; `owner_date` is the server's to say.
        marked = self._roles.state.becomes(CLAIMED, sa.literal(me))
        claimed = self._phases(connection, size, limit, {column.name: _value(told) for column, told in marked.items()})
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

    def __init__(self, backend: Backend, selection: Selection) -> None:
        self._phases = Phases(backend, selection)

    def __call__(self, connection: sa.Connection, me: int, size: int, limit: int) -> Claimed:
        return replace(self._phases(connection, size, limit), owner=me)


class Phases:
    """The two phases as two statements: find candidates, lock those that are still free."""

    def __init__(self, backend: Backend, selection: Selection) -> None:
        self._roles, self._dialect = backend.roles, backend.dialect
        self._find = find(self._roles, selection)
        self._lock = lock(self._roles, self._dialect, selection)

    def __call__(
        self, connection: sa.Connection, size: int, limit: int, marked: Mapping[str, Any] = MappingProxyType({})
    ) -> Claimed:
        """`marked`: what will be written into the jobs, which is shown as if it were."""
        rows = connection.execute(self._find, {"claimjobs_limit": limit}).all()
        if not rows:
            return NOTHING
        candidates, size = alike(rows, size)
        jobs = self._locked(connection, candidates, size, marked)
        return Claimed(jobs, len(rows), reach_of(candidates, jobs, size), suspects=bool(rows[0][-1]))

    def _locked(
        self, connection: sa.Connection, candidates: list[Key], size: int, marked: Mapping[str, Any]
    ) -> list[Job]:
        given = {"claimjobs_candidates": candidates, "claimjobs_size": size}
        jobs = [job_of(self._roles, row, marked) for row in connection.execute(self._lock, given)]
        check_keys(self._roles, jobs)
        return jobs


class OneStatement:
    """Find, lock and mark in a single statement, for a database that can return what it updates."""

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        self._roles = backend.roles
        self._claim = claim(backend.roles, backend.dialect, selection, now=now, owners=backend.owners)

    def __call__(self, connection: sa.Connection, me: int, size: int, limit: int) -> Claimed:
        rows = connection.execute(
            self._claim, {"claimjobs_me": me, "claimjobs_size": size, "claimjobs_limit": limit}
        ).all()
        found, alive = rows[0][:2]
        if not alive:
            raise OwnerDead
        taken = [row for row in rows if row[-1] is not None]
        jobs = [job_of(self._roles, row[2:-1]) for row in taken]
        check_keys(self._roles, jobs)
        company = self._roles.told("suspect", jobs[0], 0) if jobs else 0
        reach = taken[-1][-1] if len(taken) == _at_most(size, company) else found
        return Claimed(jobs, found, reach, me, suspects=bool(company))


def algorithm(backend: Backend, selection: Selection, now: sa.ColumnElement[Any], hold: Hold = "lease") -> Algorithm:
    """The shortest way to claim that the database is capable of, for what is to hold the claim."""
    if hold == "transaction":
        return LockOnly(backend, selection)
    return (OneStatement if backend.dialect.claims_in_one_statement else TwoPhases)(backend, selection, now)


def job_of(roles: Roles, values: Sequence[Any], marked: Mapping[str, Any] = MappingProxyType({})) -> Job:
    """The job whose columns have these values, in the table's order, but for those that were `marked` since."""
    columns = {**dict(zip(roles.columns, values, strict=True)), **marked}
    names = [column.name for column in roles.key]
    key = columns[names[0]] if len(names) == 1 else tuple(columns[name] for name in names)
    return Job(key, columns)


def check_keys(roles: Roles, jobs: Sequence[Job]) -> None:
    """What names two rows names none: raises KeyNotUnique. Only a key that is no primary key can."""
    if roles.key_index is not None and len({job.key for job in jobs}) < len(jobs):
        raise KeyNotUnique(roles.name)


def _value(told: Any) -> Any:
    """What a column will hold that is written like this."""
    return told.value if isinstance(told, sa.BindParameter) else told


def alike(rows: Sequence[Sequence[Any]], size: int) -> tuple[list[Key], int]:
    """The keys of those candidates that are as suspect as the first, and how many of them to take at most."""
    company = rows[0][-1]
    keys = [row[0] if len(row) == 2 else tuple(row[:-1]) for row in rows if row[-1] == company]
    return keys, _at_most(size, company)


def _at_most(size: int, company: int) -> int:
    """How many jobs to take that were in hand with so many when something went wrong; 0: nothing did."""
    return min(size, max(1, company // 2)) if company else size


def reach_of(candidates: list[Key], jobs: Sequence[Job], size: int) -> int:
    """How far down the candidates one had to go to take these jobs of `size` that were wanted."""
    if len(jobs) < size:
        return len(candidates)
    places = {key: place for place, key in enumerate(candidates, 1)}
    return max(places[job.key] for job in jobs)
