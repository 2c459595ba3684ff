"""Candidates from a replica: phase 1 reads a copy of the database, phase 2 locks on the primary and checks again.

A replica lags behind. Some of its candidates are claimed or gone on the primary, so they are not locked, and count as
collisions. Others are not there yet: a claim that got no job searches the primary as well.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.backoff import Backoff
from claimjobs.claim.find_and_lock import FindThenLock
from claimjobs.claim.replica_url import said_of_the_replica
from claimjobs.claim.row_reader import AS_IT_IS
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, Phase
from claimjobs.database.connect import open_connection
from claimjobs.database.driver_errors import raised_as_sqlalchemy_does
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Key
from claimjobs.errors import ClaimjobsError, ReplicaUnfit, ServerUnreachable
from claimjobs.job import key_of
from claimjobs.log_events import REPLICA_LEFT, REPLICA_TAKES_WRITES, REPLICA_USED
from claimjobs.options import Liveness
from claimjobs.report import Report
from claimjobs.statements import batches, owners
from claimjobs.statements.find import Selection
from claimjobs.table.backend import Backend

MOST_LAG: Final = 10.0
"""Seconds. If the replica is further behind, candidates come from the primary."""
MEASURE_EVERY: Final = 1.0
"""Seconds between two measurements of the lag; and how long the replica is left after a claim in vain."""
MOST_IN_VAIN: Final = 2
"""After so many claims in a row that got no job by the replica it is left for a moment. After one alone it is not: a
claim from the head of the order finds the jobs that this consumer has just done, as long as the replica has them.
Measured with 10,000 jobs: after one alone, 32 to 79 of 102 searches were answered by the replica; now all of them."""
LONGEST_READ: Final = 2.0
"""Seconds after which a replica that does not answer is left."""
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""Seconds for which a replica is left that failed or lags. They double, because an attempt to connect to a host that
does not answer takes seconds, in which nothing is claimed."""

TAKES_WRITES: Final = (
    "candidates come from a server that takes writes: if it is the primary, they save nothing: "
    "give the URL of a replica, or let the replica be read-only"
)

log = logging.getLogger("claimjobs.replica")


class Replica:
    """A replica of the database, and whether candidates can be read there at the moment.

    An owner of this process writes heartbeats, which are replicated. So the age of the one that the replica has, less
    the time between two of them, is how far it is behind at least. If the replica lacks the owner, it is behind since
    the owner registered, or replicates another database. All times are the primary's.
    """

    def __init__(self, engine: sa.Engine, backend: Backend, *, liveness: Liveness, report: Report) -> None:
        self._engine, self._report = engine, report
        self._name, self._sessions = backend.source.name, backend.dialect.sessions
        self._owner, self._shown = owners.oldest_here(backend.owners, self._name), owners.beat_of(backend.owners)
        self._liveness = liveness
        self._connection: sa.Connection | None = None
        self._process = os.getpid()
        self._one_at_a_time = threading.Lock()
        self._pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._measure_at = self._back_at = 0.0
        self._is_left = self._was_checked = False
        self._in_vain = 0
        """Claims in a row that got no job by candidates from here."""

    def rows(
        self, primary: sa.Connection, search: sa.Select[Any], parameters: Mapping[str, Any]
    ) -> Sequence[sa.Row[Any]]:
        """The rows of a search. None of them if the replica cannot be used at the moment."""
        with self._one_at_a_time:
            now = time.monotonic()
            if now < self._back_at:
                return ()
            measures = now >= self._measure_at
            # An error of the primary is the claim's: it must not be taken for one of the replica.
            owner = primary.execute(self._owner, owners.this_process()).one_or_none() if measures else None
            try:
                if measures and (behind := self._behind(owner)):
                    self._leave(behind)
                    return ()
                found = self._read(search, parameters)
            except (sa.exc.SQLAlchemyError, ClaimjobsError) as error:
                self._drop()
                self._leave(reason(error))
                return ()
            self._note_use()
            return found

    def note_claim(self, jobs: int) -> None:
        """Note how many jobs a claim got by candidates from here. It is left for a moment after some that got none."""
        self._in_vain = 0 if jobs else self._in_vain + 1
        if self._in_vain >= MOST_IN_VAIN:
            self._in_vain = 0
            self._back_at = time.monotonic() + MEASURE_EVERY

    def require(self, search: sa.Select[Any], parameters: Mapping[str, Any]) -> None:
        """Read candidates. Raises ReplicaUnfit, or ConnectionFailed."""
        try:
            with said_of_the_replica():
                self._read(search, parameters)
            self._read(self._shown, {"claimjobs_me": 0, "claimjobs_started": None})
        except ClaimjobsError:
            self._drop()
            raise
        except sa.exc.SQLAlchemyError as error:
            self._drop()
            raise ReplicaUnfit(self._name, reason(error)) from error

    def close(self) -> None:
        """Close the connection; a later search opens another one."""
        if self._process != os.getpid():  # the parent of a forked process still uses it
            return
        with self._one_at_a_time:
            self._drop()

    def _behind(self, owner: sa.Row[Any] | None) -> str | None:
        """Why it must not be used, if it is too far behind. `owner`: as it is on the primary."""
        if owner is None:
            return "how far it is behind is not known, because this consumer writes no heartbeats"
        shown = self._read(self._shown, {"claimjobs_me": owner.id, "claimjobs_started": owner.started})
        self._measure_at = time.monotonic() + MEASURE_EVERY
        return why_left(lag_of(owner, shown, self._liveness), is_shown=bool(shown))

    def _read(self, query: sa.Select[Any], parameters: Mapping[str, Any]) -> Sequence[sa.Row[Any]]:
        if self._connection is None:
            self._connection = open_connection(self._engine)
            with not_longer_than(LONGEST_READ, self._sessions.break_connection, self._connection):
                self._connection.execution_options(isolation_level="AUTOCOMMIT")
                self._check_server(self._connection)
                self._set_utc(self._connection)
        connection = self._connection
        with not_longer_than(LONGEST_READ, self._sessions.break_connection, connection), connection.begin():
            return connection.execute(query, parameters).all()

    def _set_utc(self, connection: sa.Connection) -> None:
        """Let it read instants as the primary's sessions do."""
        utc, _ = self._sessions.zone_switch(local=False)
        with connection.begin():
            connection.execute(utc).close()

    def _check_server(self, connection: sa.Connection) -> None:
        """Warn once if the server takes writes. That is no error: a replica need not be read-only."""
        if self._was_checked:
            return
        with connection.begin():
            is_read_only = self._sessions.is_read_only(connection)
        self._was_checked = True
        if not is_read_only:
            fields = {"event": REPLICA_TAKES_WRITES, "queue": self._name}
            log.warning("table %s: %s", self._name, TAKES_WRITES, extra=fields)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                connection.invalidate()  # nobody disposes of an engine that a Queue made for a URL
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                connection.close()

    def _leave(self, why: str) -> None:
        self._back_at = time.monotonic() + self._pauses.pause()
        self._measure_at = 0.0
        if not self._is_left:
            self._is_left = True
            self._report.replica_left += 1
            fields = {"event": REPLICA_LEFT, "queue": self._name, "error": why}
            says = "table %s: candidates come from the primary, not from the replica: %s"
            log.warning(says, self._name, why, extra=fields)

    def _note_use(self) -> None:
        self._report.replica_reads += 1
        self._pauses.reset()
        if self._is_left:
            self._is_left = False
            fields = {"event": REPLICA_USED, "queue": self._name}
            log.warning("table %s: candidates come from the replica again", self._name, extra=fields)


