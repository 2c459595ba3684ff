"""Who works on one table: the article's generator and consumer, and ours. Each is a function for a process of its own.

Both kinds of consumer write what they process into `processed`, in a transaction before the one that removes the job,
as a handler with a side effect would.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa

from benchmarks import article
from benchmarks.crew import SPAWN, orphaned
from claimjobs import Queue

SECONDS_TO_START = 120.0

AUDIT = "CREATE TABLE processed (job_id INTEGER NOT NULL, d VARCHAR(64) NOT NULL, consumer INTEGER NOT NULL)"
"""Without a key: a job that is done twice must be able to stand there twice."""


class Shift:
    """What the workers have in common: a start line, and an event for each generator that has ended."""

    PAUSE = 0.01
    """Seconds before a consumer that found nothing looks again while jobs are still generated."""

    def __init__(self, generators: int, consumers: int) -> None:
        self._line = SPAWN.Barrier(generators + consumers)
        self.ended = [SPAWN.Event() for _ in range(generators)]

    def start(self) -> None:
        """Wait until everybody is connected: nobody shall have done the work before others could begin."""
        self._line.wait(SECONDS_TO_START)

    def more_to_come(self) -> bool:
        """Whether a generator is at work."""
        return not all(event.wait(self.PAUSE) for event in self.ended) and not orphaned()


def generate(url: str, shift: Shift, number: int, rows: Sequence[tuple[str, str]]) -> int:
    with article.connected(url) as db:
        shift.start()
        count = article.generate(db, rows)
    shift.ended[number].set()
    return count


def consume_as_the_article(url: str, shift: Shift, number: int, *, letters: bool) -> int:
    with article.connected(url) as db, article.connected(url) as audit:
        shift.start()
        note = partial(_note, audit, number)
        return article.consume(db, number, note, letters=letters, more_to_come=shift.more_to_come).jobs


def _note(audit: Any, number: int, jobs: list[article.Row]) -> None:
    with audit.cursor() as cursor:
        cursor.executemany("insert into processed values (%s, %s, %s)", [(key, d, number) for key, d, _ in jobs])
    audit.commit()


def consume_as_claimjobs(url: str, shift: Shift) -> int:
    engine = sa.create_engine(url)
    with Queue(engine, on_done="delete") as queue, engine.connect() as audit:
        queue.check()
        shift.start()
        more = True
        while more:
            more = shift.more_to_come()  # asked first: what came in the meantime is drained now
            _drain(queue, audit)
        assert queue.report.lost == 0
        done = queue.report.done
    engine.dispose()
    return done


def _drain(queue: Queue, audit: sa.Connection) -> None:
    note = sa.text("insert into processed values (:id, :d, :consumer)")
    for batch in queue.batches(size=100, drain=True):
        with batch:
            audit.execute(note, [{"id": job.id, "d": job.d, "consumer": queue.owner_id} for job in batch.jobs])
            audit.commit()
            batch.done()
