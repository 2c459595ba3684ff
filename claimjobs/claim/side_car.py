"""The claim on a table that must not be altered: what is taken is inserted into a table of claims beside it.

Phase 1 reads the rows that no claim is in the way of. Phase 2 locks some of them, inserts their keys, and takes those
that are its own then: two inserts of one key cannot both succeed, whatever else is read, or locked, or not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import sqlalchemy as sa

from claimjobs.claim.find_and_lock import (
    NOTHING,
    ClaimRequest,
    ClaimResult,
    CursorStatement,
    alike,
    check_keys,
    reach_of,
)
from claimjobs.claim.row_reader import RowReader
from claimjobs.claim.strategies import ClaimStrategy, Hold, OwnerDead
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects import Key
from claimjobs.job import Job, key_of
from claimjobs.statements import side_car as statements
from claimjobs.statements.find import Selection
from claimjobs.statements.owners import alive
from claimjobs.statements.settle import SettleTarget, release
from claimjobs.statements.side_car import SideCarJoin
from claimjobs.table.backend import Backend


class SideCarPhases:
    """What all ways have in common: a table, its claims, and who of the candidates are reached for."""

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        self.pair = SideCarJoin(backend.source, backend.roles, backend.dialect, now)
        self._find = CursorStatement(partial(statements.find, self.pair), selection, backend.dialect)
        self._lock = statements.lock(self.pair, selection)
        self.rows = RowReader(self.pair.source, backend.dialect)
        self.keyset_order = self._find.keyset_order

    def candidates(self, connection: sa.Connection, request: ClaimRequest) -> Sequence[Any]:
        """Phase 1: keys, and how suspect each is."""
        return connection.execute(self._find.of(request), request.candidates).all()

    def locked(self, connection: sa.Connection, candidates: list[Key], size: int) -> list[Key]:
        """The first `size` of the candidates that nobody else has locked, in their order."""
        rows = connection.execute(self._lock, {"claimjobs_candidates": candidates, "claimjobs_size": size})
        return [key_of(row) for row in rows]

    def jobs(
        self, connection: sa.Connection, statement: CompiledStatement, keys: list[Key], **values: Any
    ) -> list[Job]:
        """What a statement about these keys returns, in the order of the keys."""
        rows = self.rows.all(connection, statement, {"claimjobs_keys": keys, **values})
        place = {key: number for number, key in enumerate(keys)}
        jobs = [self._with_attempts(row) for row in rows]
        check_keys(self.pair.source, jobs)
        return sorted(jobs, key=lambda job: place[job.key])

    def _with_attempts(self, row: Any) -> Job:
        return self.rows.job(row, {self.pair.attempts.name: row[-1]})


class SideCarStrategy(ClaimStrategy):
    """Claims by lease: find, lock the rows, insert their keys, read what is ours."""

    is_one_statement = is_lazy = False

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        self._apart = SideCarPhases(backend, selection, now)
        self.keyset_order = self._apart.keyset_order
        self._locks = backend.lock_source
        pair = self._apart.pair
        # A row that is locked stays as it was found; a predicate that depends on the moment is asked once.
        still = replace(selection, ready=sa.true()) if self._locks else selection
        self._take = statements.take(pair, backend.owners)
        self._taken = CompiledStatement(statements.taken(pair, still, self._apart.rows.columns))
        self._release = release(SettleTarget(pair.claims, pair.dialect, pair.claims.mine))
        self._alive = sa.select(alive(backend.owners))

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        rows = self._apart.candidates(connection, request)
        if not rows:
            return NOTHING
        candidates, size = alike(rows, request.size)
        keys = self._chosen(connection, candidates, size, suspects=bool(rows[0][-1]))
        jobs = self._claimed(connection, keys, owner) if keys else []
        reach = reach_of(candidates, jobs, size) if self._locks else len(keys)
        return ClaimResult(jobs, len(rows), reach, owner, suspects=bool(rows[0][-1]))

    def _chosen(self, connection: sa.Connection, candidates: list[Key], size: int, *, suspects: bool) -> list[Key]:
        """Those whose keys are to be inserted. Without locks nothing tells which of them others are about to take:
        then a run of them from anywhere, so that not everybody waits for the same ones.
        """
        if self._locks:
            return self._apart.locked(connection, candidates, size)
        spare = 0 if suspects else max(0, len(candidates) - size)
        start = random.randint(0, spare)  # noqa: S311
        return candidates[start : start + size]

    def _claimed(self, connection: sa.Connection, keys: list[Key], me: int) -> list[Job]:
        connection.execute(self._take, {"claimjobs_keys": keys, "claimjobs_me": me})
        jobs = self._apart.jobs(connection, self._taken, keys, claimjobs_me=me)
        if len(jobs) < len(keys):
            self._give_back(connection, me, set(keys) - {job.key for job in jobs})
        return jobs

    def _give_back(self, connection: sa.Connection, me: int, keys: set[Key]) -> None:
        """Some are others', or are gone or changed since they were found. None are ours if we were declared dead."""
        if not connection.scalar(self._alive, {"claimjobs_me": me}):
            raise OwnerDead
        connection.execute(self._release, {"claimjobs_keys": list(keys), "claimjobs_me": me})


class SideCarLockOnly(ClaimStrategy):
    """Claims by the locks of an open transaction: find, lock the rows, and look again whether they are free.

    Nothing is inserted until there is something to say of a job. The second look is needed: what the locking
    statement knew of the claims may be older than its locks, and a row that was locked and done meanwhile is the same.
    """

    is_one_statement = is_lazy = False

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        self._apart = SideCarPhases(backend, selection, now)
        self.keyset_order = self._apart.keyset_order
        self._free = CompiledStatement(statements.free(self._apart.pair, self._apart.rows.columns))

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        rows = self._apart.candidates(connection, request)
        if not rows:
            return NOTHING
        candidates, size = alike(rows, request.size)
        keys = self._apart.locked(connection, candidates, size)
        jobs = self._apart.jobs(connection, self._free, keys) if keys else []
        return ClaimResult(jobs, len(rows), reach_of(candidates, jobs, size), owner, suspects=bool(rows[0][-1]))


def anti_join(
    backend: Backend, selection: Selection, now: sa.ColumnElement[Any], hold: Hold = "lease"
) -> ClaimStrategy:
    """The way to claim from a table with a side-car, for what is to hold the claim."""
    return (SideCarLockOnly if hold == "transaction" else SideCarStrategy)(backend, selection, now)
