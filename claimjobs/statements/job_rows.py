"""JobRows: where the jobs of a queue and their states are read, in one table or beside a side-car."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import sqlalchemy as sa

from claimjobs.errors import UnfitTable
from claimjobs.statements import stored_jobs
from claimjobs.statements.claim_rows import by_owner, how_many_jobs
from claimjobs.statements.find import LIMIT, group_size
from claimjobs.statements.side_car import SideCarJoin, note, unclaimed, waiting
from claimjobs.statements.stored_jobs import Predicates
from claimjobs.table.backend import Backend
from claimjobs.table.columns import CLAIMED, DEAD, DONE, ENDED, STATES, UNCLAIMED


class JobRows:
    """The rows of the user's table have the state of their jobs."""

    are_apart = False
    """Whether the state of a job is in a row of another table."""

    def __init__(self, backend: Backend, now: sa.ColumnElement[Any]) -> None:
        self._roles, self._dialect, self._now = backend.roles, backend.dialect, now
        self._claim_rows = backend.source.claim_rows

    def meeting(self, where: Predicates) -> Predicates:
        """The predicates of a row with a state, if the job's row in the user's table meets all these."""
        return where

    def due(self, due: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        """The predicate of a row of the user's table that is `due`, and whose job does not wait by the side-car."""
        return due

    def due_at(self, now: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """The instant when the unclaimed job of a row of the user's table is due; `now` if nothing says it."""
        run_at = self._roles.run_at
        return now if run_at is None else sa.func.coalesce(run_at, now)

    @property
    def group_size(self) -> sa.ColumnElement[int]:
        """The size of the group of suspects of the job of a row of the user's table: see `find.group_size`."""
        return group_size(self._roles)

    @property
    def failed(self) -> sa.ColumnElement[bool]:
        """The predicate of a row of the user's table whose job is unclaimed and has failed before."""
        return self.in_state(UNCLAIMED, self._roles.has_failed)

    def unclaimed_with_state(self, where: Predicates) -> Predicates:
        """The predicates of a row with a state whose job is unclaimed, and meets all these."""
        return (self._roles.state.job_is(UNCLAIMED), *where)

    def order(self, order: Sequence[sa.ColumnElement[Any]]) -> Sequence[sa.ColumnElement[Any]]:
        """The order in which rows with a state are read, if this one is the queue's."""
        return order

    def in_state(self, state: str, *where: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        """The predicate of a row of the user's table whose job is in this state, and meets all others."""
        if state not in self._roles.state.can:
            return sa.false()
        is_claimed_here = state == CLAIMED and self._claim_rows is not None  # a done job may be in a claim row
        says = self._roles.state.row_says(UNCLAIMED) if is_claimed_here else sa.true()
        return sa.and_(self._roles.state.job_is(state), says, *where)

    @property
    def state(self) -> sa.ColumnElement[str | None]:
        """The state of the job of a row of the user's table; NULL: its columns say no state."""
        return sa.case(*((self.in_state(state), sa.literal(state, sa.String)) for state in STATES))

    def counts(self, of_queue: Predicates) -> Sequence[sa.Select[Any]]:
        """Statements that count the jobs of each state, as `stored_jobs.by_state` does."""
        if (rows := self._claim_rows) is None:
            return (stored_jobs.by_state(self._roles, self._now, of_queue),)
        return stored_jobs.by_state(self._roles, self._now, of_queue, self._roles.in_no_claim_row), how_many_jobs(rows)

    def up_to(self, state: str, order: Sequence[sa.ColumnElement[Any]]) -> sa.Select[Any]:
        """How many jobs are in this state, counted up to the parameter `claimjobs_limit`. `order`: the queue's, so that
        the claim index finds these rows.
        """
        roles = self._roles
        if state == CLAIMED and self._claim_rows is not None:
            return how_many_jobs(self._claim_rows)
        if state not in roles.state.can:
            return sa.select(sa.literal(0))
        rows = sa.select(sa.literal(1).label("one")).select_from(roles.table)
        found = rows.where(roles.state.job_is(state), *self.meeting(())).order_by(*self.order(order)).limit(LIMIT)
        return sa.select(sa.func.count()).select_from(found.subquery("claimjobs_first"))

    @property
    def by_owner(self) -> sa.Select[Any]:
        """One row for each owner that holds jobs: `owner_id`, `jobs`."""
        if self._claim_rows is not None:
            return by_owner(self._claim_rows)
        owner, jobs = self._roles.need("owner_id", "counting what owners hold"), sa.func.count().label("jobs")
        columns: tuple[Any, ...] = (owner.label("owner_id"), jobs)
        return sa.select(*columns).where(self._roles.state.job_is(CLAIMED)).group_by(owner)

    def note(self) -> sa.Executable | None:
        """The statement that makes rows for the outcomes of jobs; None: each job has one."""
        return None

    def drop(self) -> sa.Delete | sa.Update:
        """The statement by which dead jobs are dropped."""
        return stored_jobs.delete(self._roles, self._dialect, (self._roles.state.job_is(DEAD),))

    def purge(self, old: Predicates) -> sa.Delete:
        """The statement by which old jobs are deleted. Raises UnfitTable with a side-car."""
        return stored_jobs.delete(self._roles, self._dialect, old)


class JobRowsBesideSideCar(JobRows):
    """The side-car has the states. Most unclaimed jobs have no row in it, and some of its rows have no job."""

    are_apart = True

    def __init__(self, backend: Backend, now: sa.ColumnElement[Any]) -> None:
        super().__init__(backend, now)
        self._pair = SideCarJoin(backend.source, backend.roles, backend.dialect, now)

    def meeting(self, where: Predicates) -> Predicates:
        return (sa.exists().where(self._pair.same_key, *where).correlate(self._roles.table),)

    def due(self, due: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        return sa.and_(due, self._pair.group_size >= 0)

    def in_state(self, state: str, *where: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        if state == UNCLAIMED:
            return sa.and_(unclaimed(self._pair), *where)
        if state == CLAIMED:
            return sa.and_(~self._pair.source.in_no_claim_row, *(~self._says(ended) for ended in ENDED), *where)
        return self._says(state, *where)

    def due_at(self, now: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """A job that failed waits by the side-car, any other one by its row."""
        run_at = self._roles.need("run_at", "waiting for a retry")
        mine = self._pair.source.run_at
        return sa.func.coalesce(self._pair.in_entry(run_at), now if mine is None else mine, now)

    @property
    def group_size(self) -> sa.ColumnElement[int]:
        return self._pair.group_size

    @property
    def failed(self) -> sa.ColumnElement[bool]:
        said = sa.exists().where(self._pair.same_key, self._roles.state.row_says(UNCLAIMED), self._roles.has_failed)
        return sa.and_(said.correlate(self._pair.source.table), self._pair.source.in_no_claim_row)

    def unclaimed_with_state(self, where: Predicates) -> Predicates:
        """Only jobs that failed, or are suspects, have such a row."""
        return (self._roles.state.row_says(UNCLAIMED), *self.meeting((self._pair.source.in_no_claim_row, *where)))

    def _says(self, state: str, *where: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        meeting = self.meeting(where) if where else ()
        said = sa.exists().where(self._pair.same_key, self._roles.state.row_says(state), *meeting)
        return said.correlate(self._pair.source.table)

    def order(self, order: Sequence[sa.ColumnElement[Any]]) -> Sequence[sa.ColumnElement[Any]]:
        del order  # it is about the user's table
        return self._roles.key

    def counts(self, of_queue: Predicates) -> Sequence[sa.Select[Any]]:
        is_other = ~self._roles.state.row_says(UNCLAIMED)
        others = stored_jobs.by_state(self._roles, self._now, (), is_other, *self.meeting(()))
        return others, waiting(self._pair, of_queue), *map(how_many_jobs, filter(None, (self._claim_rows,)))

    def note(self) -> sa.Executable:
        return note(self._pair)

    def drop(self) -> sa.Update:
        """The side-car calls their jobs done: without an entry there a row of the user's table would be a new job."""
        roles = self._roles
        values = {**roles.state.becomes(DONE), roles.need("owner_date", "dropping a dead job"): self._now}
        update = sa.update(roles.table).values(values).where(roles.state.job_is(DEAD))
        return self._dialect.restrict_to_keys(update, roles.key, roles.key_index)

    def purge(self, old: Predicates) -> NoReturn:
        source = self._pair.source.name
        raise UnfitTable(
            f"table {self._roles.name!r} is not purged, because without its entry there a row of {source!r} would be a "
            f"new job: delete the row of {source!r} first, and then its entry in {self._roles.name!r}"
        )


def job_rows(backend: Backend, now: sa.ColumnElement[Any]) -> JobRows:
    """Where the jobs of this queue are read."""
    return (JobRowsBesideSideCar if backend.has_side_car else JobRows)(backend, now)
