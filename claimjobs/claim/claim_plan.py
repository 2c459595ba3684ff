"""ClaimPlans: which rows of a queue are claimed, and how. A ClaimPlan is built once for each predicate."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.claim.key_locking import KeyRowLocks
from claimjobs.claim.key_search import KeyCursor, KeySearch
from claimjobs.claim.locking import JobLocks, Locking, RecheckedLocks, RowLocks, SideCarLocks, TwoPhases
from claimjobs.claim.one_statement import BatchStatement, OneStatement, can_be_committed_unread
from claimjobs.claim.record import ClaimRecord
from claimjobs.claim.strategy import ClaimStrategy
from claimjobs.database.connect import connected
from claimjobs.database.error_translation import predicate_errors
from claimjobs.dialects import Key
from claimjobs.dialects.types import database_now, statement_now
from claimjobs.errors import BadPredicate, KeyUnfit, UnfitTable
from claimjobs.options import PerKey
from claimjobs.statements.find import Selection, all_but, keyset_order_of
from claimjobs.statements.job_rows import job_rows
from claimjobs.statements.key_rows import KeyStatements
from claimjobs.statements.owners import any_due
from claimjobs.table.backend import Backend
from claimjobs.table.claim_index import missing_index, sweep_order
from claimjobs.table.predicates import OrderBy, Predicate, Where, is_any_order, order_of, predicates_of, read_other_rows
from claimjobs.table.reflection import columns_in_database

KEYED_SLEEP: Final = 60.0
"""Seconds that an idle loop sleeps at most with `per_key`: its checks read the first jobs only, a claim reads more."""

MOST_KEY_CURSORS: Final = 16
"""The predicates whose key cursors a Queue keeps: each of its loops may have one, and they claim in turn."""


@dataclass
class ClaimPlan:
    """How jobs that match a predicate are claimed, and how to check for work."""

    where: Where
    selection: Selection
    """The rows that are due and match, in order."""
    strategy: ClaimStrategy
    backend: Backend
    changes: bool
    """Whether a callable gives the predicate, so that the next claim needs another plan."""
    divisible: bool = True
    """Whether fewer rows are claimed after an error that one of them may cause. If not, all are tried for a lease."""
    any_key_due: sa.ColumnElement[Any] | None = None
    """A scalar that is NULL if no key of `per_key` is due; None: there is no `per_key`."""
    follows_commit: bool = False
    """Whether a settle must be committed before the next claim: that counts what is claimed of the same keys, or may
    claim a job that the settle has renewed. If the answer to both is lost, the settle is written again: then to a job
    of the new claim.
    """
    batch_claim: BatchStatement | None = None
    """What claims per batch in one statement, from batch to batch; None: it cannot be used."""

    @cached_property
    def has_work(self) -> sa.ColumnElement[Any]:
        """A scalar that is NULL when there is nothing to claim."""
        return any_due(self.backend.source, self.selection) if self.any_key_due is None else self.any_key_due


class ClaimPlans:
    """Makes the plan of a claim from the settings of a queue, and keeps the last one."""

    def __init__(
        self,
        engine: sa.Engine,
        backend: Backend,
        now: sa.ColumnElement[Any],
        *,
        where: Where,
        order_by: OrderBy,
        record: ClaimRecord,
        locking: Locking | None,
        per_key: PerKey | None,
        claimable: sa.ColumnElement[bool],
    ) -> None:
        """`record`: where claims are recorded. `claimable`: the predicate of rows that this Queue may still claim.

        The others are those of a Queue.
        """
        self.unclaimable: dict[Key, None] = {}
        """The keys of rows that no claim can take: see `row_isolation`."""
        self._engine, self._backend, self._now = engine, backend, now
        self._where, self._order_by = where, order_by
        self._record, self._locking, self._per_key = record, locking, per_key
        self._claimable = claimable
        self._last: ClaimPlan | None = None
        self._search, self._key_cursor = KeySearch(), KeyCursor()
        self._key_cursor_of = lru_cache(MOST_KEY_CURSORS)(lambda _where: KeyCursor())
        self._has_index = False
        """Whether the index for `per_key` was seen."""

    def plan(self, where: Where) -> ClaimPlan:
        """The plan for a predicate. It is built once, but for each claim if a callable gives the predicate."""
        last = self._last
        if last is None or last.where is not where:
            self._key_cursor = self._key_cursor_of(where) if isinstance(where, Hashable) else KeyCursor()
        if last is None or last.changes or last.where is not where:
            selection = self.selection(where)
            selection = replace(selection, due=job_rows(self._backend, self._now).due(selection.due))
            strategy = self.strategy(selection, key_cursor=self._key_cursor)
            keys = self._key_rows(selection)
            is_limited = self._per_key is not None and self._per_key.limit is not None
            self._last = last = ClaimPlan(
                where,
                selection,
                strategy,
                self._backend,
                changes=callable(self._where) or callable(where),
                any_key_due=None if keys is None else keys.any_due,
                follows_commit=is_limited or self._backend.roles.run_again is not None,
                batch_claim=self._batch_claim(selection),
            )
        return last

    @property
    def key_statements(self) -> KeyStatements | None:
        """The statements about key rows, of the queue's own predicate; None: there is no `per_key`."""
        return self._key_rows(self.selection(None))

    def _key_rows(self, selection: Selection) -> KeyStatements | None:
        """The statements about key rows; None: there is no `per_key`."""
        backend, per_key, now = self._backend, self._per_key, self._now
        if per_key is None or backend.key_rows is None:
            return None
        rows = job_rows(backend, now)
        held = sa.and_(rows.failed, *selection.predicates) if per_key.waits else None
        at = statement_now() if isinstance(now, database_now) else now
        by: dict[str, Any] = {"selection": selection, "job_rows": rows, "held": held, "weights": per_key.weights}
        return KeyStatements(backend.key_rows, backend.source, backend.dialect, now=at, **by)

    @property
    def longest_sleep(self) -> float:
        """Seconds after which an idle loop claims, whether it was told of work or not."""
        return math.inf if self._per_key is None else KEYED_SLEEP

    @property
    def tried(self) -> Sequence[Key]:
        """The candidates that the last claim has tried to lock, with `per_key`: they are not the first of the order."""
        return self._key_cursor.tried

    def strategy(
        self, selection: Selection, *, key_cursor: KeyCursor | None = None, lock_before_mark: bool = False
    ) -> ClaimStrategy:
        """How jobs are claimed: by what the user chose, and by what the table and the database can do.

        `key_cursor`: with `per_key`, that of all claims with this predicate; None: of one claim. `lock_before_mark`:
        a claim by lease locks rows in a statement before the one that marks them. So it finds out if the database
        swallows the mark. A statement that checks and marks at once cannot distinguish that from rows that others have
        claimed.
        """
        backend, record, per_key = self._backend, self._record, self._per_key
        marks_at_once = record.names_owner and backend.dialect.claims_in_one_statement and not lock_before_mark
        if marks_at_once and self._may_be_one(selection):
            return OneStatement(backend, selection, record, self._now)
        # Rows of the user's table are locked, also beside a side-car.
        locked = replace(backend, roles=backend.source) if backend.has_side_car else backend
        known, key_rows = list(record.written), self._key_rows(selection)
        locks: JobLocks
        if key_rows is not None and per_key is not None:
            self._need_index(selection)
            cursor = key_cursor or self._key_cursor.again()
            locks = KeyRowLocks(
                locked, selection, known, per_key=per_key, statements=key_rows, search=self._search, cursor=cursor
            )
        else:
            locks = (self._locking or RowLocks()).locks(locked, selection, known=known)
        if backend.has_side_car:
            locks = SideCarLocks(backend, self._now, locks)
        if selection.reads_other_rows:
            locks = RecheckedLocks(backend, selection, locks)
        return TwoPhases(locks, record)

    def _may_be_one(self, selection: Selection) -> bool:
        """Whether one statement may find and lock jobs."""
        has_own_way = self._locking is not None or self._per_key is not None or self._backend.has_side_car
        return not (has_own_way or selection.reads_other_rows)

    def _batch_claim(self, selection: Selection) -> BatchStatement | None:
        backend, order = self._backend, keyset_order_of(selection)
        claim_rows, is_usual = backend.roles.claim_rows, self._may_be_one(selection) and backend.dialect.pipelines
        if claim_rows is None or order is None or not (is_usual and can_be_committed_unread(backend.roles)):
            return None
        return BatchStatement(backend, selection, claim_rows, order)

    def _need_index(self, selection: Selection) -> None:
        """Raises KeyUnfit, with the statement, if no index finds the jobs of a key in their order."""
        backend = self._backend
        if backend.key_rows is None or self._has_index:
            return
        with connected(self._engine) as connection:
            lack = missing_index(connection, backend.source, (*backend.key_rows.of_jobs, *selection.order))
        if lack is not None:
            raise KeyUnfit(
                f"table {backend.source.name!r} has no index that finds the jobs of one key of per_key in their order: "
                f"{lack.ddl or lack.effect}"
            )
        self._has_index = True

    # --- which rows ---------------------------------------------------------------------------------------

    def selection(self, where: Where) -> Selection:
        """The rows that are due and match both predicates, in order."""
        # With a predicate the database may have a better index than that of this order.
        source, dialect, predicates = self._backend.source, self._backend.dialect, self.predicates(where)
        in_sweeps = bool(self._sweep_order) and self._where is None and where is None
        order = self._sweep_order if in_sweeps else order_of(self._order_by, source, dialect.lexis)
        # A row whose key cannot be read would stop each claim that finds it, and all rows beside it.
        due = sa.and_(source.due(self._now), *dialect.readable(source.key), *predicates)
        return Selection(
            due,
            order,
            state=source.state,
            in_sweeps=in_sweeps,
            predicates=predicates,
            reads_other_rows=read_other_rows(predicates, self._engine.dialect, dialect.lexis),
        )

    @property
    def lasting(self) -> Sequence[Predicate]:
        """The queue's predicate, over columns of the user's table, if each claim has the same: a function may select
        other rows each time, so all rows count.
        """
        where, backend = self._where, self._backend
        return () if callable(where) else predicates_of(where, backend.source.table, backend.dialect.lexis)

    def predicates(self, where: Where) -> tuple[Predicate, ...]:
        """Both predicates, and that of the rows that this Queue may still claim, over columns of the user's table."""
        source, dialect = self._backend.source, self._backend.dialect
        both = (predicates_of(one, source.table, dialect.lexis) for one in (self._where, where))
        claimable = self._claimable
        if self.unclaimable:
            claimable = sa.and_(claimable, all_but(dialect, source, "claimjobs_unclaimable", self.unclaimable))
        return (*chain(*both), claimable)

    def trial(self, where: Where, *, ordered: bool = False) -> None:
        """Have the database read the predicate, and with `ordered` the order. Raises sqlalchemy.exc.DBAPIError."""
        selection = self.selection(where)
        order = selection.order if ordered else ()
        with connected(self._engine) as connection:
            connection.execute(sa.select(*self._backend.source.key).where(selection.due).order_by(*order).limit(0))

    @contextmanager
    def understood(self, where: Where) -> Iterator[None]:
        """Raises BadPredicate where the database does not understand one of them; UnfitTable for a column that the
        table does not have any more. Without a predicate and an order it raises the error of the database.
        """
        source, dialect = self._backend.source, self._backend.dialect
        try:
            with predicate_errors(dialect, lambda: self._reads(where) and not self._reads(where, ordered=True)):
                yield
        except BadPredicate as bad:
            with connected(self._engine) as connection:
                there = columns_in_database(connection, source.table)
            if missing := [name for name in source.columns if name not in there]:
                raise UnfitTable(
                    f"table {source.name!r} has no column {missing[0]!r} any more, which was there when this Queue "
                    "was made: make a new Queue, which reads the table anew (a process that is replaced does that)"
                ) from bad
            has_order = self._order_by is not None and not is_any_order(self._order_by)
            if self._where is None and where is None and not has_order and bad.__cause__ is not None:
                raise bad.__cause__ from None
            raise

    def _reads(self, where: Where, *, ordered: bool = False) -> bool:
        with suppress(sa.exc.DBAPIError):
            self.trial(where, ordered=ordered)
            return True
        return False

    @cached_property
    def _sweep_order(self) -> Sequence[sa.Column[Any]]:
        """The order of sweeps, if any order will do and the table has an index for it."""
        if not is_any_order(self._order_by):
            return ()
        with connected(self._engine) as connection:
            return sweep_order(connection, self._backend.source)

    def has_work(self, where: Where) -> sa.ColumnElement[Any] | None:
        """A scalar that is NULL when no job is due. None if a callable gives the predicate."""
        return None if callable(self._where) or callable(where) else self.plan(where).has_work

    def leave(self, key: Key) -> None:
        """Claim this row no more: no claim can take it, or nobody wants it to be claimed."""
        self.unclaimable[key] = None
        self._last = None  # the first one changes the predicate
