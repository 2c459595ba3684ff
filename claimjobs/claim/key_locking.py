"""KeyRowLocks: finds and locks jobs where there are limits, an order or rates per key.

Whoever claims jobs of a key has locked its key row, and counts then what is claimed of the key. Whoever claimed before
had the same lock, and has committed. So there is no counter that could be wrong after a death.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from claimjobs.claim.candidates import first_group
from claimjobs.claim.key_search import EMPTY_CLAIM_SECONDS, KeyCursor, KeyRow, KeySearch
from claimjobs.claim.locking import CandidateLock, JobLocks
from claimjobs.claim.row_reader import UNMARKED, Marked
from claimjobs.claim.strategy import LATER, NOTHING, ClaimRequest, ClaimResult, Phase
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.statement_size import most_keys
from claimjobs.dialects import Key
from claimjobs.job import Job, key_of, values_of
from claimjobs.options import PerKey, Rate
from claimjobs.statements.find import Selection
from claimjobs.statements.key_rows import AT, KeyStatements, parts_of
from claimjobs.table.backend import Backend

AS_READ: Final = (sa.Integer, sa.String)
"""Types of keys whose values each driver takes as parameters in the form in which it reads them."""
HELD_BACK_SECONDS: Final = 2.0
"""Seconds for which a key at its limit is held back at most. A settle ends that sooner, unless its process dies between
the settle and that write."""
MOST_ROWS: Final = 1_000
"""Key rows that one claim reads. If none of them has a job for it, the next claim goes on behind them."""
JOBS_BEHIND: Final = 1_000
"""Jobs of a key among which an unlocked one is searched for, if others have locked the first ones."""
KEYS_BEHIND: Final = 10
"""Keys for which one claim searches behind locked jobs."""
NEARLY: Final = 5
"""A claim is full enough if at most 1 / NEARLY of its jobs are missing."""
SPARE: Final = 1.3
"""How many more key rows are locked than gave enough jobs lately: each further page takes as long as a few jobs."""


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
        search: KeySearch,
        cursor: KeyCursor,
    ) -> None:
        self._per_key, self._statements, self._lateral = per_key, statements, backend.dialect.has_lateral
        self._search, self._cursor = search, cursor
        self._most = most_keys(statements.key, backend.dialect)
        """The most key rows of one claim, whose keys are sent in one statement."""
        self._lock = CandidateLock(backend, selection, known)
        columns = [*backend.source.key, *statements.key]
        self._as_read = all(
            isinstance(column.type, AS_READ) and not isinstance(column.type, sa.Enum) for column in columns
        )
        self._next_rows = CompiledStatement(statements.next(after=False), "claimjobs_rows_wanted")
        self._next_rows_after = CompiledStatement(statements.next(after=True), "claimjobs_rows_wanted")
        self._count = CompiledStatement(statements.claimed)
        self._jobs = CompiledStatement(statements.jobs(), "claimjobs_each")
        self._serve = CompiledStatement(statements.serve(moves=per_key.fair))
        self._hold_back = statements.hold_back(HELD_BACK_SECONDS)

    # --- claiming --------------------------------------------------------------------------------------

    def lock(self, connection: sa.Connection, request: ClaimRequest, marked: Marked = UNMARKED) -> ClaimResult:
        cursor = self._cursor
        cursor.begin(fair=self._per_key.fair)
        cursor.tried = []
        try:
            self._make_next_again(connection)
            self._search.beside_claims(connection, self._statements)
            visited, has_searched = self._visit(connection, request.size)
            jobs, suspects = self._lock_jobs(connection, visited, request.size, marked)
            if not (suspects or self._per_key.in_order):
                jobs += self._behind_locked(connection, visited, request.size - len(jobs), marked)
            self._write_next(connection, visited, suspects=suspects)
            self._search.note_claim(jobs=bool(jobs))
            if jobs:
                cursor.learn(visited, suspects=suspects)
                return ClaimResult(jobs, len(jobs), len(jobs), suspects=suspects)
            most, may_be_more = len(cursor.without_job), cursor.is_cut or not has_searched
            if not may_be_more:
                may_be_more = connection.scalar(self._statements.remaining, {"claimjobs_rows_wanted": most + 1}) > most
        except BaseException:  # the transaction is rolled back
            self._search.begin_again()
            cursor.place, cursor.is_cut = cursor.began, False
            raise
        return LATER._replace(goes_on=not (cursor.is_cut or has_searched)) if may_be_more else NOTHING

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        key = key_of([_some_value(column.type) for column in self._statements.key])
        some = {"claimjobs_per_keys": [key]} if self._lateral else parts_of(key)
        return [
            Phase("key rows", self._next_rows.statement, {"claimjobs_rows_wanted": request.size}),
            *([Phase("claimed", self._count.statement, {"claimjobs_per_keys": [key]})] if self._per_key.limit else []),
            Phase("find", self._jobs.statement, {"claimjobs_each": request.size, **some}),
            self._lock.phase(request, keys),
        ]

    def _make_next_again(self, connection: sa.Connection) -> None:
        """Make the keys next that the last claim has held back, and that are below their limit by now.

        A settle that was committed after that claim had counted, and before it was committed, could not see that.
        """
        keys, limit = self._cursor.held_back, self._per_key.limit
        if not keys or limit is None:
            return
        self._cursor.held_back = []
        claimed = _by_key(self._rows(connection, self._count, {"claimjobs_per_keys": keys}))
        if below := [key for key in keys if claimed.get(key, 0) < limit]:
            connection.execute(self._statements.make_next, {"claimjobs_keys": below})

    def _visit(self, connection: sa.Connection, size: int) -> tuple[list[KeyRow], bool]:
        """Lock key rows, one page after the other, until their keys have enough candidates. Also whether keys without a
        key row were searched to the end, if there are none.
        """
        cursor, visited, seen, left = self._cursor, list[KeyRow](), set[Any](), size
        deadline, found = time.monotonic() + EMPTY_CLAIM_SECONDS, None
        while left > size // NEARLY:
            room = self._most - len(visited)
            if len(visited) >= MOST_ROWS or room <= 0:
                cursor.is_cut = left == size
                break
            locked = self._lock_next_rows(connection, int(min(size, room, math.ceil(SPARE * left / cursor.jobs_a_key))))
            key_rows = [row for row in locked if row.key not in seen]
            if key_rows:
                self._find(connection, key_rows, size)
                visited += key_rows
                seen.update(row.key for row in key_rows)
                left -= sum(len(row.jobs) for row in key_rows)
            elif locked:
                continue
            elif not cursor.is_from_head:  # key rows that others had locked are before the place
                cursor.place, cursor.is_from_head = None, True
            elif left < size:
                cursor.place = None
                break
            elif found and time.monotonic() > deadline:
                cursor.place = None
                return visited, False
            elif not (found := self._search.to_the_end(connection, self._statements, deadline)):
                cursor.place = None
                return visited, found is False
        return visited, True

    def _lock_next_rows(self, connection: sa.Connection, count: int) -> list[KeyRow]:
        after, width = self._cursor.place, len(self._statements.key)
        given: dict[str, Any] = {"claimjobs_rows_wanted": count}
        if after is not None:
            given |= {AT: after.next_at, **parts_of(after.key)}
        rows = self._rows(connection, self._next_rows if after is None else self._next_rows_after, given)
        instants, weight = slice(width, width + 3), slice(width + 3, None)
        key_rows = [KeyRow(key_of(row[:width]), *map(_aware, row[instants]), *row[weight]) for row in rows]
        self._cursor.place = key_rows[-1] if key_rows else after
        return key_rows

    def _find(self, connection: sa.Connection, key_rows: list[KeyRow], size: int) -> None:
        """Find the candidates of these key rows, as many of each as may be claimed."""
        limit, pace = self._per_key.limit, self._per_key.pace
        given = {"claimjobs_per_keys": [row.key for row in key_rows]}
        claimed = {} if limit is None else _by_key(self._rows(connection, self._count, given))
        for row in key_rows:
            row.allowed = self._per_key.share(row.weight, size)
            if limit is not None:
                left = limit - claimed.get(row.key, 0)
                row.allowed, row.is_full = min(row.allowed, left), left <= 0
            if pace is not None:
                row.allowed = min(row.allowed, int(pace.burst - row.lead / pace.interval + 1e-6))
        for row, (job, due_at, is_due, group_size) in self._candidates(connection, key_rows):
            row.found_none = False
            if not is_due:
                row.waits_until = row.waits_until or due_at
            elif row.waits_until is None and len(row.jobs) < row.allowed:
                row.jobs.append((job, group_size))
            else:
                row.has_more = True

    def _candidates(
        self, connection: sa.Connection, key_rows: list[KeyRow], each: int = 1
    ) -> Iterator[tuple[KeyRow, Any]]:
        """For each of the first jobs of these keys: its key row; its key, when it is due, whether it is due now, and
        the size of its group. `each`: at least so many of a key. It is one statement, or one for each key.
        """
        by_key = {row.key: row for row in key_rows}
        one_more = self._per_key.pace is not None  # a key without a further job is not held back by its rate
        most = {"claimjobs_each": max(each, *(row.allowed + one_more for row in key_rows))}
        if self._lateral:
            width = len(self._statements.key)
            for found in self._rows(connection, self._jobs, {"claimjobs_per_keys": list(by_key), **most}):
                *job, due_at, is_due, group_size = found[width:]
                yield by_key[key_of(found[:width])], (key_of(job), due_at, is_due, group_size)
            return
        for row in key_rows:
            for *job, due_at, is_due, group_size in self._rows(connection, self._jobs, {**parts_of(row.key), **most}):
                yield row, (key_of(job), due_at, is_due, group_size)

    def _lock_jobs(
        self, connection: sa.Connection, key_rows: list[KeyRow], size: int, marked: Marked
    ) -> tuple[list[Job], bool]:
        """Lock those of the candidates that are still due and unlocked. Suspects are claimed alone, as elsewhere."""
        row_of = {job: row for row in key_rows for job, _ in row.jobs}
        rows = [(*values_of(job), group_size) for row in key_rows for job, group_size in row.jobs]
        if not rows:
            return [], False
        candidates, wanted = first_group(rows, size)
        row_of = {job: row_of[job] for job in candidates[:wanted]}
        jobs, suspects = self._lock_some(connection, row_of, wanted, marked)
        for job in jobs:
            row_of[job.key].claimed += 1
        return jobs, suspects or bool(jobs and rows[0][-1])  # beside a side-car no row that is locked tells it

    def _behind_locked(self, connection: sa.Connection, key_rows: list[KeyRow], size: int, marked: Marked) -> list[Job]:
        """Lock jobs of keys whose first jobs others have locked: another program may hold these locks for long. A key
        whose first job is a suspect is left.
        """
        jobs = list[Job]()
        in_vain = [row for row in key_rows if row.jobs and not row.claimed and not row.jobs[0][1]] if size else []
        random.shuffle(in_vain)  # the first ones may be locked as a whole
        for row in in_vain[:KEYS_BEHIND]:
            if not (wanted := min(row.allowed, size - len(jobs))):
                break
            found = self._candidates(connection, [row], JOBS_BEHIND)
            candidates = [job for _, (job, _, _, group_size) in found if not group_size]
            if not candidates:
                continue
            further, suspects = self._lock_some(connection, dict.fromkeys(candidates, row), wanted, marked)
            if not suspects:
                row.claimed = len(further)
                jobs += further
        return jobs

    def _lock_some(
        self, connection: sa.Connection, row_of: Mapping[Key, KeyRow], size: int, marked: Marked
    ) -> tuple[list[Job], bool]:
        """Lock some candidates, each of which has its key row here. Those are left whose key is another one since they
        were found: with "replace" an enqueue may change it. What is claimed of that key was not counted.
        """
        self._cursor.tried += row_of
        jobs, suspects = self._lock.jobs(connection, list(row_of), size, marked)
        names = [column.name for column in self._statements.key]
        keys = {job.key: key_of([job[name] for name in names]) for job in jobs}
        if doubtful := [key for key, found in keys.items() if found != row_of[key].key]:  # or in another spelling
            width = len(names)
            rows = connection.execute(self._statements.key_of_jobs, {"claimjobs_keys": doubtful})
            keys |= {key_of(row[width:]): key_of(row[:width]) for row in rows}
        return [job for job in jobs if keys[job.key] == row_of[job.key].key], suspects

    def _rows(self, connection: sa.Connection, read: CompiledStatement, given: Mapping[str, Any]) -> Sequence[Any]:
        if self._as_read and not (read is self._jobs and self._per_key.waits):  # then it reads an instant, too
            return read.rows(connection, given)
        return connection.execute(read.statement, given).all()

    # --- when the keys are next --------------------------------------------------------------------------

    def _write_next(self, connection: sa.Connection, key_rows: list[KeyRow], *, suspects: bool) -> None:
        """Write when these keys are next. One with suspects stays where it is: an owner with other jobs releases them,
        and would else be given jobs of other keys for ever.
        """
        cursor = self._cursor
        cursor.held_back = [row.key for row in key_rows if row.is_held_back and row.is_full]
        if self._per_key.pace is not None:
            rated = [row for row in key_rows if row.claimed or row.is_held_back]
            self._write_rated(connection, rated, self._per_key.pace, moves=self._per_key.fair and not suspects)
        else:
            served = [] if suspects else [row for row in key_rows if row.claimed]
            for is_cut in (False, True):  # one that has more jobs than were taken is behind the others, by the clock
                if keys := [row.key for row in served if (row.claimed < len(row.jobs)) is is_cut]:
                    self._serve.count(connection, {"claimjobs_keys": keys})
            if cursor.held_back:
                connection.execute(self._hold_back, {"claimjobs_keys": cursor.held_back})
        until = {row.key: max(row.waits_until, row.now) for row in key_rows if row.waits_until}
        passed = self._end_or_wait(connection, [row for row in key_rows if row.found_none], until)
        if until:
            connection.execute(self._statements.wait, [{AT: at, **parts_of(key)} for key, at in until.items()])
        cursor.passed -= {row.key for row in key_rows if row.claimed}
        if passed - cursor.passed and not cursor.is_cut:  # a job may have been inserted while this claim searched
            cursor.place = None
        cursor.passed |= passed
        cursor.without_job |= passed

    def _write_rated(self, connection: sa.Connection, key_rows: list[KeyRow], pace: Rate, *, moves: bool) -> None:
        """A key is next when the rate allows another job of it. `moves`: it is behind all others if that is now."""
        sent = []
        for row in key_rows:
            lead = row.lead + row.claimed * pace.interval
            wait = max(0.0, lead - (pace.burst - 1) * pace.interval)
            if wait == 0.0 and row.is_full:
                wait = HELD_BACK_SECONDS
            at = row.now + timedelta(seconds=wait) if wait > 0 or moves else row.next_at
            rate_at = row.now + timedelta(seconds=lead)
            values = {"claimjobs_held_back": wait > 0 and row.has_more, "claimjobs_rate_at": rate_at, AT: at}
            sent.append({**values, **parts_of(row.key)})
        if sent:
            connection.execute(self._statements.next_at_rate, sent)

    def _end_or_wait(self, connection: sa.Connection, key_rows: list[KeyRow], until: dict[Any, datetime]) -> Set[Any]:
        """No job of these keys was found for this claim. Returns those that have one that is due, for another claim.

        Others are added to `until`, with the instant when they are next, or have no job at all and end. A key row that
        knows what was claimed at a rate stays.
        """
        if not key_rows:
            return set()
        rows = connection.execute(self._statements.waiting, {"claimjobs_per_keys": [row.key for row in key_rows]})
        first = {key_of(key): (at, now) for *key, at, now in rows if at is not None}
        due, ended = set[Any](), []
        for row in key_rows:
            if row.key in first:
                at, now = first[row.key]
                if at > now:
                    until[row.key] = at
                else:
                    due.add(row.key)
            elif row.rate_at and row.lead:
                until[row.key] = row.rate_at
            else:
                ended.append(row.key)
        if ended:
            connection.execute(self._statements.end, {"claimjobs_keys": ended})
        return due


def _some_value(type_: sa.types.TypeEngine[Any]) -> Any:
    """A value of a column of a key. None: only a type of the user's makes one."""
    if isinstance(type_, sa.Uuid):
        return UUID(int=0) if type_.as_uuid else str(UUID(int=0))
    return type_.python_type() if isinstance(type_, AS_READ) and not isinstance(type_, sa.Enum) else None


def _aware(instant: datetime | None) -> Any:
    """An instant, which some drivers read without the zone that it has: UTC."""
    return instant if instant is None or instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def _by_key(rows: Iterable[Sequence[Any]]) -> dict[Any, Any]:
    return {key_of(key): value for *key, value in rows}
