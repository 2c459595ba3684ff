"""The attempts of one transaction: it runs again after an error that may pass."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Protocol

import sqlalchemy as sa

from claimjobs.control import Control
from claimjobs.options import Backoff
from claimjobs.signals import raise_delayed

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 1.0
"""Seconds. The pause before an attempt is a random part of the first, doubled with each attempt up to the longest. So
the losers of a deadlock try again at different times."""
FIRST_AMONG_PRIMARIES: Final = 0.1
"""The first pause on one of several primaries. A transaction is refused there before its server has applied what
another one has committed: at once it would often be refused again."""
DOUBTFUL: Final = 5
"""Attempts at work that can be divided, which end in an error that one of its rows may cause each time."""


class Tries(Protocol):
    """Makes single attempts, and knows which errors pass: a Connector."""

    pooled: bool
    locks_are_seen: bool

    def once(self, *, autocommit: bool = False) -> AbstractContextManager[sa.Connection]: ...
    def is_passing(self, error: BaseException) -> bool: ...
    def may_be_of_a_row(self, error: BaseException) -> bool: ...
    def deadline(self, failed_since: float, patience: float) -> float: ...
    def note(self, error: BaseException) -> None: ...
    def raise_in_words(self, error: Exception) -> None: ...
    def recovered(self) -> None: ...


class Attempts:
    """The attempts of one transaction, until one succeeds: `for attempt in attempts: with attempt as connection: ...`.

    An error that may pass ends the block without an exception, and another attempt follows after a pause. A failure to
    connect does so, too. Any other error is raised, and so is the last one when the time is over.
    """

    def __init__(
        self,
        connector: Tries,
        patience: float,
        unless: Control | None,
        *,
        autocommit: bool,
        divisible: bool = False,
        unclear_patience: float = math.inf,
    ) -> None:
        """`divisible`: the caller divides work that fails. An error that the work itself may cause is raised soon.

        `unclear_patience`: for how many seconds the work is tried again after such an error.
        """
        self._connector = connector
        self._patience = patience
        self._unless = unless
        self._autocommit = autocommit
        self._unclear_errors_left = DOUBTFUL if divisible else math.inf
        self._unclear_patience = unclear_patience
        self._unclear_since: float | None = None
        self._succeeded = False
        self._failed_since: float | None = None
        first = FIRST_PAUSE if connector.pooled or connector.locks_are_seen else FIRST_AMONG_PRIMARIES
        self._backoff = Backoff(first, LONGEST_PAUSE, least=0.0)

    def __iter__(self) -> Iterator[Attempts]:
        while not self._succeeded:
            yield self

    def __enter__(self) -> sa.Connection:
        while True:
            self._once = self._connector.once(autocommit=self._autocommit)
            try:
                return self._once.__enter__()
            except Exception as error:
                if not self._may_go_on(error):
                    raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            self._once.__exit__(kind, error, trace)
        except Exception as failed:  # the commit failed
            if not self._may_go_on(failed):
                raise
            return True
        if error is not None:
            return isinstance(error, Exception) and self._may_go_on(error)
        self._succeeded = True
        self._connector.recovered()
        return False

    def _may_go_on(self, error: Exception) -> bool:
        """Whether another attempt follows. It waits for the pause before that attempt."""
        raise_delayed()
        if not self._connector.is_passing(error):
            return False
        self._connector.note(error)
        now = time.monotonic()
        if self._failed_since is None:
            self._failed_since = now
        is_over = now >= self._connector.deadline(self._failed_since, self._patience)
        if is_over or self._is_of_the_work(error, now) or (self._unless is not None and self._unless.stopping):
            self._connector.raise_in_words(error)
            return False
        time.sleep(self._backoff.pause())
        raise_delayed()
        return True

    def _is_of_the_work(self, error: Exception, now: float) -> bool:
        """Whether the work itself causes this error, as far as its attempts show."""
        if not self._connector.may_be_of_a_row(error):
            self._unclear_since = None
            return False
        self._unclear_errors_left -= 1
        self._unclear_since = now if self._unclear_since is None else self._unclear_since
        return self._unclear_errors_left <= 0 or now >= self._unclear_since + self._unclear_patience
