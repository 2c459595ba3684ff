"""KeySearch: finds keys of `per_key` whose jobs wait, and that have no key row, or one that says a later time."""

from __future__ import annotations

import random
import time
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.job import key_of
from claimjobs.statements.key_rows import KeyStatements, parts_of

PAGE: Final = 500
"""Jobs among whose keys such a key is searched for at once."""
MOST_SKIPPED: Final = 8
"""A search begins at most behind two to the power of so many pages: the database goes through them in 10 ms."""
BESIDE: Final = 0.005
"""Seconds after which a search beside claims ends. It goes on later."""
SHARE: Final = 10
"""It takes at most about one part in so many of the time."""
LATEST: Final = 0.1
"""Seconds between two such searches at most, while there are claims."""
ALONE: Final = 0.25
"""Seconds that a claim without a job searches in all: it has the owner's connection, which is to send heartbeats, too,
and others wait for the key rows that it has inserted."""


def _some_pages() -> int:
    """How many jobs a search leaves out at first: consumers that begin together do not wait then for the key rows that
    the others insert.
    """
    return PAGE * ((1 << random.randrange(MOST_SKIPPED)) - 1)  # noqa: S311 - consumers begin at different places


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
        self._is_whole = False
        """Whether no claim got jobs since the first page."""

    def beside_claims(self, connection: sa.Connection, statements: KeyStatements) -> None:
        """Search for a short time, if that is due while there are jobs to claim."""
        began = time.monotonic()
        if not self._is_busy or began < self._at:
            return
        while True:
            self._is_whole = False
            self._page(connection, statements)
            took = time.monotonic() - began
            if self._after is None or took > BESIDE:
                self._at = time.monotonic() + min(SHARE * took, LATEST)
                return

    def to_the_end(self, connection: sa.Connection, statements: KeyStatements, ends: float) -> bool | None:
        """Search until there is such a key, which has a key row then. False: there is none in all pages, and no claim
        got a job meanwhile. None: the time `ends` has come, and the next claim goes on.
        """
        while True:
            self._is_whole = self._is_whole or (self._after is None and not self._skipped)
            if self._page(connection, statements):
                return True
            if self._after is None and self._is_whole:
                self._is_whole = False
                return False
            if time.monotonic() > ends:
                return None

    def note_claim(self, *, jobs: bool) -> None:
        """A claim got jobs, or none."""
        self._is_busy = jobs
        self._is_whole = self._is_whole and not jobs

    def begin_again(self) -> None:
        """What was found is rolled back."""
        self._after, self._is_whole, self._skipped = None, False, _some_pages()

    def _page(self, connection: sa.Connection, statements: KeyStatements) -> bool:
        after = self._after
        place = {"claimjobs_skipped": self._skipped} if after is None else parts_of(after)
        given, self._skipped = {"claimjobs_rows_wanted": PAGE, **place}, 0
        rows = connection.execute(statements.unknown[after is not None], given).all()
        found = any(row[-1] for row in rows)
        if found:
            connection.execute(statements.appear[after is not None], given)
        self._after = key_of(rows[-1][:-1]) if rows else None
        return found
