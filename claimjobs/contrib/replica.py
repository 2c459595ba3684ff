"""Candidates from a replica: `Queue(..., locking=Replica("mysql://jobs@replica/shop"))`.

A claim searches the replica, and locks and checks again on the primary. A replica lags behind. Some of its candidates
are claimed or gone on the primary, so they are not locked, and count as collisions. Others are not there yet: a claim
that got no job searches the primary as well. While the replica does not answer, or is too far behind, all candidates
come from the primary.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.claim.locking import FindThenLock, JobLocks, Locking
from claimjobs.claim.row_reader import UNMARKED, Marked
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, Phase
from claimjobs.database.connect import Bind, engine_of, open_connection
from claimjobs.database.error_translation import not_longer_than, reason
from claimjobs.database.statement_size import cut
from claimjobs.dialects import Key
from claimjobs.dialects.types import Instant, database_now
from claimjobs.errors import ClaimjobsError, CrossedFork
from claimjobs.job import key_of
from claimjobs.options import Backoff
from claimjobs.statements import claim_rows
from claimjobs.statements.find import Selection
from claimjobs.statements.owners import me, of_process, this_process
from claimjobs.table.backend import Backend

MEASURE_EVERY: Final = 1.0
"""Seconds between two measurements of the lag."""
LONGEST_CONNECT, LONGEST_READ = 2, 2.0
"""Seconds after which a replica is left that does not answer. Claims and heartbeats wait meanwhile."""
PAUSES: Final = (1.0, 60.0)
"""Seconds for which a replica is left that failed or lags: the first time, and the longest."""
LEFT, USED = "replica_left", "replica_used"

log = logging.getLogger("claimjobs.replica")


class Replica(Locking):
    """A replica of the database for the candidates of one Queue, and whether it can be read at the moment.

    An owner of this process writes heartbeats, which are replicated. If the replica lacks the last one, it is behind
    since the one that it has. If it lacks the owner, it is behind since the owner registered, or replicates another
    database. All times are the primary's.
    """

    holds = ("lease",)

    def __init__(self, bind: Bind) -> None:
        """Raises UnknownDatabase."""
        self._engine = engine_of(bind, connect_seconds=LONGEST_CONNECT)
        self.reads = self.left = 0  # how often candidates were read here, and how often the primary took over
        self._connection: sa.Connection | None = None
        self._process = os.getpid()
        self._one_at_a_time = threading.Lock()
        self._pauses = Backoff(*PAUSES)
        self._measure_at = self._back_at = 0.0
        self._is_left = False

    def locks(self, backend: Backend, selection: Selection, known: Sequence[str] = ()) -> JobLocks:
        return FindOnReplica(backend, selection, self, known)

    def rows(
        self, primary: sa.Connection, backend: Backend, search: sa.Select[Any], parameters: Mapping[str, Any]
    ) -> Sequence[sa.Row[Any]]:
        """The rows of a search. None of them if the replica cannot be used at the moment. Raises CrossedFork."""
        if self._process != os.getpid():
            raise CrossedFork
        with self._one_at_a_time:
            now = time.monotonic()
            if now < self._back_at:
                return ()
            measures, owner = now >= self._measure_at, None
            if measures:
                # The first owner that this process registered for the table and that lives, and the database's time.
                # An error of the primary is the claim's: it must not be taken for one of the replica.
                owners = backend.owners
                columns = (owners.c.id, owners.c.started, owners.c.beat, owners.c.lease, database_now().label("now"))
                here = sa.and_(
                    owners.c.claims == backend.roles.recorded_as, of_process(owners), owners.c.died.is_(None)
                )
                first = sa.select(*columns).where(here).order_by(owners.c.id).limit(1)
                owner = primary.execute(first, this_process()).one_or_none()
            try:
                if measures and (behind := self._behind(backend, owner)):
                    self._leave(backend, behind)
                    return ()
                found = self._read(backend, search, parameters)
            except (sa.exc.SQLAlchemyError, ClaimjobsError) as error:
                self._drop()
                self._leave(backend, reason(error))
                return ()
            self._pauses.reset()
            if self._is_left:
                self._tell(backend, USED, "they come from the replica again")
            self._is_left = False
            self.reads += 1
        return found

    def close(self) -> None:
        if self._process == os.getpid():  # the parent of a forked process still uses it
            with self._one_at_a_time:
                self._drop()

    def _behind(self, backend: Backend, owner: sa.Row[Any] | None) -> str | None:
        """Why it must not be used, if it is too far behind. `owner`: as it is on the primary."""
        if owner is None:
            return "how far it is behind is not known, because this consumer writes no heartbeats"
        owners = backend.owners
        same = sa.and_(me(owners), owners.c.started == sa.bindparam("claimjobs_started", type_=Instant))
        parameters = {"claimjobs_me": owner.id, "claimjobs_started": owner.started}
        shown = self._read(backend, sa.select(owners.c.beat).where(same), parameters)
        self._measure_at = time.monotonic() + MEASURE_EVERY
        newest = shown[0].beat if shown else owner.started
        lag = (owner.now - newest).total_seconds()
        # Between two heartbeats there is less than a lease, also of an owner that sleeps.
        if lag <= owner.lease or (shown and newest >= owner.beat):
            return None
        return f"it is {lag:.0f} s behind" if shown else "it does not replicate this database, or is far behind"

    def _read(self, backend: Backend, query: sa.Select[Any], parameters: Mapping[str, Any]) -> Sequence[sa.Row[Any]]:
        sessions = backend.dialect.sessions
        if self._connection is None:
            self._connection = connection = open_connection(self._engine)
            with not_longer_than(LONGEST_READ, sessions, connection):
                connection.execution_options(isolation_level="AUTOCOMMIT")
                with connection.begin():  # it reads instants as the primary's sessions do
                    connection.execute(sessions.to_utc, {"local": False}).close()
        with not_longer_than(LONGEST_READ, sessions, self._connection), self._connection.begin():
            return self._connection.execute(query, parameters).all()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        for end in () if connection is None else (connection.invalidate, connection.close):
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                end()  # nobody disposes of an engine that was made for a URL

    def _leave(self, backend: Backend, why: str) -> None:
        self._back_at = time.monotonic() + self._pauses.pause()
        self._measure_at = 0.0
        if not self._is_left:
            self.left += 1
            self._tell(backend, LEFT, f"they come from the primary, not from the replica: {why}")
        self._is_left = True

    def _tell(self, backend: Backend, event: str, says: str) -> None:
        fields = {"event": event, "queue": backend.source.name, "error": says}
        log.warning("candidates of table %s: %s", backend.source.name, says, extra=fields)


class FindOnReplica(FindThenLock):
    """Finds candidates on the replica, and locks on the primary those that are still due and unlocked."""

    def __init__(self, backend: Backend, selection: Selection, replica: Replica, known: Sequence[str]) -> None:
        super().__init__(backend, selection, known)
        self._backend, self._replica = backend, replica
        self._open = backend.roles.claim_rows
        self._open_now = None if self._open is None else claim_rows.open_now(self._open)

    def lock(self, connection: sa.Connection, request: ClaimRequest, marked: Marked = UNMARKED) -> ClaimResult:
        rows = self._replica.rows(connection, self._backend, self._finder.form_for(request), request.find_parameters)
        if rows:
            taken: set[Key] = set()
            if self._open is not None and self._open_now is not None:
                # Neither the replica nor a lock of their rows shows claim rows.
                for some in cut(map(key_of, (row[:-1] for row in rows)), self._lock.most_keys):
                    given = {"claimjobs_keys": some, **self._open.range_of(some)}
                    taken.update(map(key_of, connection.execute(self._open_now, given)))
            claimed = self.lock_candidates(connection, rows, request, marked, taken=taken)
            if claimed.jobs:
                return claimed
        return super().lock(connection, request, marked)

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        phases = [*super().phases(request, keys)]
        if self._open is not None:
            given = {"claimjobs_keys": keys, **self._open.range_of(keys)}
            phases.insert(1, Phase("read claim rows", self._open_now, given))
        return phases
