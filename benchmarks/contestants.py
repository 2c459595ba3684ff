"""Contestants: claimjobs through its public API, the raw loop, the article's loop; each empties a table of jobs.

A loop is opened with a URL and a number: connected, registered, ready to go. Called with some work it hands that the
keys of each batch, and returns when nothing is left, or when it is `over`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from benchmarks import article, raw, tables
from benchmarks.article import BATCH, Connection, Tally
from benchmarks.harness import SECONDS_TO_START, Contestant, Share, now
from benchmarks.raw import Hear, Over, nothing
from claimjobs import Queue
from claimjobs.errors import BatchRolledBack
from claimjobs.options import Liveness


class Loop(Protocol):
    """A consumer that is ready to go."""

    def __call__(self, work: Hear = nothing, settled: Hear = nothing, over: Over | None = None) -> Tally:
        """Claim, work, settle, until nothing is left, or where `over` is given until that is true."""


Opened = Callable[..., AbstractContextManager[Loop]]
"""`opened(url, number)`; an option it knows of (`size`) is given by name."""


# --- claimjobs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ours:
    """A Queue, ready to go."""

    queue: Queue
    claiming: Mapping[str, Any]
    """What `batches` is called with."""

    def __call__(self, work: Hear = nothing, settled: Hear = nothing, over: Over | None = None) -> Tally:
        last = 0.0
        for batch in self.queue.batches(drain=over is None, **self.claiming):
            keys = [job.key for job in batch.jobs]
            with suppress(BatchRolledBack):  # nothing was done, and whoever comes first has the jobs
                with batch:
                    work(keys)
                    batch.done()
                last = time.monotonic()
                settled(keys)
            if over and over():
                self.queue.stop()
        done = self.queue.report
        return Tally(done.done, done.claims, done.empty_claims, done.transients.total(), last)


@contextmanager
def ours(url: str, _number: int, *, size: int = BATCH, **options: Any) -> Iterator[Ours]:
    """claimjobs, through the public API. `options` are those of a Queue."""
    with Queue(url, **options) as queue:
        queue.check()
        assert queue.owner_id or options["hold"] == "transaction"  # connected, and registered
        yield Ours(queue, {"size": size})
    queue.engine.dispose()


# --- the article's loop --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Articles:
    """The article's loop, ready to go."""

    db: Connection
    number: int
    letters: bool

    def __call__(self, work: Hear = nothing, settled: Hear = nothing, over: Over | None = None) -> Tally:
        return article.consume(
            self.db,
            self.number,
            lambda jobs: work([job[0] for job in jobs]),
            settled=settled,
            letters=self.letters,
            more_to_come=(lambda: not over()) if over else (lambda: False),
        )


@contextmanager
def articles(url: str, number: int, *, letters: bool, read_committed: bool = False) -> Iterator[Articles]:
    """The article's loop, with or without its random letter."""
    with article.connected(url, read_committed=read_committed) as db:
        yield Articles(db, number, letters)


# --- on one start line ---------------------------------------------------------------------------------------


def share(url: str, number: int, line: Any, *, opened: Opened, work: Hear = nothing, **options: Any) -> Share:
    """What one consumer does of a full table. `work` is its handler."""
    keys: list[Any] = []
    with opened(url, number, **options) as loop:
        line.wait(SECONDS_TO_START)
        began = now()
        tally = loop(work=work, settled=keys.extend)
        return Share(keys, began, now(), tally.last or began.at, tally.claims, tally.empty, tally.again)


def contestant(name: str, opened: Opened, **options: Any) -> Contestant:
    """One that works on the table of `setup-tables`."""
    return Contestant(name, tables.setup_claimjobs, partial(share, opened=opened, **options))


RAW = "raw loop"
OURS = "claimjobs"
OURS_BATCHES = "claimjobs, claims=batches"
OURS_HELD = "claimjobs, hold=transaction"
ANY_ORDER = ", any order"
"""The end of the name of a contestant that claims in any order."""
BATCHES_ANY_ORDER = f"{OURS_BATCHES}{ANY_ORDER}"


LOOPS: dict[str, tuple[Opened, dict[str, Any]]] = {
    RAW: (raw.opened, {}),
    OURS: (ours, {}),
    OURS_BATCHES: (ours, {"claims": "batches"}),
    OURS_HELD: (ours, {"hold": "transaction"}),
}
"""By name how each is opened, and with which options."""


CALLED = "claimjobs, called"
LOOKS = "claimjobs, can only look"

WAYS: dict[str, dict[str, Any]] = {CALLED: {}, LOOKS: {"liveness": Liveness(session_lock=False)}}
"""By name the options of a Queue that waits for work. Without session locks nobody can be called."""


def of_batches(size: int = BATCH) -> list[Contestant]:
    """The raw loop, and claimjobs by lease and by transaction."""
    return [contestant(name, opened, size=size, **options) for name, (opened, options) in LOOPS.items()]


def batches_in_any_order(size: int = BATCH) -> Contestant:
    """Claims per batch, from random places."""
    return contestant(BATCHES_ANY_ORDER, ours, size=size, order_by=(), claims="batches")


def in_any_order(size: int = BATCH) -> list[Contestant]:
    """The raw loop from a random place, and claims from random places that are written into the rows."""
    return [
        contestant(f"{RAW}{ANY_ORDER}", raw.opened, size=size, any_order=True),
        contestant(f"{OURS}{ANY_ORDER}", ours, size=size, order_by=()),
    ]


def raw_held(size: int = BATCH) -> Contestant:
    """The raw loop that holds its batch by an open transaction."""
    return contestant("raw loop, hold=transaction", raw.opened, size=size, hold="transaction")


def of_the_article(*, letters: bool, read_committed: bool = False) -> Contestant:
    """The article's loop on the article's table, at its batch size of 100."""
    name = "article's loop, random letter" if letters else "article's loop, no letter"
    work = partial(share, opened=articles, letters=letters, read_committed=read_committed)
    return Contestant(name, article.setup_tables, work)
