"""The two-phase claim: find candidates without a lock, then lock those that are still free and mark them ours.

Two named algorithms do it, chosen by what the database can: `OneStatement` and `TwoPhases`. `Overfetch` decides
how many candidates to read for the jobs wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import sqlalchemy as sa

from claimjobs.backend import Backend
from claimjobs.dialects import Key
from claimjobs.job import Job
from claimjobs.roles import Roles
from claimjobs.schema import CLAIMED
from claimjobs.statements.claim import claim
from claimjobs.statements.find import Selection, find
from claimjobs.statements.lock import lock
from claimjobs.statements.mark import mark


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
        self._roles = roles
        self._dialect = dialect
        self._find = find(roles, selection)
        self._lock = lock(roles, dialect, selection)
        self._mark = mark(roles, dialect, now, backend.owners)

    def __call__(self, connection: sa.Connection, me: int, size: int, limit: int) -> Claimed:
        rows = connection.execute(self._find, {"limit": limit}).all()
        if not rows:
            return NOTHING
        candidates, size = _alike(rows, size)
        jobs = self._locked(connection, me, candidates, size)
        if jobs:
            self._mark_all(connection, me, jobs)
        return Claimed(jobs, len(rows), _reach(candidates, jobs, size), me)

    def _locked(self, connection: sa.Connection, me: int, candidates: list[Key], size: int) -> list[Job]:
        given = {"candidates": self._dialect.candidates(candidates, self._roles.key), "size": size}
        # As they will be once they are marked; `owner_date` is the server's to say.
        marked = {self._roles.status.name: CLAIMED, self._roles.owner_id.name: me}
        return [job_of(self._roles, row, marked) for row in connection.execute(self._lock, given)]

    def _mark_all(self, connection: sa.Connection, me: int, jobs: list[Job]) -> None:
        marked = connection.execute(self._mark, {"keys": [job.key for job in jobs], "me": me})
        if marked.rowcount != len(jobs):
            raise OwnerDead


class OneStatement:
    """Find, lock and mark in a single statement, for a database that can return what it updates."""

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        self._roles = backend.roles
        self._claim = claim(backend.roles, backend.dialect, selection, now=now, owners=backend.owners)

    def __call__(self, connection: sa.Connection, me: int, size: int, limit: int) -> Claimed:
        rows = connection.execute(self._claim, {"me": me, "size": size, "limit": limit}).all()
        found, alive = rows[0][:2]
        if not alive:
            raise OwnerDead
        taken = [row for row in rows if row[-1] is not None]
        jobs = [job_of(self._roles, row[2:-1]) for row in taken]
        wanted = _at_most(size, jobs[0].get("suspect", 0)) if jobs else size
        reach = taken[-1][-1] if len(taken) == wanted else found
        return Claimed(jobs, found, reach, me)


def algorithm(backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> Algorithm:
    """The shortest way to claim that the database is capable of."""
    chosen = OneStatement if backend.dialect.claims_in_one_statement else TwoPhases
    return chosen(backend, selection, now)


class Overfetch:
    """How many candidates to read for each job wanted, learned from what the last claims met.

    Consumers that read the same head lock the same rows: with ten of them and no over-fetch, nine claims of ten
    come back empty. Reading a few batches' worth lets each find its own, in order. The factor doubles when a
    claim falls short, and settles a little above what full claims needed.
    """

    LARGEST = 32
    SPARE = 1.25
    """What a claim reads above its recent need: others move on while it looks."""
    MEMORY = 0.8
    """The weight of what was known before against the claim just made."""

    def __init__(self) -> None:
        self.factor = 1.0

    def limit(self, size: int) -> int:
        """Candidates to read for a batch of `size`."""
        return max(size, round(size * self.factor))

    def learn(self, claimed: Claimed, size: int, limit: int) -> None:
        """Adapt to a claim of `size` that was allowed `limit` candidates. One of suspects teaches nothing."""
        if claimed.jobs and claimed.jobs[0].get("suspect"):
            return
        if len(claimed.jobs) == size:
            need = self.SPARE * claimed.reach / size if claimed.collisions else 1.0
            self.factor = max(1.0, self.MEMORY * self.factor + (1 - self.MEMORY) * need)
        elif claimed.found == limit:  # there was more to read
            self.factor = min(self.factor * 2, self.LARGEST)


def job_of(roles: Roles, values: Sequence[Any], marked: Mapping[str, Any] = MappingProxyType({})) -> Job:
    """The job whose columns have these values, in the table's order, but for those that were `marked` since."""
    columns = {**dict(zip(roles.columns, values, strict=True)), **marked}
    names = [column.name for column in roles.key]
    key = columns[names[0]] if len(names) == 1 else tuple(columns[name] for name in names)
    return Job(key, columns)


def _alike(rows: Sequence[Sequence[Any]], size: int) -> tuple[list[Key], int]:
    """The keys of those candidates that are as suspect as the first, and how many of them to take at most."""
    company = rows[0][-1]
    keys = [row[0] if len(row) == 2 else tuple(row[:-1]) for row in rows if row[-1] == company]
    return keys, _at_most(size, company)


def _at_most(size: int, company: int) -> int:
    """How many jobs to take that were in hand with so many when something went wrong; 0: nothing did."""
    return min(size, max(1, company // 2)) if company else size


def _reach(candidates: list[Key], jobs: list[Job], size: int) -> int:
    if len(jobs) < size:
        return len(candidates)
    places = {key: place for place, key in enumerate(candidates, 1)}
    return max(places[job.key] for job in jobs)
