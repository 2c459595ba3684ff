"""Candidates, where a claim reads their keys first. OneStatement and FindAndLock choose them within their statement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import sqlalchemy as sa

from claimjobs.claim.row_reader import RowReader
from claimjobs.claim.strategy import After, ClaimRequest, Phase
from claimjobs.dialects import Dialect, Key
from claimjobs.errors import KeyUnfit, Unreadable, key_unequal
from claimjobs.job import Job, key_of
from claimjobs.statements.find import KeysetOrder, Selection, find, how_many, keyset_order_of, last_candidate
from claimjobs.statements.settle import still_there
from claimjobs.table.backend import Backend
from claimjobs.table.roles import ColumnRoles

Statement = TypeVar("Statement")


class CursorStatement(ABC, Generic[Statement]):
    """A statement in two forms: from the head of a selection, and after a place in its order.

    Each form is built when a request needs it first.
    """

    def __init__(self, selection: Selection, dialect: Dialect) -> None:
        self.keyset_order = keyset_order_of(selection)
        """The order, if a claim can begin anywhere in it."""
        self._selection, self._dialect = selection, dialect

    @abstractmethod
    def build(self, selection: Selection) -> Statement:
        """The statement over this selection."""

    def of(self, request: ClaimRequest) -> Statement:
        """The form for this request."""
        return self._from_head if request.after is None else self._after_place

    @cached_property
    def _from_head(self) -> Statement:
        return self.build(self._selection)

    @cached_property
    def _after_place(self) -> Statement:
        order = self.keyset_order
        return self._from_head if order is None else self.build(order.after(self._selection, self._dialect))


class CandidateFinder(CursorStatement[sa.Select[Any]]):
    """Phase 1 as a statement of its own: it reads the keys of candidates, and locks nothing."""

    def __init__(self, backend: Backend, selection: Selection) -> None:
        super().__init__(selection, backend.dialect)
        self._roles = backend.roles
        source, columns = backend.source, () if self.keyset_order is None else self.keyset_order.columns
        self._places = backend.dialect.restrict_to_keys(sa.select(*columns), source.key, source.key_index)

    def build(self, selection: Selection) -> sa.Select[Any]:
        return find(self._roles, selection)

    def rows(self, connection: sa.Connection, request: ClaimRequest) -> Sequence[Any]:
        """The keys of the candidates in order, each with the size of its group of suspects."""
        return connection.execute(self.of(request), request.find_parameters).all()

    def end(self, connection: sa.Connection, request: ClaimRequest) -> After:
        """The place of the last candidate that a request may read. None: there are fewer, or the order has no places.

        Sent only if others have locked all candidates: the search goes on after this place.
        """
        if self.keyset_order is None:
            return None
        given = {**request.find_parameters, "claimjobs_skipped": request.limit - 1}
        row = connection.execute(last_candidate(self.of(request)), given).first()
        keys = {"claimjobs_keys": [] if row is None else [key_of(row[:-1])]}
        found = connection.execute(self._places, keys).mappings().first() if row is not None else None
        return None if found is None else self.keyset_order.place(dict(found))

    def phase(self, request: ClaimRequest) -> Phase:
        """The statement, for `explain`."""
        return Phase("find", self.of(request), request.find_parameters)


class CandidateCount(CursorStatement[sa.Select[Any]]):
    """Counts candidates. Sent after a claim that got fewer jobs than it wanted: that one went through all of them."""

    def __init__(self, backend: Backend, selection: Selection) -> None:
        super().__init__(selection, backend.dialect)
        self._roles = backend.roles

    def build(self, selection: Selection) -> sa.Select[Any]:
        return how_many(self._roles, selection)

    def count(self, connection: sa.Connection, request: ClaimRequest, at_least: int = 0) -> int:
        """How many candidates there are. `at_least`: so many are known; some may have gone since."""
        count: int = connection.execute(self.of(request), request.find_parameters).scalar_one()
        return max(count, at_least)


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


def place_of(order: KeysetOrder | None, job: Job) -> After:
    """The place of a job in the order. None: the order has no places, or Python cannot hold one of the job's values."""
    try:
        return None if order is None else order.place(job)
    except Unreadable:
        return None


def first_group(rows: Sequence[Sequence[Any]], size: int) -> tuple[list[Key], int]:
    """The keys of the candidates whose group is as large as that of the first, and how many of them may be claimed."""
    group_size = rows[0][-1]
    keys = [key_of(row[:-1]) for row in rows if row[-1] == group_size]
    return keys, at_most(size, group_size)


def first_locked_group(reader: RowReader, locked: Sequence[Any], size: int) -> tuple[Sequence[Any], bool]:
    """Those of some locked rows that a claim of `size` may have together; whether they are suspects.

    Only locked rows tell that: after a search, and before the lock, another consumer may have claimed a candidate, and
    its batch may have failed as a whole. The rows that are left out stay locked until the transaction ends.
    """
    if not reader.has_suspects(locked):
        return locked, False
    sizes = reader.group_sizes(locked)
    group = [row for row, other in zip(locked, sizes, strict=True) if other == sizes[0]]
    return group[: at_most(size, sizes[0])], bool(sizes[0])


def at_most(size: int, group_size: int) -> int:
    """How many jobs of a group of suspects may be claimed at once. A `group_size` of 0: they are no suspects."""
    return min(size, max(1, group_size // 2)) if group_size else size


def examined_of(candidates: list[Key], jobs: Sequence[Job], size: int) -> int:
    """How many candidates a claim of `size` jobs went through to get these."""
    if len(jobs) < size:
        return len(candidates)
    places = {key: place for place, key in enumerate(candidates, 1)}
    return max(places[job.key] for job in jobs)


SOME: Final = 10
"""How many rows are checked."""


class Probe:
    """Reads the keys of some rows that are ready, then reads the rows by these keys. It locks nothing."""

    def __init__(self, backend: Backend, selection: Selection) -> None:
        source = backend.source
        self._name = source.name
        self._first = sa.select(*source.key).where(selection.found).order_by(*selection.order).limit(SOME)
        self._by_key = still_there(source, backend.dialect)

    def run(self, connection: sa.Connection) -> None:
        """Raises KeyUnfit for rows that are there before and after, and are not found by their own key."""
        keys = self._keys(connection)
        if keys:
            found = {key_of(row) for row in connection.execute(self._by_key, {"claimjobs_keys": keys})}
            missing = [key for key in keys if key not in found]
            missing = [key for key in self._keys(connection) if key in missing] if missing else missing
            if missing:
                raise key_unequal(self._name, missing)

    def _keys(self, connection: sa.Connection) -> list[Key]:
        return [key_of(row) for row in connection.execute(self._first)]
