"""Hand: where an owner's claims come in and its settles go out, through one connection, counted."""

from __future__ import annotations

import contextlib
import os
from functools import partial

import sqlalchemy as sa

from claimjobs.backend import Backend
from claimjobs.claim import Algorithm, Claimed, Overfetch
from claimjobs.dialects import Key
from claimjobs.errors import CrossedFork
from claimjobs.owner import Connector, Owner
from claimjobs.report import Report
from claimjobs.settle import Outcomes, Settler
from claimjobs.statements import owners

TRIES = 5
"""How often a claim that met only other hands looks again, wider each time, before it comes back empty."""


class Hand:
    """One owner at work. Registers it; `close` hands back what is left and takes the owner out again."""

    def __init__(self, engine: sa.Engine, backend: Backend, settler: Settler, report: Report) -> None:
        self._backend = backend
        self._settler = settler
        self._report = report
        self._connector = Connector(engine, backend.dialect, report)
        self._overfetch = Overfetch()
        self._process = os.getpid()
        self.owner = Owner(self._connector, backend.owners, backend.roles.name)

    def claim(self, size: int, algorithm: Algorithm) -> Claimed:
        """Up to `size` jobs, committed as this owner's."""
        for _ in range(TRIES):
            claimed = self._try(size, algorithm)
            if claimed.jobs or not claimed.found:
                break
        return claimed

    def _try(self, size: int, algorithm: Algorithm) -> Claimed:
        limit = self._overfetch.limit(size)
        take = partial(algorithm, me=self.owner.id, size=size, limit=limit)
        claimed = self._connector.transaction(take)
        self._overfetch.learn(claimed, size, limit)
        self._count(claimed)
        return claimed

    def _count(self, claimed: Claimed) -> None:
        self._report.claims += 1
        self._report.empty_claims += not claimed.jobs
        self._report.candidates += claimed.found
        self._report.collisions += claimed.collisions
        self._report.claimed += len(claimed.jobs)

    def settle(self, outcomes: Outcomes) -> set[Key]:
        """Write outcomes; return the keys that this owner did not hold any more."""
        if self._process != os.getpid():  # a batch that a fork took along: its parent still works on it
            raise CrossedFork
        lost = self._settler.settle(self._connector, self.owner.id, outcomes)
        kept = outcomes.only(set(outcomes.keys()) - lost) if lost else outcomes
        self._report.done += len(kept.done)
        self._report.released += len(kept.released)
        self._report.retried += len(kept.retried)
        self._report.dead += len(kept.dead)
        self._report.lost += len(lost)
        return lost

    def close(self) -> None:
        """Hand back, leave, close. In a forked child this does nothing: the connection is its parent's."""
        if self._process != os.getpid():
            return
        try:
            # Also run when the interpreter ends, perhaps without a server: then nothing can be handed back.
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                hand_back(self._connector, self._backend, self._settler, self.owner.id)
        finally:
            self._connector.close()


def hand_back(connector: Connector, backend: Backend, settler: Settler, owner_id: int) -> int:
    """Release all jobs that an owner holds, then take the owner out of the table; return how many jobs."""
    keys = connector.transaction(partial(_held, backend=backend, me=owner_id))
    lost = settler.settle(connector, owner_id, Outcomes(released=keys)) if keys else set()
    connector.transaction(lambda c: c.execute(owners.leave(backend.owners), {"me": owner_id}))
    return len(keys) - len(lost)


def _held(connection: sa.Connection, backend: Backend, me: int) -> list[Key]:
    rows = connection.execute(owners.held(backend.roles), {"me": me})
    return [row[0] if len(row) == 1 else tuple(row) for row in rows]
