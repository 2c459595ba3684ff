"""What the ways to claim share: statements that begin at a place in the order, candidates, and groups of suspects.

The SQL of the search is in `claimjobs.statements.find`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

import sqlalchemy as sa

from claimjobs.claim.row_reader import RowReader
from claimjobs.claim.strategy import After, ClaimRequest
from claimjobs.dialects import Key
from claimjobs.errors import KeyUnfit, Unreadable, key_unequal
from claimjobs.job import Job, key_of
from claimjobs.statements.find import KeysetOrder, Selection, columns_of, find, how_many, keyset_order_of
from claimjobs.table.backend import Backend
from claimjobs.table.roles import ColumnRoles

ROWS_CHECKED: Final = 10
"""How many rows `check_that_keys_find` reads."""

Statement = TypeVar("Statement")


class CursorStatement(ABC, Generic[Statement]):
    """A statement in two forms: from the head of a selection, and after a place in its order."""

    def __init__(self, backend: Backend, selection: Selection) -> None:
        self._backend, self._roles, self._selection = backend, backend.roles, selection
        self.keyset_order = keyset_order_of(selection)
        """The order, if a claim can begin anywhere in it."""
        self._built: dict[bool, Statement] = {}

    @abstractmethod
    def build(self, selection: Selection) -> Statement:
        """The statement over this selection."""

    def form_for(self, request: ClaimRequest) -> Statement:
        """The form for this request, which is built when it is needed first."""
        from_head = request.after is None or self.keyset_order is None
        if from_head not in self._built:
            after = None if from_head else self.keyset_order
            selection = self._selection if after is None else after.after(self._selection, self._backend.dialect)
            self._built[from_head] = self.build(selection)
        return self._built[from_head]


class CandidateFinder(CursorStatement[sa.Select[Any]]):
    """Phase 1 as a statement of its own: it reads the keys of candidates, and locks nothing."""

    def __init__(self, backend: Backend, selection: Selection) -> None:
        super().__init__(backend, selection)
        self._counts: dict[sa.Select[Any], sa.Select[Any]] = {}

    def build(self, selection: Selection) -> sa.Select[Any]:
        return find(self._roles, selection)

    def rows(self, connection: sa.Connection, request: ClaimRequest) -> Sequence[Any]:
        """The keys of the candidates in order, each with the size of its group of suspects."""
        return connection.execute(self.form_for(request), request.find_parameters).all()

    def end(self, connection: sa.Connection, request: ClaimRequest) -> After:
        """The place of the last candidate that a request may read. None: there are fewer, or the order has no places.

        Sent only if others have locked all candidates: the search goes on after this place.
        """
        order, source = self.keyset_order, self._backend.source
        if order is None:
            return None
        given = {**request.find_parameters, "claimjobs_skipped": request.limit - 1}
        candidates, skipped = self.form_for(request), sa.bindparam("claimjobs_skipped", type_=sa.Integer)
        last = sa.select(candidates.subquery("candidate")).offset(skipped).limit(sa.literal_column("1"))
        row = connection.execute(last, given).first()
        if row is None:
            return None
        places = self._backend.dialect.restrict_to_keys(sa.select(*order.columns), source.key, source.key_index)
        found = connection.execute(places, {"claimjobs_keys": [key_of(row[:-1])]}).mappings().first()
        return None if found is None else order.place(dict(found))

    def count(self, connection: sa.Connection, request: ClaimRequest) -> int:
        """How many candidates there are. Sent after a claim that got fewer jobs than it wanted: it met all of them."""
        search = self.form_for(request)
        if search not in self._counts:
            self._counts[search] = how_many(search)
        return int(connection.execute(self._counts[search], request.find_parameters).scalar_one())


def check_keys(roles: ColumnRoles, jobs: Sequence[Job]) -> None:
    """Raises KeyUnfit if two jobs have one key. Only a key that is no primary key can name two rows."""
    if roles.key_index is not None and len({job.key for job in jobs}) < len(jobs):
        raise key_not_unique(roles.name)


def key_not_unique(table: str) -> KeyUnfit:
    """The error for two rows of a table that have the same key."""
    return KeyUnfit(
        f"two rows of table {table!r} have the same key, so neither can be named: choose columns that are unique "
        "together as Columns(key=...)"
    )


def check_that_keys_find(connection: sa.Connection, backend: Backend, selection: Selection) -> None:
    """Read the keys of some rows that are due, then the rows by these keys. It locks nothing.

    Raises KeyUnfit for rows that are there before and after, and are not found by their own key.
    """
    source = backend.source
    first = sa.select(*source.key).where(selection.candidate).order_by(*selection.order).limit(ROWS_CHECKED)
    keys = [key_of(row) for row in connection.execute(first)]
    if not keys:
        return
    by_key = columns_of(source, backend.dialect, source.key)
    found = {key_of(row) for row in connection.execute(by_key, {"claimjobs_keys": keys})}
    if missing := [key for key in keys if key not in found]:
        missing = [key for key in map(key_of, connection.execute(first)) if key in missing]
    if missing:
        raise key_unequal(source.name, missing)


def place_of(order: KeysetOrder | None, job: Job) -> After:
    """The place of a job in the order. None: the order has no places, or Python cannot hold one of the job's values."""
    try:
        return None if order is None else order.place(job)
    except Unreadable:
        return None


def first_group(rows: Sequence[Sequence[Any]], size: int) -> tuple[list[Key], int]:
    """The keys of the candidates whose group is as large as that of the first, and how many of them may be claimed."""
    group_size = rows[0][-1]
    return [key_of(row[:-1]) for row in rows if row[-1] == group_size], at_most(size, group_size)


def first_locked_group(reader: RowReader, locked: Sequence[Any], size: int) -> tuple[Sequence[Any], bool]:
    """Those of some locked rows that a claim of `size` may have together; whether they are suspects.

    Only locked rows tell that: after a search, and before the lock, another consumer may have claimed a candidate, and
    its batch may have failed as a whole. The rows that are left out stay locked until the transaction ends.
    """
    sizes = reader.group_sizes(locked)
    if not any(sizes):
        return locked, False
    group = [row for row, other in zip(locked, sizes, strict=True) if other == sizes[0]]
    return group[: at_most(size, sizes[0])], bool(sizes[0])


def at_most(size: int, group_size: int) -> int:
    """How many jobs of a group of suspects may be claimed at once. A `group_size` of 0: they are no suspects."""
    return min(size, max(1, group_size // 2)) if group_size else size


def examined_of(candidates: list[Key], jobs: Sequence[Job], size: int) -> int:
    """How many candidates a claim of `size` jobs went through to get these."""
    if len(jobs) < size:
        return len(candidates)
    numbers = {key: number for number, key in enumerate(candidates, 1)}
    return max(numbers[job.key] for job in jobs)
