"""Reaper: finds dead owners and reclaims their jobs. One process at a time reclaims the jobs of one owner.

An owner is dead if it has written no heartbeat for a lease, or if its session lock is free on a server that was not
restarted since it took the lock (`registry.OwnerState.is_dead`). It is declared dead in its row. A job that it held
alone has failed; several become suspects. Then its row is deleted.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.claim.row_reader import RowReader
from claimjobs.claim.strategy import ClaimResult
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import reason
from claimjobs.database.statement_size import cut, most_keys
from claimjobs.database.transactions import savepoint
from claimjobs.dialects import Key
from claimjobs.dialects.types import database_now
from claimjobs.errors import ClaimjobsError, StatementTimedOut, WriteSwallowed
from claimjobs.job import Job, entry_of, key_of, with_entry
from claimjobs.key_text import key_in_message
from claimjobs.lease.owner_row import END_OF_SESSION_SECONDS
from claimjobs.lease.registry import OwnerState, Watch, dead_among, left_by_failover, read_owners
from claimjobs.log_events import JOB_STUCK, OWNER_DEAD, OWNER_ELSEWHERE, OWNER_STUCK
from claimjobs.options import Retry
from claimjobs.settle.failures import Failures
from claimjobs.settle.outcomes import Outcomes
from claimjobs.settle.refusals import REFUSALS, SWALLOWED, WriteInHalves, is_of_a_row
from claimjobs.settle.settler import Settler
from claimjobs.statements import owners
from claimjobs.statements.find import columns_of
from claimjobs.statements.key_rows import make_next
from claimjobs.statements.settle import Failure, SettleGuard, release
from claimjobs.table.backend import Backend
from claimjobs.table.record_description import RecordDescription

JOBS_PER_TRANSACTION: Final = 1_000
"""Jobs without an owner that one transaction releases."""
KEY_RETRY_SECONDS: Final = 1.0
"""Seconds for which keys are made next again after a conflict with a claim of the same keys."""

log = logging.getLogger("claimjobs.reaper")


class Reaper:
    """Finds the dead owners of one table through a connector, and reclaims their jobs."""

    def __init__(
        self, connector: Connector, backend: Backend, settler: Settler, retry: Retry, *, failures: Failures
    ) -> None:
        """`failures` reports the jobs that failed because their owner died."""
        self._connector, self._backend, self._settler = connector, backend, settler
        self._retry, self._failures = retry, failures
        self.unreported: deque[Outcomes] = deque()
        """The next `report` logs the failures of these."""
        self.keys = NextKeys(connector, backend)
        self._name = backend.source.name
        self._record, table = settler.record, settler.table
        self._to_reclaim, self._held = table.to_reclaim, table.held
        self._unknown, self._expect = self._record.unknown(backend.owners), owners.expect(backend.owners)
        self._records = RecordDescription.of(replace(backend, by_lease=True, records_claims=True))
        """What a claim is seen by here. Others reclaim what a dead owner has left that is not seen."""
        self._watch = Watch()
        self._watched_through = connector.disconnects
        self._reported: set[int] = set()
        """Dead owners for which a job that cannot be reclaimed was logged."""
        self._failed_owners: set[int] = set()
        """Owners for which an error was logged."""
        self._error: Exception | None = None

    # --- finding ---------------------------------------------------------------------------------------

    def dead(self) -> list[OwnerState]:
        """The owners that are dead now."""
        backend, ours, dead = self._backend, self._records, list[OwnerState]()
        for attempt in self._connector.attempts(patience=0):
            with attempt as connection:
                # After a crash or a failover all sessions have ended: a free lock is no sign of death for some seconds.
                calm = self._connector.is_calm
                seen_now = [seen for seen in read_owners(connection, backend) if ours.sees_claims_of(seen.records)]
                if self._watched_through != self._connector.disconnects:
                    self._watch.heartbeats.clear()  # while the server was away, no owner could write a heartbeat
                    self._watched_through = self._connector.disconnects
                silences = self._watch.silences(seen_now, time.monotonic())
                for seen in left_by_failover(seen_now, connection, backend, silences):
                    connection.execute(self._expect, {"claimjobs_me": seen.id, "claimjobs_beat": seen.beat})
                dead = dead_among(seen_now, connection, backend, locks_tell=calm, silences=silences)
        return dead

    # --- reclaiming ------------------------------------------------------------------------------------

    def reclaim_dead(self) -> int:
        """Reclaim the jobs of all dead and unknown owners; return how many. Raises the last error after all of them."""
        self._error = None
        jobs = sum(map(self.reclaim_or_log, self.dead())) + sum(map(self.reclaim_or_log, self.unknown()))
        if self._error is not None:
            raise self._error
        return jobs

    def reclaim_or_log(self, owner: OwnerState | int) -> int:
        """As `reclaim`, or `reclaim_by_id` of an owner in no table. If that fails for this owner, it is logged once: an
        error about its jobs must not keep others waiting.
        """
        id_ = owner if isinstance(owner, int) else owner.id
        try:
            return self.reclaim_by_id(owner) if isinstance(owner, int) else self.reclaim(owner)
        except (StatementTimedOut, sa.exc.DBAPIError) as error:
            if self._backend.dialect.errors.broken_kind(error):
                raise
            self._error = error
            if id_ not in self._failed_owners:
                self._failed_owners.add(id_)
                fields = {"event": OWNER_STUCK, "queue": self._name, "owner": id_, "error": reason(error)}
                words = "owner %d is dead, and its jobs cannot be reclaimed now: %s"
                log.warning(words, id_, fields["error"], extra=fields)
            return 0

    def unknown(self) -> list[int]:
        """The ids of owners that hold jobs and are not in the owners table."""
        # A user's column may be read as decimals.
        return [int(owner) for (owner,) in self._connector.rows(self._unknown, patience=0)]

    def reclaim_ownerless(self) -> int:
        """Release the jobs that are claimed without an owner's id; return how many. Raises WriteSwallowed."""
        roles, count = self._backend.roles, 0
        ownerless, guard = owners.ownerless(roles), owners.claimed_by_nobody(roles)
        free = CompiledStatement(release(SettleGuard(roles, self._backend.dialect, guard)))
        while True:
            for attempt in self._connector.attempts(patience=1):
                with attempt as connection:
                    keys = [*map(key_of, connection.execute(ownerless, {"claimjobs_limit": JOBS_PER_TRANSACTION}))]
                    if keys:
                        written = free.count(connection, {"claimjobs_keys": keys})
                        if written < len(keys):  # the next look would find the same rows
                            raise WriteSwallowed(roles.name, "the release", (written, len(keys)), keys)
            if not keys:
                return count
            count += len(keys)

    def reclaim(self, seen: OwnerState) -> int:
        """Reclaim the jobs of a dead owner and delete its row, unless it is alive again; return how many jobs.

        Its session is ended first, if it still exists: its open transaction is rolled back, or was committed. Jobs
        that another session has locked stay claimed until the next call.
        """
        if seen.holder is not None:
            self._end(seen.holder, seen.session)
        return self._reclaim(seen.id, seen.beat)

    def reclaim_by_id(self, owner: int, cause: str | None = None, *, force: bool = False) -> int:
        """Reclaim the jobs of an owner, if it claims here, whose process has ended; wait until its session has, too.

        `force`: also if its row names another table, and it holds jobs here, or a record that is not seen here.
        """
        if self._is_ours(owner, force=force) is False:
            return 0
        deadline = time.monotonic() + END_OF_SESSION_SECONDS
        sessions = owners.sessions_of(self._backend.owners, self._backend.dialect)
        while (rows := self._connector.rows(sessions, {"claimjobs_me": owner}, patience=1)) and rows[0].holder:
            if time.monotonic() > deadline:
                self._end(rows[0].holder, rows[0].session)
                break
            time.sleep(0.01)
        return self._reclaim(owner, None, cause=cause)

    def release_by_id(self, owner: int) -> int:
        """Declare an owner dead whose process still runs, and release its jobs; return how many.

        Tried again for END_OF_SESSION_SECONDS seconds while its own session has its row or its jobs locked.
        """
        jobs, deadline = 0, time.monotonic() + END_OF_SESSION_SECONDS
        while self._is_ours(owner):
            jobs += self._reclaim(owner, None, charges=False)
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return jobs

    def _is_ours(self, owner: int, *, force: bool = False) -> bool | None:
        """Whether it claims from this table, in a way that is seen here. None: it has no row.

        `force`: whether it claims from this table, in whatever way, or holds jobs of it, as after a rename.
        """
        claims_of = owners.claims_of(self._backend.owners)
        rows = self._connector.rows(claims_of, {"claimjobs_me": owner}, patience=1)
        if not rows:
            return None
        claims = rows[0].claims
        if claims == self._backend.roles.recorded_as:
            return force or self._records.sees_claims_of(RecordDescription.in_row(rows[0].kind, rows[0].sees))
        if force and self._connector.rows(self._held, {"claimjobs_me": owner}, patience=1):
            return True
        fields = {"event": OWNER_ELSEWHERE, "queue": claims, "owner": owner}
        log.warning("owner %d is not reclaimed: it claims jobs from %s", owner, claims, extra=fields)
        return False

    def _end(self, holder: int, session: int | None) -> None:
        """End the session that holds an owner's lock, if it is the one that the owner wrote: it may be a stranger's."""
        if holder != session:
            return
        # It may be another user's session, or may have ended just now. Then only the owner id fences.
        with contextlib.suppress(sa.exc.DBAPIError):
            self._connector.write(self._backend.dialect.sessions.end_session(session), patience=0)

    def _reclaim(
        self, owner: int, last_beat: datetime | None, *, charges: bool = True, cause: str | None = None
    ) -> int:
        """`charges`: if the owner held only one job, that job is charged one attempt. `cause`: of its death."""
        why = f"owner {owner} died while it held this job" + (f": {cause}" if cause else "")
        for attempt in self._connector.attempts(patience=1):
            with attempt as connection:
                jobs, removed, failed = self._reclaim_in(connection, owner, last_beat, why, charges=charges)
        if failed is not None:
            self.unreported.append(failed)
        if jobs:
            self.keys.make_all_next()
        if jobs or removed:
            fields = {"event": OWNER_DEAD, "queue": self._name, "owner": owner, "jobs": jobs}
            log.warning("owner %d is dead: %d %s reclaimed", owner, jobs, "job" if jobs == 1 else "jobs", extra=fields)
        return jobs

    def _reclaim_in(
        self, connection: sa.Connection, owner: int, last_beat: datetime | None, why: str, *, charges: bool
    ) -> tuple[int, bool, Outcomes | None]:
        """Declare an owner dead and reclaim its jobs; delete its row if it holds none any more.

        Returns how many jobs were reclaimed, whether the row was deleted, and the outcomes if a job failed.
        """
        me, table = {"claimjobs_me": owner}, self._backend.owners
        seized = connection.execute(owners.seize(table), me).mappings().first()
        if seized is None:
            is_as_seen = connection.execute(sa.select(table.c.id).where(table.c.id == owner)).first() is None
        else:
            is_as_seen = last_beat is None or seized["beat"] == last_beat
        # Another session has locked its row or the record of a claim, or it has written a heartbeat meanwhile.
        if not (is_as_seen and self._record.seize(connection, owner)):
            return 0, False, None
        is_first_time = bool(connection.execute(owners.declare_dead(table), me).rowcount)
        if seized is not None and not self._records.sees_claims_of(
            RecordDescription.in_row(seized["kind"], seized["sees"])
        ):
            self._record.forget(connection, owner)  # by force: the keys in its claim rows may be of other columns
        # `held`: all its jobs. `rows`: those of them that no other session has locked; only these are written now.
        rows = connection.execute(self._to_reclaim, me).all()
        held = connection.execute(self._held, me).all()
        stuck, failed = 0, None
        if rows:
            found = [(key_of(row[:-1]), row[-1]) for row in rows]
            outcomes = self._outcomes(found, alone=is_first_time and len(held) == 1, charges=charges, why=why)
            stuck = self._write(connection, owner, outcomes)
            failed = outcomes if outcomes.jobs and not stuck else None
        if len(held) > len(rows) - stuck:
            return len(rows) - stuck, False, failed
        self._record.forget(connection, owner)
        return len(rows), bool(connection.execute(owners.leave(table), me).rowcount), failed

    def give_up(self, claimed: ClaimResult, why: str) -> None:
        """Reclaim the jobs of one batch, whose owner lives, and whose handler hangs."""
        roles = self._backend.roles
        found = [(job.key, roles.value_of("attempts", entry_of(job), 0)) for job in claimed.jobs]
        outcomes = self._outcomes(found, alone=len(found) == 1, charges=True, why=why)
        outcomes.claim_row = claimed.claim_row
        for attempt in self._connector.attempts(patience=0):
            with attempt as connection:
                held = outcomes.only(self._settler.lock(connection, claimed.owner, outcomes))
                stuck = self._write(connection, claimed.owner, held)
        if held and held.jobs and not stuck:
            self.unreported.append(held)

    def _write(self, connection: sa.Connection, owner: int, outcomes: Outcomes) -> int:
        """Reclaim jobs; return how many cannot be: their write is refused or swallowed, which is logged once."""
        refused: dict[Key, str] = {}
        short: set[Key] = set()
        keys = outcomes.keys()
        parts = WriteInHalves(keys, self._backend.dialect, refused)
        for some in parts:
            part = outcomes.only(set(some))
            # If a single one is refused, because its column holds no such text, its error is not written.
            tries = [part, part.with_short_errors(0)] if len(part) == 1 and part.failures else [part]
            for tried in tries:
                try:
                    with savepoint(connection):
                        self._record.take_out(connection, owner, tried.keys(), tried.claim_row)
                        short |= self._settler.write_locked(connection, owner, tried)
                    break
                except REFUSALS as error:
                    if tried is tries[-1] or not is_of_a_row(error, self._backend.dialect):
                        parts.refuse(some, error)
        # Compared in Python: where a key is unequal to itself, SQL finds no row by it.
        left = {key_of(row) for row in connection.execute(self._held, {"claimjobs_me": owner})} if short else set()
        stuck = {**refused, **dict.fromkeys(left & set(keys), SWALLOWED)}
        if stuck and owner not in self._reported:
            self._reported.add(owner)
            key, why = next(iter(stuck.items()))
            fields = {"event": JOB_STUCK, "queue": self._name, "owner": owner, "key": key, "error": why}
            log.error("job %s cannot be reclaimed from owner %d: %s", key_in_message(key), owner, why, extra=fields)
        return len(stuck)

    def _outcomes(self, found: Sequence[tuple[Key, int]], *, alone: bool, charges: bool, why: str) -> Outcomes:
        """The outcomes of a dead owner's jobs. If it held one job, that has failed; if several, all are suspects.

        `found`: their keys and attempts. `alone`: the owner held one job only; no other one was reclaimed before, or is
        locked by another session. Unless it `charges`, all jobs are released.
        """
        roles = self._backend.roles
        if not (charges and roles.can_isolate):
            return Outcomes(released=dict.fromkeys(key for key, _ in found))
        failure = Failure(roles.kept_of(why))
        if not alone:
            return Outcomes(suspects=dict.fromkeys((key for key, _ in found), replace(failure, group=len(found))))
        [(key, attempts)] = found
        jobs = {key: Job(key, {}, {} if roles.attempts is None else {roles.attempts.name: attempts})}
        if self._retry.is_last(attempts):
            return Outcomes(dead={key: failure}, jobs=jobs)
        # The machine may be the reason for the first death: the job waits only from the second one on.
        wait = self._retry.wait(attempts) if attempts else 0.0
        return Outcomes(retried={key: replace(failure, wait=wait, group=1)}, jobs=jobs)

    # --- telling ---------------------------------------------------------------------------------------

    def report(self) -> None:
        """Log the jobs that failed because their owner died, and call the hooks. Not for the heartbeat's thread: a hook
        that takes long would cost this owner its lease.
        """
        while True:
            try:
                outcomes = self.unreported.popleft()
            except IndexError:  # another thread may have taken the last one
                return
            outcomes.jobs = {key: self._job(key, entry_of(job)) for key, job in outcomes.jobs.items()}
            self._failures.report(outcomes)

    def _job(self, key: Key, entry: Mapping[str, Any]) -> Job:
        """The job as it is now, with its entry as it was; without columns if it is gone or cannot be read."""
        source, dialect = self._backend.source, self._backend.dialect
        reader = RowReader(source, dialect)
        statement = CompiledStatement(columns_of(source, dialect, reader.columns))
        with contextlib.suppress(sa.exc.SQLAlchemyError, ClaimjobsError):
            for attempt in self._connector.attempts(patience=1):
                with attempt as connection:
                    rows = statement.rows(connection, {"claimjobs_keys": [key]}, reader)
            if rows:
                return with_entry(reader.jobs(rows[:1])[0], entry)
        return Job(key, {}, entry)


