"""Where the claims are in the order of the key rows of `per_key` (KeyCursor), and in the search for keys whose jobs
wait and that have no key row, or one that says a later time (KeySearch).
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Key
from claimjobs.job import key_of
from claimjobs.statements.key_rows import KeyStatements, parts_of

JOBS_PER_PAGE: Final = 500
"""Jobs whose keys one step of a KeySearch reads."""
MOST_SKIPPED: Final = 8
"""A search begins behind fewer pages than two to this power: the database goes through them in 10 ms."""
BESIDE_CLAIMS_SECONDS: Final = 0.005
"""Seconds after which a search beside claims ends. It goes on later."""
SEARCH_PAUSE_FACTOR: Final = 10
"""A search beside claims takes about 1 / SEARCH_PAUSE_FACTOR of the time at most."""
LONGEST_SEARCH_PAUSE_SECONDS: Final = 0.1
"""Seconds between two such searches at most, while there are claims."""
EMPTY_CLAIM_SECONDS: Final = 0.25
"""Seconds that a claim without a job searches in all: it has the owner's connection, which is to send heartbeats, too,
and others wait for the key rows that it has inserted."""
HEAD_EVERY_SECONDS: Final = 2.0
"""Seconds after which a claim begins at the first key row again."""
EARLIER_WEIGHT: Final = 0.8
"""The weight of earlier claims against the last one."""


@dataclass
class KeyRow:
    """A key row that this transaction has locked, and what is claimed of its key now."""

    key: Any
    next_at: datetime
    rate_at: datetime | None
    now: datetime
    weight: float = 1.0
    allowed: int = 0
    """How many jobs may be claimed now."""
    is_full: bool = False
    """Whether as many jobs are claimed as the limit allows."""
    jobs: list[tuple[Key, int]] = field(default_factory=list)
    """The candidates, each with the size of its group of suspects."""
    waits_until: datetime | None = None
    """When the failed job is due for which the later jobs of the key wait."""
    found_none: bool = True
    """Whether the key has no job for this claim, even if more might be claimed."""
    has_more: bool = False
    """Whether the key has more jobs than may be claimed now."""
    claimed: int = 0

    @property
    def is_held_back(self) -> bool:
        """Whether a limit or the rate keeps back a job for this claim."""
        return self.allowed <= 0 and not self.found_none and self.waits_until is None

    @property
    def lead(self) -> float:
        """By how many seconds what was claimed is ahead of the rate."""
        return 0.0 if self.rate_at is None else max(0.0, (self.rate_at - self.now).total_seconds())


@dataclass
class KeyCursor:
    """Where the claims with one predicate are in the order of the key rows. A pass over these takes several claims if
    more of them have no job for it than one claim reads.
    """

    place: KeyRow | None = None
    """The next claim begins after this key row; None: at the first."""
    began: KeyRow | None = None
    """The last claim began after this one."""
    head_at: float = 0.0
    is_cut: bool = False
    """Whether the last claim has read as many key rows as it may, without a job."""
    is_from_head: bool = True
    """Whether the pass has begun at the first key row, or goes on there now."""
    without_job: set[Any] = field(default_factory=set)
    """The keys of this pass that are due and have no job for it."""
    passed: set[Any] = field(default_factory=set)
    """The same, of all passes since a claim began at the first key row because it was time."""
    held_back: list[Any] = field(default_factory=list)
    """The keys that the last claim has held back, because of the limit."""
    jobs_a_key: float = 1.0
    """How many jobs a key row gave lately."""
    tried: list[Key] = field(default_factory=list)
    """The candidates that the last claim has tried to lock."""

    def again(self) -> KeyCursor:
        """A cursor for one claim, which begins where the last claim began."""
        return KeyCursor(self.began, is_cut=True, is_from_head=self.began is None)

    def begin(self, *, fair: bool) -> None:
        """Begin the next claim, at the first key row if it is time, or if keys do not take turns."""
        if not self.is_cut:
            if not fair or time.monotonic() >= self.head_at:
                self.place, self.head_at = None, time.monotonic() + HEAD_EVERY_SECONDS
                self.passed.clear()
            self.is_from_head = self.place is None
            self.without_job.clear()
        self.began, self.is_cut = self.place, False

    def learn(self, visited: list[KeyRow], *, suspects: bool) -> None:
        """How many jobs a key gives; and where the next claim begins: at the first key row that is unused."""
        found = sum(len(row.jobs) for row in visited) / len(visited)
        self.jobs_a_key = max(1.0, EARLIER_WEIGHT * self.jobs_a_key + (1 - EARLIER_WEIGHT) * found)
        last = max(number for number, row in enumerate(visited) if row.claimed)
        if suspects or any(row.jobs and not row.claimed for row in visited[:last]):  # suspects beside fresh jobs
            self.place = None
        elif self.place is visited[-1] and any(row.jobs for row in visited[last + 1 :]):
            self.place = visited[last]


def _some_pages() -> int:
    """How many jobs a search leaves out at first: consumers that begin together do not wait then for the key rows that
    the others insert.
    """
    return JOBS_PER_PAGE * ((1 << random.randrange(MOST_SKIPPED)) - 1)  # noqa: S311 - consumers begin at different places


class KeySearch:
    """Goes through all keys, page by page, in one claim after the other: any program may insert jobs. All claims of a
    Queue have one.
    """

    def __init__(self) -> None:
        self._after: Any = None
        """The last key that was searched; None: the next page is the first one."""
        self._skipped = _some_pages()
        """So many jobs are before the next page, if it is the first one of all."""
        self._at = 0.0
        self._is_busy = True
        """Whether the last claim got jobs."""
        self._none_claimed = False
        """Whether no claim got jobs since the first page."""

    def beside_claims(self, connection: sa.Connection, statements: KeyStatements) -> None:
        """Search for a short time, if that is due while there are jobs to claim."""
        began = time.monotonic()
        if not self._is_busy or began < self._at:
            return
        while True:
            self._none_claimed = False
            self._page(connection, statements)
            took = time.monotonic() - began
            if self._after is None or took > BESIDE_CLAIMS_SECONDS:
                self._at = time.monotonic() + min(SEARCH_PAUSE_FACTOR * took, LONGEST_SEARCH_PAUSE_SECONDS)
                return

    def to_the_end(self, connection: sa.Connection, statements: KeyStatements, deadline: float) -> bool | None:
        """Search until such a key is found, and has a key row. False: there is none in all pages, and no claim got
        a job meanwhile. None: the `deadline` has come, and the next claim goes on.
        """
        while True:
            self._none_claimed = self._none_claimed or (self._after is None and not self._skipped)
            if self._page(connection, statements):
                return True
            if self._after is None and self._none_claimed:
                self._none_claimed = False
                return False
            if time.monotonic() > deadline:
                return None

    def note_claim(self, *, jobs: bool) -> None:
        self._is_busy = jobs
        self._none_claimed = self._none_claimed and not jobs

    def begin_again(self) -> None:
        """Begin at a first page again: the key rows that were inserted are rolled back."""
        self._after, self._none_claimed, self._skipped = None, False, _some_pages()

    def _page(self, connection: sa.Connection, statements: KeyStatements) -> bool:
        after = self._after
        begin = {"claimjobs_skipped": self._skipped} if after is None else parts_of(after)
        given, self._skipped = {"claimjobs_rows_wanted": JOBS_PER_PAGE, **begin}, 0
        page = statements.first_page if after is None else statements.page_after
        rows = connection.execute(page.keys, given).all()
        found = any(row[-1] for row in rows)
        if found:
            connection.execute(page.insert, given)
        self._after = key_of(rows[-1][:-1]) if rows else None
        return found
