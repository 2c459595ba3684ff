"""KeyLocking: finds and locks jobs where there are limits, an order or rates per key.

Whoever claims jobs of a key has locked its key row, and counts then what is claimed of the key. Whoever claimed before
had the same lock, and has committed. So there is no counter that could be wrong after a death.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from claimjobs.claim.candidates import check_keys, first_group, first_locked_group
from claimjobs.claim.locking import JobLocks, Locking
from claimjobs.claim.row_reader import AS_IT_IS, RowReader
from claimjobs.claim.strategy import LATER, NOTHING, ClaimRequest, ClaimResult, Phase
from claimjobs.database.compiled_statement import CompiledStatement, PlainReader
from claimjobs.dialects import Key
from claimjobs.job import key_of
from claimjobs.per_key import PerKey
from claimjobs.statements.find import Selection
from claimjobs.statements.key_rows import AT, PART, KeyStatements
from claimjobs.statements.lock import lock
from claimjobs.table.backend import Backend

AS_READ: Final = (sa.Integer, sa.String)
"""Types of keys whose values each driver takes again as it has read them."""
LONGEST: Final = 2.0
"""Seconds for which a key is held back whose jobs are all in hand. A settle calls it before; after a crash between a
settle and its call nobody does."""
PAGE: Final = 500
"""Jobs among whose keys one without a key row is searched for at once."""
SEARCH: Final = 0.005
"""Seconds after which such a search ends, and goes on later."""
SHARE: Final = 10
"""It takes at most about one part in so many of the time."""
LATEST: Final = 0.1
"""Seconds between two such searches at most, while there are claims."""
MOST_ROWS: Final = 1_000
"""Key rows that one claim reads."""
NEARLY: Final = 5
"""A claim is full enough if at most one part in so many is missing."""
SPARE: Final = 1.3
"""How many more key rows are locked than gave enough jobs lately: each further page takes as long as a few jobs."""
MEMORY: Final = 0.8
"""The weight of earlier claims against the last one."""


@dataclass
class KeyRow:
    """A key row that this transaction has locked, and what is claimed of its key now."""

    key: Any
    next_at: datetime
    rate_at: datetime | None
    now: datetime
    allowed: int = 0
    """How many jobs may be claimed now."""
    is_full: bool = False
    """Whether as many jobs are claimed as the limit allows."""
    jobs: list[tuple[Key, int]] = field(default_factory=list)
    """The candidates, each with the size of its group of suspects."""
    waits_until: datetime | None = None
    """When the failed job is due for which the others wait."""
    found_none: bool = True
    """Whether it has no job for this claim, even if more might be claimed."""
    claimed: int = 0

    @property
    def is_held_back(self) -> bool:
        """Whether a limit or the rate keeps back a job for this claim."""
        return self.allowed <= 0 and not self.found_none and self.waits_until is None

    @property
    def is_cut(self) -> bool:
        """Whether it has more jobs than this claim has taken of it."""
        return 0 < self.claimed < len(self.jobs)

    @property
    def lead(self) -> float:
        """By how many seconds what was claimed is ahead of the rate."""
        return 0.0 if self.rate_at is None else max(0.0, (self.rate_at - self.now).total_seconds())


class KeyLocking(Locking):
    """Row locks, for jobs of the keys that are next."""

    holds = ("lease",)

    def __init__(self, per_key: PerKey, statements: KeyStatements) -> None:
        self._per_key, self._statements = per_key, statements

    def locks(self, backend: Backend, selection: Selection, known: Sequence[str] = ()) -> JobLocks:
        return KeyRowLocks(backend, selection, known, per_key=self._per_key, statements=self._statements)


class KeyRowLocks(JobLocks):
    """Locks the next key rows, counts what is claimed of their keys, and locks their first jobs."""

    keyset_order = None
    is_lazy = True

    def __init__(
        self,
        backend: Backend,
        selection: Selection,
        known: Sequence[str],
        *,
        per_key: PerKey,
        statements: KeyStatements,
    ) -> None:
        self._per_key, self._statements = per_key, statements
        self._roles, dialect = backend.roles, backend.dialect
        self._lateral = dialect.has_lateral
        self._reader = RowReader(backend.roles, dialect, known)
        self._lock = CompiledStatement(lock(backend.roles, dialect, selection, self._reader.parts))
        columns = [*backend.source.key, *statements.key]
        as_read = all(isinstance(column.type, AS_READ) and not isinstance(column.type, sa.Enum) for column in columns)
        wanted = "claimjobs_rows_wanted"
        self._next = {after: Read(statements.next(after=after), as_read, wanted) for after in (False, True)}
        self._count = Read(statements.claimed, as_read)
        jobs = statements.jobs() if self._lateral else statements.jobs_of_one()
        self._jobs = Read(jobs, as_read and not per_key.waits, "claimjobs_each")
        self._serve = CompiledStatement(statements.serve(moves=per_key.fair))
        self._hold_back = statements.hold_back(LONGEST)
        self._unknown = {after: statements.unknown(after=after) for after in (False, True)}
        self._place: KeyRow | None = None
        """The claim begins after this key row; None: at the first."""
        self._head_at = 0.0
        self._searched: Any = None
        """The last key of the search for one without a key row; None: it begins at the first key."""
        self._search_at = 0.0
        self._held_back: list[Any] = []
        """The keys that the last claim has held back, because of the limit."""
        self._passed: Set[Any] = set()
        """The keys with a job that is due of which the last claim found none: `where` excludes it, or it is new."""
        self._yield = 1.0
        """How many jobs a key row gave lately."""

    # --- claiming --------------------------------------------------------------------------------------

    def lock(
        self, connection: sa.Connection, request: ClaimRequest, marked: Mapping[str, Any] = AS_IT_IS
    ) -> ClaimResult:
        if self._held_back and self._per_key.limit is not None:
            self._call_again(connection, self._per_key.limit)
        if time.monotonic() >= self._search_at:
            self._find_new_keys(connection)
        visited = self._visit(connection, request.size)
        jobs, suspects = self._lock_jobs(connection, visited, request.size, marked)
        passed = self._place_rows(connection, visited)
        if jobs:
            self._learn(visited)
            return ClaimResult(jobs, len(jobs), len(jobs), suspects=suspects)
        left = connection.scalar(self._statements.left, {"claimjobs_rows_wanted": passed + 1})
        return LATER if left > passed or len(visited) >= MOST_ROWS else NOTHING

    def _learn(self, visited: list[KeyRow]) -> None:
        """How many jobs a key gives; and where the next claim begins: at the first key row that is unused."""
        found = sum(len(row.jobs) for row in visited) / len(visited)
        self._yield = max(1.0, MEMORY * self._yield + (1 - MEMORY) * found)
        last = max(place for place, row in enumerate(visited) if row.claimed)
        if any(row.jobs and not row.claimed for row in visited[:last]):  # suspects beside fresh jobs, or the reverse
            self._place = None
        elif self._place is visited[-1] and any(row.jobs for row in visited[last + 1 :]):
            self._place = visited[last]

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        key = key_of(tuple(_any_value(column.type) for column in self._statements.key))
        counted = Phase("claimed", self._count.statement, {"claimjobs_per_keys": [key]})
        [some] = self._keys_for_jobs([key])
        candidates = {"claimjobs_candidates": keys, "claimjobs_size": request.size}
        return [
            Phase("key rows", self._next[False].statement, {"claimjobs_rows_wanted": request.size}),
            *([counted] if self._per_key.limit else []),
            Phase("find", self._jobs.statement, {"claimjobs_each": request.size, **some}),
            Phase("lock", self._lock.statement, candidates),
        ]

    def _visit(self, connection: sa.Connection, size: int) -> list[KeyRow]:
        """Lock key rows, one page after the other, until their keys have enough candidates."""
        if time.monotonic() >= self._head_at or not self._per_key.fair:
            self._place, self._head_at = None, time.monotonic() + 2.0
        visited: list[KeyRow] = []
        from_head = self._place is None
        left = size
        while left > size // NEARLY and len(visited) < MOST_ROWS:
            seen = {row.key for row in visited}
            locked = self._next_rows(connection, min(size, math.ceil(SPARE * left / self._yield)))
            key_rows = [row for row in locked if row.key not in seen]
            if key_rows:
                self._find(connection, key_rows, size)
                visited += key_rows
                left -= sum(len(row.jobs) for row in key_rows)
            elif locked:
                continue
            elif from_head and not (left == size and self._find_new_keys(connection)):
                self._place = None
                break
            else:  # key rows that others had locked are before the place
                self._place, from_head = None, True
        return visited

    def _next_rows(self, connection: sa.Connection, count: int) -> list[KeyRow]:
        after = self._place
        given: dict[str, Any] = {"claimjobs_rows_wanted": count}
        if after is not None:
            given |= {AT: after.next_at, **_parts(after.key)}
        rows = self._next[after is not None].rows(connection, given)
        key_rows = [
            KeyRow(key_of(key), *map(_aware, instants)) for *key, instants in ((*row[:-3], row[-3:]) for row in rows)
        ]
        self._place = key_rows[-1] if key_rows else self._place
        return key_rows

    def _find(self, connection: sa.Connection, key_rows: list[KeyRow], size: int) -> None:
        """Find the candidates of these key rows, as many of each as may be claimed."""
        limit, pace = self._per_key.limit, self._per_key.pace
        given = {"claimjobs_per_keys": [row.key for row in key_rows]}
        claimed = {} if limit is None else _by_key(self._count.rows(connection, given))
        for row in key_rows:
            row.allowed = self._per_key.share(row.key, size)
            if limit is not None:
                left = limit - claimed.get(row.key, 0)
                row.allowed, row.is_full = min(row.allowed, left), left <= 0
            if pace is not None:
                row.allowed = min(row.allowed, int(pace.burst - row.lead / pace.interval + 1e-6))
        for row, (job, due, ready, group_size) in self._candidates(connection, key_rows):
            row.found_none = False
            if not ready:
                row.waits_until = row.waits_until or due
            elif row.waits_until is None and len(row.jobs) < row.allowed:
                row.jobs.append((job, group_size))

    def _candidates(self, connection: sa.Connection, key_rows: list[KeyRow]) -> Iterator[tuple[KeyRow, Any]]:
        """For each of the first jobs of these keys: its key row; its key, when it is due, whether it is ready, and the
        size of its group.
        """
        size = len(self._statements.key) if self._lateral else 0
        by_key = {row.key: row for row in key_rows}
        each = {"claimjobs_each": max(1, *(row.allowed for row in key_rows))}
        for only, given in zip(key_rows, self._keys_for_jobs(list(by_key)), strict=False):
            for found in self._jobs.rows(connection, {**given, **each}):
                *job, due, ready, group_size = found[size:]
                row = by_key[key_of(found[:size])] if self._lateral else only
                yield row, (key_of(job), due, ready, group_size)

    def _keys_for_jobs(self, keys: list[Any]) -> list[dict[str, Any]]:
        """The parameters by which the jobs of these keys are found: in one statement, or in one for each key."""
        return [{"claimjobs_per_keys": keys}] if self._lateral else [_parts(key) for key in keys]

    def _lock_jobs(
        self, connection: sa.Connection, key_rows: list[KeyRow], size: int, marked: Mapping[str, Any]
    ) -> tuple[list[Any], bool]:
        """Lock those of the candidates that are still free. Suspects are claimed alone, as elsewhere."""
        row_of = {job: row for row in key_rows for job, _ in row.jobs}
        rows = [(*_values(job), group_size) for row in key_rows for job, group_size in row.jobs]
        if not rows:
            return [], False
        candidates, wanted = first_group(rows, size)
        given = {"claimjobs_candidates": list(islice(candidates, wanted)), "claimjobs_size": wanted}
        locked = self._lock.rows(connection, given, self._reader)
        chosen, suspects = first_locked_group(self._reader, locked, wanted)
        jobs = self._reader.jobs(chosen, marked)
        check_keys(self._roles, jobs)
        for job in jobs:
            row_of[job.key].claimed += 1
        return jobs, suspects

    def _call_again(self, connection: sa.Connection, limit: int) -> None:
        """Call the keys that the last claim has held back, and that may have another job by now.

        A settle that was committed after that claim had counted, and before it was committed, could not see that.
        """
        keys, self._held_back = self._held_back, []
        claimed = _by_key(self._count.rows(connection, {"claimjobs_per_keys": keys}))
        if free := [key for key in keys if claimed.get(key, 0) < limit]:
            connection.execute(self._statements.call, {"claimjobs_keys": free})

    # --- when the keys are next --------------------------------------------------------------------------

    def _place_rows(self, connection: sa.Connection, key_rows: list[KeyRow]) -> int:
        """Write when these keys are next; return how many stay as they are: they have no job for this claim."""
        served = [row for row in key_rows if row.claimed]
        self._held_back = [row.key for row in key_rows if row.is_held_back and row.is_full]
        if self._per_key.pace is not None:
            self._place_rated(connection, [row for row in key_rows if row.claimed or row.is_held_back])
        else:
            for some in (False, True):  # one that is cut is behind the others, by the clock
                if keys := [row.key for row in served if row.is_cut is some]:
                    self._serve.count(connection, {"claimjobs_keys": keys})
            if self._held_back:
                connection.execute(self._hold_back, {"claimjobs_keys": self._held_back})
        self._wait(connection, {row.key: max(row.waits_until, row.now) for row in key_rows if row.waits_until})
        passed = self._end_or_wait(connection, [row for row in key_rows if row.found_none])
        return passed + sum(bool(row.jobs) and not row.claimed for row in key_rows)

    def _place_rated(self, connection: sa.Connection, key_rows: list[KeyRow]) -> None:
        """A key is next when the rate allows another job of it."""
        pace = self._per_key.pace
        if not key_rows or pace is None:
            return
        sent = []
        for row in key_rows:
            lead = row.lead + row.claimed * pace.interval
            wait = max(0.0, lead - (pace.burst - 1) * pace.interval)
            if wait == 0.0 and row.is_full:
                wait = LONGEST
            at = row.now + timedelta(seconds=wait)
            moves = wait > 0 or self._per_key.fair
            rate_at = row.now + timedelta(seconds=lead)
            values = {"claimjobs_held_back": wait > 0, "claimjobs_rate_at": rate_at, AT: at if moves else row.next_at}
            sent.append({**values, **_parts(row.key)})
        connection.execute(self._statements.place, sent)

    def _end_or_wait(self, connection: sa.Connection, key_rows: list[KeyRow]) -> int:
        """No job of these keys was found for this claim. Returns how many have one that is due, for another claim."""
        if not key_rows:
            return 0
        keys = [row.key for row in key_rows]
        rows = connection.execute(self._statements.waiting, {"claimjobs_per_keys": keys})
        due = {key: at for key, at in _by_key(rows).items() if at is not None}
        if ended := [key for key in keys if key not in due]:
            connection.execute(self._statements.end, {"claimjobs_keys": ended})
        later = {row.key: due[row.key] for row in key_rows if row.key in due and due[row.key] > row.now}
        self._wait(connection, later)
        passed = due.keys() - later.keys()
        if passed - self._passed:  # a job may have been inserted while this claim searched: the next one begins before
            self._place = None
        self._passed = passed
        return len(passed)

    def _wait(self, connection: sa.Connection, until: Mapping[Any, datetime]) -> None:
        """These keys are next at these instants."""
        if until:
            connection.execute(self._statements.wait, [{AT: at, **_parts(key)} for key, at in until.items()])

    # --- keys without a key row --------------------------------------------------------------------------

    def _find_new_keys(self, connection: sa.Connection) -> bool:
        """Search the next keys of jobs that wait for some without a key row, and insert it: any program may have
        inserted such jobs. Returns whether there were some, or there are keys that were not searched.
        """
        began, some = time.monotonic(), False
        while True:
            after = self._searched
            given = {"claimjobs_rows_wanted": PAGE, **({} if after is None else _parts(after))}
            rows = connection.execute(self._unknown[after is not None], given).all()
            found = [_parts(key_of(key)) for *key, wanted in rows if wanted]
            if found:
                connection.execute(self._statements.appear, found)
                some = True
            self._searched = key_of(rows[-1][:-1]) if rows else None
            took = time.monotonic() - began
            if self._searched is None or took > SEARCH:
                self._search_at = time.monotonic() + min(SHARE * took, LATEST)
                return some or self._searched is not None


class Read:
    """A statement that is sent for each claim."""

    def __init__(self, statement: Any, as_read: bool, constant: str = "") -> None:
        """`as_read`: its values may be used as the driver reads them. `constant`: as of CompiledStatement."""
        self.statement = statement
        self._compiled = CompiledStatement(statement, constant) if as_read else None

    def rows(self, connection: sa.Connection, given: Mapping[str, Any]) -> Sequence[Any]:
        """All rows."""
        if self._compiled is None:
            return connection.execute(self.statement, given).all()
        return self._compiled.rows(connection, given, PlainReader())


def _any_value(type_: Any) -> Any:
    """A value of a column, to show a statement."""
    return UUID(int=0) if isinstance(type_, sa.Uuid) else type_.python_type()


def _aware(instant: datetime | None) -> Any:
    """An instant, which some drivers read without the zone that it has: UTC."""
    return instant if instant is None or instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def _parts(key: Any) -> dict[str, Any]:
    """The parameters for one key."""
    return {PART.format(number): part for number, part in enumerate(_values(key))}


def _values(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _by_key(rows: Iterable[Sequence[Any]]) -> dict[Any, Any]:
    return {key_of(key): value for *key, value in rows}
