"""QueueOperations: what operators do with a queue, and what they read of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from claimjobs.admin import pause
from claimjobs.admin.overview import LIMIT, Backlog, Overview, OverviewReader
from claimjobs.admin.stats import Retries, Stats, read_stats
from claimjobs.admin.stored_jobs import StoredJobs
from claimjobs.batch.batch import BatchTimer
from claimjobs.database.clock import DatabaseClock
from claimjobs.database.connect import connected
from claimjobs.dialects import Key
from claimjobs.errors import UnfitTable
from claimjobs.instants import LONGEST_AGE
from claimjobs.lease.reaper import Reaper
from claimjobs.lease.registry import check_claims, require_writes
from claimjobs.options import LEAVE
from claimjobs.queue.access import Access
from claimjobs.queue.consumer import Consumer
from claimjobs.report import Report
from claimjobs.settings import Settings
from claimjobs.table.columns import DONE, Ended
from claimjobs.table.predicates import Where
from claimjobs.table.roles import ColumnRoles

if TYPE_CHECKING:
    from claimjobs.explain.explainer import Explanation


class QueueOperations:
    """The part of a Queue that neither enqueues nor claims."""

    engine: sa.Engine
    report: Report
    _access: Access
    _consumer: Consumer
    settings: Settings

    # --- pausing ---------------------------------------------------------------------------------------

    def pause(self, reason: str | None = None) -> None:
        """Let nobody claim from this table until `resume`, on any machine. It is stored in the database.

        Consumers notice it with their next heartbeat, after a fifth of a lease, or when they wake. They finish the
        batch in hand, release what they claimed ahead, and wait. It counts for the whole table, whatever `where`. If
        the queue is paused already, only the reason is replaced. Raises TableMissing.
        """
        with self._access.connector() as connector:
            pause.pause(self.engine, connector, self._access.backend, reason)
        self._consumer.expects_pause = True

    def resume(self) -> bool:
        """End a pause, and wake the consumers; return whether the queue was paused. Raises TableMissing."""
        with self._access.connector() as connector:
            notifier = self._access.enqueuer.notifier
            was_paused = pause.resume(self.engine, connector, self._access.backend, notifier)
        self._consumer.expects_pause = True
        return was_paused

    # --- reading ---------------------------------------------------------------------------------------

    def measure_batches(self) -> None:
        """Measure the sizes and times of batches from now on, into `report.times`. Metrics and their collector do so.

        Raises ConnectionFailed, ServerUnfit or UnfitTable.
        """
        source = self._access.backend.source
        if self._consumer.timer is None:
            self._consumer.timer = BatchTimer(self.report, source, DatabaseClock(self.engine, self.settings.now))

    @property
    def table(self) -> sa.Table:
        """The table as it is in the database."""
        return self._access.backend.source.table

    @property
    def roles(self) -> ColumnRoles:
        """Which column of the table plays which role, and which columns are the key."""
        return self._access.backend.roles

    def stats(self) -> Stats:
        """The jobs by status, the age of the oldest, and the owners. Raises ClaimsDiffer and BadPredicate.

        Unclaimed jobs are those that meet the queue's predicate, unless it is a function, which may select other rows
        each time; in the other states all jobs of the table count.
        """
        with self._reading() as connection:
            return read_stats(connection, self._access.backend, self._consumer.plans.lasting, self.settings.now)

    def backlog(self, limit: int = LIMIT) -> Backlog:
        """How much work waits, and how many owners there are, without a scan of the table: jobs are counted up to
        `limit` in each state. With a predicate it reads at most as much as a claim that finds nothing. Raises
        ClaimsDiffer and BadPredicate.
        """
        with self._reading() as connection:
            reader = OverviewReader(self._access.backend, self._consumer.plans, self.settings.now, limit)
            return reader.backlog(connection)

    def overview(self, limit: int = LIMIT) -> Overview:
        """What this queue is doing now: its backlog, its owners, jobs that failed, and keys of `per_key` that wait.
        It reads as much as `backlog`. Raises as that does.
        """
        with self._reading() as connection:
            reader = OverviewReader(self._access.backend, self._consumer.plans, self.settings.now, limit)
            seen = reader.overview(connection)
        return reader.with_failed_jobs(seen, self.jobs)

    def retries(self, where: Where = None) -> Retries:
        """How many failed jobs wait for their next attempt, and when the first of them is due. Raises BadPredicate.

        Only jobs that match this queue's predicate, and `where`, count.
        """
        return self._consumer.retries(where)

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """A connection for counts. Raises TableMissing and BadPredicate for what they read in vain."""
        tables = self._access.backend.tables_in_use
        understood = self._consumer.plans.understood(None)
        with understood, tables.naming_what_is_missing(), self._access.connected_in_utc() as connection:
            yield connection

    def now(self) -> datetime:
        """The time of the database, in UTC: `run_at` is compared with it."""
        with self._access.connector() as connector:
            moment: datetime = connector.scalar(sa.select(self.settings.now))
            return moment

    @property
    def jobs(self) -> StoredJobs:
        """The jobs of the table in any state: list, show and count them; retry or drop dead ones."""
        return StoredJobs(self._access.backend, self.settings.now, self._access.connector)

    def cancel(self, keys: Iterable[Key], reason: str | None = None) -> Sequence[Key]:
        """Make these jobs dead, if they wait or are claimed; return the keys of those.

        `last_error` says `cancelled`, with the reason. `jobs` retries or drops them. A handler that is at such a job
        sees it in `job.cancelled` after its next heartbeat (2 s); a task of `work` is cancelled then. The outcome of
        the job is refused. A job that an open transaction holds (`hold="transaction"`) is not cancelled. Raises
        BadArgument, ColumnMissing or StateMissing if no row can say that its job is dead, and RowsRefused.
        """
        return self.jobs.cancel(keys, reason)

    def purge(
        self, older_than: timedelta | float, *, state: Ended = "done", where: Where = None, dry_run: bool = False
    ) -> int:
        """Delete jobs that have been done, or dead, for so long by the database's clock; return how many.

        `older_than` is a timedelta or seconds. `where` narrows which jobs; the queue's own predicate does not count.
        The jobs are deleted and committed 1,000 at a time; with `dry_run` they are only counted. Done jobs are in the
        table only with `on_done="keep"`. Raises ColumnMissing for a table without `owner_date`, BadPredicate, and
        UnfitTable with a side-car: a row without its entry there would be a new job.
        """
        age = older_than if isinstance(older_than, timedelta) else timedelta(seconds=older_than)
        if age < timedelta(0):
            raise ValueError(f"nothing is {older_than} old yet: give an age of 0 or more")
        return self.jobs.purge(min(age, LONGEST_AGE), state=state, where=where, dry_run=dry_run)

    @property
    def done_jobs(self) -> str:
        """What happens to done jobs, as a sentence. Raises DoneUndecided."""
        roles, on_done = self._access.backend.source, self._access.on_done
        if callable(on_done):
            return f"A function decides what happens to done jobs of table {roles.name!r}."
        if on_done == LEAVE:
            return f"Done jobs of table {roles.name!r} are left as the handler leaves them."
        if on_done != "keep":
            return f"Done jobs are deleted from table {roles.name!r}."
        if roles.status is None:  # a table that has a side-car has no status
            return f"Done jobs of table {roles.name!r} are kept; their keys are marked as done in the side-car."
        return f"Done jobs of table {roles.name!r} are kept with {roles.status.name} {roles.state.values[DONE]!r}."

    @property
    def payload(self) -> tuple[str, ...]:
        """The names of the user's own columns."""
        return tuple(column.name for column in self._access.backend.source.payload)

    def check(self) -> None:
        """Check server, table, columns, predicate, order and the right to read them now. Claims nothing.

        The server plans each statement of a claim and a settle. Raises ServerUnfit if it does not have what one needs,
        ReadOnly if it takes no writes, and ClaimsDiffer if owners record their claims in another way.
        """
        from claimjobs.explain.server import require_capabilities  # noqa: PLC0415 - a claim needs none of it

        self._access.check_connections()
        subject, backend = self._consumer.subject(), self._access.backend
        with connected(self.engine) as connection:
            require_writes(connection, backend)
            subject.settler.record.check_primaries(connection)
            check_claims(connection, backend)
        require_capabilities(self.engine, subject)

    def explain(self, *, analyze: bool = False, seconds: float | None = None) -> Explanation:
        """What the statements of this queue do on this database, and what its settings mean for them.

        Each finding has a verdict; `Explanation.verdict` is the worst. The statements are planned, not run. With
        `analyze` a claim of 100 jobs is made in a transaction that is rolled back, to count its row locks. A table or a
        predicate with which no claim can work is a finding, not an error. `seconds`: what cannot be checked within that
        time is left out. Raises ConnectionFailed.
        """
        from claimjobs.explain import explainer  # noqa: PLC0415 - a consumer needs none of it

        try:
            name = self._access.backend.source.name  # who cannot connect gets an error
        except UnfitTable as error:
            return explainer.cannot_work(str(getattr(self.settings.table, "__tablename__", self.settings.table)), error)
        try:
            subject = self._consumer.subject()
        except tuple(explainer.FATAL) as error:
            return explainer.cannot_work(name, error)
        return explainer.explain(self.engine, subject, analyze=analyze, seconds=seconds)

    # --- reclaiming ------------------------------------------------------------------------------------

    def reclaim_owner(self, owner_id: int, cause: str | None = None, *, force: bool = False) -> int:
        """Reclaim the jobs of an owner whose process has ended; return how many. `cause`: how it ended, for
        `last_error`.

        Call it only after the process has ended, as a supervisor does. If the owner lives, its jobs run a second time,
        and its outcomes for them are refused. With `hold="transaction"` this does nothing: the server rolls back.
        Raises ClaimsDiffer, unless by `force`.

        `force`: also if it claimed before the table was renamed, or a column or a side-car that its claims need. What
        this queue finds of it is released, and its row is deleted. Its claim rows are deleted then, and not counted.
        """
        return self._by_reaper(lambda reaper: reaper.reclaim_by_id(owner_id, cause, force=force), force=force)

    def release_owner(self, owner_id: int) -> int:
        """Release the jobs of an owner whose process you are about to kill; return how many. It costs no attempt.

        The owner is declared dead, so that it settles and claims nothing any more, although its process still runs.
        With `hold="transaction"` this does nothing: the server rolls back when the process has ended.
        """
        return self._by_reaper(lambda reaper: reaper.release_by_id(owner_id))

    def reclaim(self) -> int:
        """Reclaim the jobs of all dead owners of this table; return how many.

        Running consumers do this by themselves. Call it when none is running.
        """
        return self._by_reaper(lambda reaper: reaper.reclaim_dead())

    def _by_reaper(self, work: Callable[[Reaper], int], *, force: bool = False) -> int:
        """What this returns, where claims have owners. With `hold="transaction"` there is nothing to do."""
        if not self.settings.by_lease:
            return 0
        with self._access.reaper(force=force) as reaper:
            return work(reaper)

    def reclaim_ownerless(self) -> int:
        """Release the jobs that are claimed without an owner's id (`stats().ownerless`); return how many.

        claimjobs writes no such row: another program or a person did. Make sure that nobody works on these jobs.
        """
        with self._access.reaper() as reaper:
            return reaper.reclaim_ownerless()