class NextKeys:
    """After jobs were settled or given back, a key that a limit has held back is next at once; after an error it waits
    for some seconds. Does nothing for a queue without `per_key`.
    """

    def __init__(self, connector: Connector, backend: Backend) -> None:
        self._connector, self._key_rows = connector, backend.key_rows
        if (rows := backend.key_rows) is not None:
            self._most, restrict = most_keys(rows.key, backend.dialect), backend.dialect.restrict_to_keys
            self._all = make_next(rows, database_now())
            self._after_settle = restrict(self._all, rows.key, None)
            self._after_release = restrict(make_next(rows, database_now(), given_back=True), rows.key, None)

    def make_next(self, jobs: Sequence[Job], *, given_back: bool) -> None:
        """Jobs were settled, and their claims are committed as such: after a claim that has counted them. `given_back`:
        some are unclaimed again.
        """
        rows = self._key_rows
        if rows is None or not jobs or not (rows.limit or given_back):
            return
        names = [column.name for column in rows.of_jobs]
        keys = dict.fromkeys(key_of([job[name] for name in names]) for job in jobs)
        for some in cut(keys, self._most):
            self._send(self._after_release if given_back else self._after_settle, {"claimjobs_keys": some})

    def make_all_next(self) -> None:
        """Jobs of any keys were given back."""
        if self._key_rows is not None and self._key_rows.limit:
            self._send(self._all, {})

    def _send(self, statement: Any, given: dict[str, Any]) -> None:
        with contextlib.suppress(sa.exc.SQLAlchemyError, ClaimjobsError):
            for attempt in self._connector.attempts(KEY_RETRY_SECONDS, autocommit=True):
                with attempt as connection:
                    connection.execute(statement, given)
