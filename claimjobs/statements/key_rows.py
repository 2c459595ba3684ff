"""Key rows: lock the next ones, find the jobs of their keys, and write when these keys are next.

The parameter `per_keys` is a list of keys of `per_key`, in the form that `dialect.among` takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.dialects.types import Instant
from claimjobs.errors import BadArgument
from claimjobs.job import values_of
from claimjobs.statements.find import SUSPECT, Selection
from claimjobs.statements.job_rows import JobRows
from claimjobs.table.backend import KeyRows
from claimjobs.table.columns import CLAIMED, UNCLAIMED
from claimjobs.table.roles import ColumnRoles

COUNT: Final = sa.bindparam("claimjobs_rows_wanted", type_=sa.Integer)
"""How many key rows are locked."""
EACH: Final = sa.bindparam("claimjobs_each", type_=sa.Integer)
"""How many jobs of a key are read."""
AT: Final = "claimjobs_next_at"
NOW: Final = "claimjobs_now"
HELD: Final = "claimjobs_held_back"
DUE: Final = "claimjobs_is_ready"
"""1 if the job is due; 0 for a failed job that is not, for which the later ones of its key wait."""
FIRST: Final = "claimjobs_first"
WEIGHT: Final = "claimjobs_weight"
WANTED: Final = "claimjobs_is_wanted"
SOME_JOBS: Final = 1_000
"""Jobs among which the check of a sleeping consumer searches for a key without a key row."""
PART: Final = "claimjobs_part_{}"
"""The parameters for one key."""


class KeyPage(NamedTuple):
    """The statements for a page of keys, in the order of keys."""

    keys: sa.Select[Any]
    """The keys, each with a 1 if it has no key row, or is said to be next later than one of its jobs."""
    insert: sa.Executable
    """Insert a key row for each key that wants one, or say that it is next now. It is one statement, because each key
    waits for another claim that inserts it, too."""


@dataclass(eq=False)
class KeyStatements:
    """The statements of one queue."""

    key_rows: KeyRows
    source: ColumnRoles
    dialect: Dialect
    _: KW_ONLY
    selection: Selection
    job_rows: JobRows
    held: sa.ColumnElement[bool] | None
    """The predicate of a failed job for which later ones wait; None: they do not."""
    weights: Mapping[Any, float]
    """The weights of `per_key`."""
    now: sa.ColumnElement[Any]

    def __post_init__(self) -> None:
        self.key, self._table = self.key_rows.key, self.key_rows.table
        self._one = [sa.bindparam(PART.format(i), type_=column.type) for i, column in enumerate(self.key)]
        """The parameters for one key: see `parts_of`."""
        self._due = sa.literal(1) if self.held is None else sa.case((self.selection.due, 1), else_=0)

    # --- key rows ----------------------------------------------------------------------------------------

    def next(self, *, after: bool) -> sa.Select[Any]:
        """Lock the next key rows that nobody has locked, in their order: key, `next_at`, `rate_at`, the time and, if
        there are weights, that of the key.

        `after`: after the key row of the parameters `claimjobs_next_at` and `claimjobs_part_0` ...
        """
        table = self._table
        columns = [*self.key, table.c.next_at, table.c.rate_at, sa.type_coerce(self.now, Instant).label(NOW)]
        if self.weights:  # the database compares the keys: it knows which spellings are the same
            given = []
            for key, weight in self.weights.items():
                same = (column == _written(part, column) for part, column in zip(values_of(key), self.key, strict=True))
                given.append((sa.and_(*same), sa.literal(weight, sa.Double)))
            columns.append(sa.case(*given, else_=sa.literal(1.0, sa.Double)).label(WEIGHT))
        order = (table.c.next_at, *self.key)
        rows = sa.select(*columns).where(table.c.next_at <= self.now).order_by(*order).limit(COUNT)
        if after:
            rows = rows.where(self.dialect.after_values(order, [sa.bindparam(AT, type_=Instant()), *self._one]))
        return rows.with_for_update(skip_locked=True)

    def first_due(self, limit: int, among: int) -> sa.Select[Any]:
        """Those with a job among the `among` key rows that have been due for the longest time: key, `next_at`, and the
        time.
        """
        rows = self._with_now(self._table.c.next_at <= self.now).limit(among).subquery("claimjobs_due")
        jobs = sa.exists().select_from(self.source.table).where(self.job_rows.in_state(UNCLAIMED))
        has_job = jobs.where(self._jobs_of([rows.c[column.name] for column in self.key])).correlate(rows)
        return sa.select(*rows.c).where(has_job).order_by(rows.c.next_at).limit(limit)

    def first_held_back(self, limit: int, among: int) -> sa.Select[Any]:
        """The next ones that a limit or a rate holds back, among the next `among` that are not due: as `first_due`."""
        later = self._with_now(self._table.c.next_at > self.now, self._table.c.held_back).limit(among)
        rows = later.subquery("claimjobs_later")
        return sa.select(*list(rows.c)[:-1]).where(rows.c.held_back).order_by(rows.c.next_at).limit(limit)

    def _with_now(self, which: sa.ColumnElement[bool], *more: sa.Column[Any]) -> sa.Select[Any]:
        at = self._table.c.next_at
        rows = sa.select(*self.key, at, sa.type_coerce(self.now, Instant).label(NOW), *more)
        return rows.where(which).order_by(at, *self.key)

    @cached_property
    def remaining(self) -> sa.Select[Any]:
        """How many key rows are due, or held back while they have a job for this claim, up to the parameter
        `claimjobs_rows_wanted`.
        """
        table = self._table
        held = sa.and_(table.c.held_back, self._first_is_due(self.key, table))
        rows = sa.select(sa.literal(1)).where(sa.or_(table.c.next_at <= self.now, held)).limit(COUNT)
        return sa.select(sa.func.count()).select_from(rows.subquery("claimjobs_left"))

    @property
    def any_due(self) -> sa.ColumnElement[Any]:
        """A scalar that is NULL if no key is due, and a search finds none among the jobs that are due. It is not NULL
        if more of them may be due than it reads: a claim reads further.
        """
        table, jobs = self._table, self.key_rows.of_jobs
        due = sa.select(sa.literal(1)).where(table.c.next_at <= self.now).order_by(table.c.next_at).limit(1)
        first = sa.select(*jobs).where(self.selection.candidate).order_by(*jobs, *self.selection.order).limit(SOME_JOBS)
        due_jobs = first.select_from(self.source.table).subquery("claimjobs_first_due")
        found = self._missing(sa.select(due_jobs).distinct().subquery("claimjobs_found")).subquery("claimjobs_wanted")
        new = sa.select(sa.literal(1)).select_from(found).where(found.c[WANTED] == 1).limit(1)
        full = sa.select(sa.literal(1)).select_from(due_jobs).limit(1).offset(SOME_JOBS - 1)
        return sa.func.coalesce(*(each.scalar_subquery() for each in (due, new, full)))

    def serve(self, *, moves: bool) -> sa.Update:
        """Note that jobs of the `keys` were claimed. `moves`: put these keys behind all others."""
        values: dict[str, Any] = {"held_back": False, **({"next_at": self.now} if moves else {})}
        return self.dialect.restrict_to_keys(sa.update(self._table).values(values), self.key, None)

    def hold_back(self, seconds: float) -> sa.Update:
        """Hold the `keys` back because of their limit, for so many seconds at most."""
        at = self.dialect.later(self.now, sa.literal(seconds))
        update = sa.update(self._table).values(next_at=at, held_back=True)
        return self.dialect.restrict_to_keys(update, self.key, None)

    @cached_property
    def make_next(self) -> sa.Update:
        """Make those of the `keys` next now that a limit has held back."""
        return self.dialect.restrict_to_keys(make_next(self.key_rows, self.now), self.key, None)

    @cached_property
    def next_at_rate(self) -> sa.Update:
        """Write when the key of the parameters `claimjobs_part_0` ... is next, at a rate."""
        rate_at, held_back = sa.bindparam("claimjobs_rate_at", type_=Instant()), sa.bindparam(HELD, type_=sa.Boolean())
        return self._one_waits.values(rate_at=rate_at, held_back=held_back)

    @cached_property
    def wait(self) -> sa.Update:
        """Let the key of the parameters `claimjobs_part_0` ... wait for its next job, until `claimjobs_next_at`."""
        return self._one_waits.values(held_back=False)

    @property
    def _one_waits(self) -> sa.Update:
        update = sa.update(self._table).values(next_at=sa.bindparam(AT, type_=Instant()))
        return update.where(*(column == value for column, value in zip(self.key, self._one, strict=True)))

    @cached_property
    def end(self) -> sa.Delete:
        """Delete the key rows of the `keys`, of which no job waits."""
        return self.dialect.restrict_to_keys(self.dialect.delete(self._table), self.key, None)

    # --- their jobs --------------------------------------------------------------------------------------

    @cached_property
    def claimed(self) -> sa.Select[Any]:
        """Those of `per_keys` of which jobs are claimed, and how many. It begins when the key rows are locked: whoever
        claimed a job of these keys had locked them, and has committed. The key is as its key row has it: jobs may have
        it in another spelling that the database takes for the same.
        """
        key, key_rows, claimed = self.key, self.key_rows, self.job_rows.in_state(CLAIMED)
        if self.source.claim_rows is not None:  # the search begins at the claim rows, which have few jobs
            both = key_rows.table.join(self.source.table, key_rows.same)
            rows = sa.select(*key, sa.func.count()).select_from(both).where(claimed).group_by(*key)
            return rows.where(self.dialect.among_some(key, "claimjobs_per_keys"))
        # In one step over the jobs: where the planner believes that few jobs are claimed, it reads all of them in each.
        jobs = key_rows.of_jobs
        mine = self.dialect.among_some(jobs, "claimjobs_per_keys")
        counted = sa.select(*jobs, sa.func.count().label("claimjobs_jobs")).where(claimed, mine).group_by(*jobs)
        some = counted.subquery("claimjobs_claimed")
        same = sa.and_(*(some.c[column.name] == column for column in key))
        number = sa.cast(sa.func.sum(some.c.claimjobs_jobs), sa.BigInteger)
        return sa.select(*key, number).join_from(some, key_rows.table, same).group_by(*key)

    def jobs(self) -> sa.Select[Any]:
        """The first `each` jobs of each of `per_keys`: that key, the job's key, when it is due, whether it is due now,
        and the size of its group of suspects. On a database that has no LATERAL (`has_lateral`) only the jobs of the
        one key of the parameters `claimjobs_part_0` ..., without that key.
        """
        if not self.dialect.has_lateral:
            return self._first(self._one).limit(EACH)
        found = self._first(self.key).limit(EACH).correlate(self._table).lateral(FIRST)
        rows = sa.select(*self.key, *found.c).select_from(self._table.join(found, sa.true()))
        return rows.where(self.dialect.among_some(self.key, "claimjobs_per_keys"))

    def _first(self, of_key: Sequence[sa.ColumnElement[Any]]) -> sa.Select[Any]:
        """The first jobs of a key."""
        source, selection = self.source, self.selection
        may_be = selection.candidate if self.held is None else sa.or_(selection.candidate, self.held)
        due_at = sa.type_coerce(self.job_rows.due_at(self.now), Instant).label(AT)
        keys = [column.label(f"claimjobs_k{number}") for number, column in enumerate(source.key)]
        rows = sa.select(*keys, due_at, self._due.label(DUE), self.job_rows.group_size.label(SUSPECT))
        # Not the planner of every database knows that an index over these columns has the jobs of one key in order.
        same = [column for column in (source.status,) if column is not None]
        order = (*same, *self.key_rows.of_jobs, *selection.order)
        return rows.select_from(source.table).where(self._jobs_of(of_key), may_be).order_by(*order)

    @cached_property
    def waiting(self) -> sa.Select[Any]:
        """When the first job of each of `per_keys` is due, whatever `where`: key, then instant; NULL: no job of it
        waits. At the end the time, which is also the instant of a job without one.
        """
        first = sa.select(sa.func.min(self.job_rows.due_at(self.now))).select_from(self.source.table)
        waits = first.where(self._jobs_of(self.key), self.job_rows.in_state(UNCLAIMED))
        mine = sa.type_coerce(waits.correlate(self._table).scalar_subquery(), Instant)
        rows = sa.select(*self.key, mine, sa.type_coerce(self.now, Instant).label(NOW))
        return rows.where(self.dialect.among_some(self.key, "claimjobs_per_keys"))

    @cached_property
    def key_of_jobs(self) -> sa.Select[Any]:
        """For each of the jobs `keys` its key as the key row has it, then the job's own key."""
        rows = sa.select(*self.key, *self.source.key).where(self.key_rows.same)
        return rows.where(self.dialect.among(self.source.key, "claimjobs_keys"))

    # --- keys without a key row --------------------------------------------------------------------------

    @cached_property
    def first_page(self) -> KeyPage:
        """The keys of the next jobs that wait, behind the first `claimjobs_skipped` jobs."""
        return self._page(skipped=sa.bindparam("claimjobs_skipped", type_=sa.Integer))

    @cached_property
    def page_after(self) -> KeyPage:
        """The same, after the key of the parameters `claimjobs_part_0` ... So each page passes a key with many jobs."""
        return self._page(self.dialect.after_values(self.key_rows.of_jobs, self._one))

    def _page(self, *which: sa.ColumnElement[bool], skipped: sa.ColumnElement[int] | None = None) -> KeyPage:
        jobs = self.key_rows.of_jobs
        rows = sa.select(*jobs).select_from(self.source.table).where(self.job_rows.in_state(UNCLAIMED), *which)
        page = rows.offset(skipped).order_by(*jobs).limit(COUNT).subquery("claimjobs_page")
        found = self._missing(sa.select(page).distinct().subquery("claimjobs_found"))
        table, missing = self._table, found.subquery("claimjobs_missing")
        keys = [missing.c[column.name] for column in self.key]
        wanted = sa.select(*keys).where(missing.c[WANTED] == 1).order_by(*keys)
        waits = sa.and_(table.c.next_at > self.now, ~table.c.held_back)
        insert = self.dialect.upsert(table, self.key, wanted, values={table.c.next_at: self.now}, guard=waits)
        return KeyPage(found, insert)

    def _missing(self, keys: sa.FromClause) -> sa.Select[Any]:
        table, names = self._table, [column.name for column in self.key_rows.of_jobs]
        same = sa.and_(*(keys.c[name] == table.c[name] for name in names))
        none = ~sa.exists().where(same).correlate(keys)
        asleep = sa.exists().where(same, table.c.next_at > self.now, ~table.c.held_back).correlate(keys)
        found = [keys.c[name] for name in names]
        wanted = sa.case((none, 1), (sa.and_(asleep, self._first_is_due(found, keys)), 1), else_=0)
        return sa.select(*found, wanted.label(WANTED)).order_by(*found)

    def _first_is_due(self, key: Sequence[sa.ColumnElement[Any]], rows: sa.FromClause) -> sa.ColumnElement[bool]:
        """The predicate that the first job of the key in these rows is due."""
        first = self._first(key).with_only_columns(self._due, maintain_column_froms=True)
        return first.limit(1).correlate(rows).scalar_subquery() == 1

    def _jobs_of(self, key: Sequence[sa.ColumnElement[Any]]) -> sa.ColumnElement[bool]:
        """The predicate of a job of this key, which the index for `per_key` finds."""
        return self.dialect.with_values(self.key_rows.of_jobs, key)


def parts_of(key: Any) -> dict[str, Any]:
    """The parameters for one key."""
    return {PART.format(number): part for number, part in enumerate(values_of(key))}


def _written(value: Any, column: sa.Column[Any]) -> Any:
    """The value of a column that a user has written. Raises BadArgument."""
    type_ = column.type
    kind = UUID if isinstance(type_, sa.Uuid) and type_.as_uuid else int if isinstance(type_, sa.Integer) else None
    try:
        return kind(value) if isinstance(value, str) and kind is not None else value
    except ValueError:
        raise BadArgument(f"per_key weights: {value!r} is no value of column {column.name!r}: correct it") from None


def make_next(key_rows: KeyRows, now: sa.ColumnElement[Any], *, given_back: bool = False) -> sa.Update:
    """Make the keys next now that were held back, because jobs were settled. A claim may hold them back again.
    `given_back`: also keys of which no job was due before.
    """
    table = key_rows.table
    which = sa.or_(table.c.held_back, table.c.next_at > now) if given_back else table.c.held_back
    return sa.update(table).where(which).values(next_at=now, held_back=False)
