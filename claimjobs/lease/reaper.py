"""Reaper: finds dead owners and reclaims what they hold. Any process may do it, one at a time for each owner."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.batch.refusals import SWALLOWED, halved
from claimjobs.batch.settle import Outcomes, Settler
from claimjobs.database.connection import Connector
from claimjobs.database.savepoint import savepoint
from claimjobs.dialects import Key
from claimjobs.job import key_of
from claimjobs.lease.owner import END_OF_SESSION
from claimjobs.lease.registry import OwnerState, Watch, dead_among, look
from claimjobs.options import Retry
from claimjobs.statements import owners as statements
from claimjobs.statements.settle import SettleTarget, release
from claimjobs.table.backend import Backend

AT_ONCE: Final = 1_000
"""Jobs of one transaction that are freed because nobody has them."""

log = logging.getLogger("claimjobs.reaper")


class Reaper:
    """Finds the dead owners of one table through a connector, and reclaims their jobs."""

    def __init__(self, connector: Connector, backend: Backend, settler: Settler, retry: Retry) -> None:
        self._connector = connector
        self._backend = backend
        self._settler = settler
        self._retry = retry
        roles, owners = backend.roles, backend.owners
        self._unknown = statements.unknown(roles, owners)
        self._left_behind = statements.left_behind(roles)
        self._held = statements.held(roles)
        self._watch = Watch()
        self._watched_through = connector.lost
        self._reported: set[int] = set()
        """Dead owners whose jobs cannot all be handed back."""

    # --- looking ---------------------------------------------------------------------------------------

    def dead(self) -> list[OwnerState]:
        """The owners that are dead by now."""
        for attempt in self._connector.attempts(patience=0):
            with attempt as connection:
                found = self._dead(connection)
        return found

    def unknown(self) -> list[int]:
        """Owners in no table that hold jobs all the same."""
        return self._connector.transaction(lambda c: list(c.scalars(self._unknown)), patience=0)

    def _dead(self, connection: sa.Connection) -> list[OwnerState]:
        # Where one session's end was everybody's (a crash, a failover), the first one back must not bury the others.
        calm = self._connector.is_calm
        owners = look(connection, self._backend)
        return dead_among(owners, connection, self._backend, locks_tell=calm, silences=self._silences(owners))

    def _silences(self, owners: Sequence[OwnerState]) -> dict[int, float]:
        if self._watched_through != self._connector.lost:
            self._watch.forget()
            self._watched_through = self._connector.lost
        return self._watch.look(owners, time.monotonic())

    # --- reclaiming ------------------------------------------------------------------------------------

    def reclaim_dead(self) -> int:
        """Reclaim what all dead owners hold, and what unknown ones do; how many jobs."""
        return sum(map(self.reclaim, self.dead())) + self.reclaim_unknown()

    def reclaim_unknown(self) -> int:
        """Reclaim what owners hold that are in no table."""
        return sum(map(self.reclaim_by_id, self.unknown()))

    def reclaim_ownerless(self) -> int:
        """Free the jobs that are claimed by nobody, as they were; how many."""
        count = 0
        while freed := self._connector.transaction(self._free_some, patience=1):
            count += freed
        return count

    def _free_some(self, connection: sa.Connection) -> int:
        roles, limit = self._backend.roles, {"claimjobs_limit": AT_ONCE}
        keys = [key_of(row) for row in connection.execute(statements.ownerless(roles), limit)]
        if keys:
            reach = SettleTarget(roles, self._backend.dialect, statements.claimed_by_nobody(roles))
            connection.execute(release(reach), {"claimjobs_keys": keys})
        return len(keys)

    def reclaim(self, seen: OwnerState) -> int:
        """Reclaim what a dead owner holds, unless it has come back meanwhile, and take it out; how many jobs.

        Its session is ended first, if it still lasts: a claim or settle under way is rolled back by that, or was
        committed, and is seen. What somebody else has locked is left for the next look.
        """
        if seen.session is not None:
            self._end(seen.session)
        return self._reclaim(seen.id, seen.beat)

    def reclaim_by_id(self, owner: int) -> int:
        """The same for an owner whose process is known to have ended: waits until the server knows it as well.

        An owner that takes jobs from another table is left alone.
        """
        if not self._is_ours(owner):
            return 0
        session = self._wait_for_the_end(owner)
        if session is not None:
            self._end(session)
        return self._reclaim(owner, None)

    def _reclaim(self, owner: int, last_beat: datetime | None) -> int:
        for attempt in self._connector.attempts(patience=1):
            with attempt as connection:
                jobs, ended = self._take_over(connection, owner, last_beat)
        if jobs or ended:
            log.warning("owner %d is dead: %d %s handed back", owner, jobs, "job" if jobs == 1 else "jobs")
        return jobs

    def _is_ours(self, owner: int) -> bool:
        claims_of = statements.claims_of(self._backend.owners)
        claims = self._connector.transaction(lambda c: c.scalar(claims_of, {"claimjobs_me": owner}), patience=1)
        if claims in (None, self._backend.roles.name):
            return True
        log.warning("owner %d is left alone: it takes jobs from %s", owner, claims)
        return False

    def _wait_for_the_end(self, owner: int) -> int | None:
        """Wait until the session of an owner whose process has ended is gone; the session, if it does not go."""
        deadline = time.monotonic() + END_OF_SESSION
        holder = sa.select(self._backend.dialect.lock_holder(sa.literal(owner, sa.Integer)))
        while (session := self._connector.transaction(lambda c: c.scalar(holder), patience=1)) is not None:
            if time.monotonic() > deadline:
                return int(session)
            time.sleep(0.01)
        return None

    def _end(self, session: int) -> None:
        kill = self._backend.dialect.end_session(session)
        # Another user's session, or one that has just ended: the owner id alone fences then.
        with contextlib.suppress(sa.exc.DBAPIError):
            self._connector.transaction(lambda c: c.execute(kill), patience=0)

    def _take_over(self, connection: sa.Connection, owner: int, last_beat: datetime | None) -> tuple[int, bool]:
        """Declare an owner dead, hand back its jobs, and take it out once it has none: how many, whether taken out."""
        me, owners = {"claimjobs_me": owner}, self._backend.owners
        if not self._may_declare(connection, owner, last_beat):
            return 0, False
        first_look = bool(connection.execute(statements.declare_dead(owners), me).rowcount)
        rows = connection.execute(self._left_behind, me).all()
        held = connection.execute(self._held, me).all()
        stuck = 0
        if rows:
            outcomes = self._outcomes(rows, owner, alone=first_look and len(held) == 1)
            stuck = self._written(connection, owner, outcomes)
        if len(held) > len(rows) - stuck:
            return len(rows) - stuck, False
        return len(rows), bool(connection.execute(statements.leave(owners), me).rowcount)

    def _written(self, connection: sa.Connection, owner: int, outcomes: Outcomes) -> int:
        """Hand jobs back; how many cannot be: the database refuses that, or swallows it. Told of once an owner."""
        refused: dict[Key, str] = {}

        def write(keys: Sequence[Key]) -> set[Key]:
            with savepoint(connection):
                return self._settler.write(connection, owner, outcomes.only(set(keys)))

        keys = outcomes.keys()
        short = set().union(*halved(keys, write, self._backend.dialect, refused))
        # As they are read: what is written by a key that is unequal reaches no row, and neither does a look by it.
        left = {key_of(row) for row in connection.execute(self._held, {"claimjobs_me": owner})} if short else set()
        stuck = {**refused, **dict.fromkeys(left & set(keys), SWALLOWED)}
        if stuck and owner not in self._reported:
            self._reported.add(owner)
            log.error("owner %d is dead, and job %r cannot be handed back: %s", owner, *next(iter(stuck.items())))
        return len(stuck)

    def _may_declare(self, connection: sa.Connection, owner: int, last_beat: datetime | None) -> bool:
        """Seize the owner's row: not when somebody else has it, or when it has given a sign of life meanwhile."""
        owners = self._backend.owners
        seized = connection.execute(statements.seize(owners), {"claimjobs_me": owner}).mappings().first()
        if seized is not None:
            return last_beat is None or seized["beat"] == last_beat
        known = connection.execute(sa.select(owners.c.id).where(owners.c.id == owner)).first()
        return known is None

    def _outcomes(self, rows: Sequence[Any], owner: int, *, alone: bool) -> Outcomes:
        """A job that was alone in a dead hand is charged with an attempt; of several, any may be why it died.

        One of several whose company was handed back at an earlier look, or is locked by somebody, was not alone.
        """
        found: list[tuple[Key, int]] = [(row[0] if len(row) == 2 else tuple(row[:-1]), row[-1]) for row in rows]
        roles = self._backend.roles
        if not (roles.can_retry and roles.can_suspect and roles.can_be_dead):
            return Outcomes(released=[key for key, _ in found])
        errors = {key: roles.kept_of(f"owner {owner} died with it in hand") for key, _ in found}
        if not alone:
            return Outcomes(suspects={key: 0.0 for key, _ in found}, errors=errors)
        [(key, attempts)] = found
        if self._retry.is_last(attempts):
            return Outcomes(dead=[key], errors=errors)
        # The first death may be the machine's; from the second on the job waits.
        wait = self._retry.wait(attempts) if attempts else 0.0
        return Outcomes(retried={key: wait}, loners={key}, errors=errors)