class FindOnReplica(FindThenLock):
    """Finds candidates on the replica, and locks on the primary those that are still there and free."""

    def __init__(self, backend: Backend, selection: Selection, replica: Replica, known: Sequence[str] = ()) -> None:
        super().__init__(backend, selection, known)
        self._replica = replica
        self._batches = backend.roles.batches
        self._open_now = None if self._batches is None else batches.open_now(self._batches)

    def lock(
        self, connection: sa.Connection, request: ClaimRequest, marked: Mapping[str, Any] = AS_IT_IS
    ) -> ClaimResult:
        rows = self._replica.rows(connection, self._finder.of(request), request.find_parameters)
        if rows:
            taken = self._in_open_batch(connection, rows)
            claimed = self.lock_candidates(connection, rows, request, marked, taken=taken)
            self._replica.note_claim(len(claimed.jobs))
            if claimed.jobs:
                return claimed._replace(from_replica=True)
        return super().lock(connection, request, marked)

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        phases = [*super().phases(request, keys)]
        if self._open_now is not None and self._batches is not None:
            given = {"claimjobs_keys": keys, **self._batches.range_of(keys)}
            phases.insert(1, Phase("read open batches", self._open_now, given))
        return phases

    def _in_open_batch(self, connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> set[Key]:
        """Those of the candidates that are in an open batch, which the replica may not show yet. Nothing is written in
        the rows of these jobs, so locking them would not tell.
        """
        if self._open_now is None or self._batches is None:
            return set()
        keys = [key_of(row[:-1]) for row in rows]
        given = {"claimjobs_keys": keys, **self._batches.range_of(keys)}
        return {key_of(row) for row in connection.execute(self._open_now, given)}

    def require_replica(self) -> None:
        """Read candidates on the replica once. Raises ReplicaUnfit, or ConnectionFailed."""
        request = ClaimRequest(1, 1)
        self._replica.require(self._finder.of(request), request.find_parameters)


def lag_of(owner: sa.Row[Any], shown: Sequence[Sequence[Any]], liveness: Liveness) -> float:
    """For how many seconds the replica is behind at least.

    `owner`: its row on the primary, and the time there. `shown`: its heartbeat on the replica, if it has its row.
    `liveness`: of the owner.
    """
    if not shown:
        return float((owner.now - owner.started).total_seconds())
    [[newest, asleep]] = shown
    if newest >= owner.beat:
        return 0.0
    until_next = liveness.beat if asleep is None else liveness.idle_beat
    behind: float = (owner.now - newest).total_seconds() - until_next
    return max(0.0, behind)


def why_left(lag: float, *, is_shown: bool) -> str | None:
    """Why a consumer leaves a replica that is so far behind; None: it does not. `is_shown`: it has the owner's row."""
    if lag <= MOST_LAG:
        return None
    if is_shown:
        return f"it is {lag:.0f} s behind"
    return f"it does not replicate this database, or is more than {MOST_LAG:g} s behind"


@contextlib.contextmanager
def not_longer_than(seconds: float, break_connection: Any, connection: sa.Connection) -> Iterator[None]:
    """Break the connection if the block takes longer: the host may have vanished without a word.

    Raises ServerUnreachable then.
    """
    timer = threading.Timer(seconds, break_connection, [connection.connection.dbapi_connection])
    timer.daemon = True
    began = time.monotonic()
    timer.start()
    try:
        with raised_as_sqlalchemy_does(connection):
            yield
    except sa.exc.DBAPIError as error:
        if time.monotonic() - began < seconds:
            raise
        raise ServerUnreachable(f"no answer within {seconds:g} s") from error  # the driver says that the server left
    finally:
        timer.cancel()
