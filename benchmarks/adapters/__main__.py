"""Adapter of claimjobs for the suite hardbyte/postgresql-job-queue-benchmarking. `python -m benchmarks.adapters`

The suite starts it with environment variables, reads records from stdout, one as JSON a line, and ends it by SIGTERM.
README.md beside this file has more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import sqlalchemy as sa

from benchmarks.adapters import records, settings
from benchmarks.adapters.measures import WINDOW, Measures
from benchmarks.adapters.producer import produce, rate
from benchmarks.adapters.settings import Settings
from claimjobs import Queue, job_table, make, tables_for
from claimjobs.errors import ClaimjobsError

SECONDS_TO_STOP = 3.0
"""After the signal; the suite allows 5."""
ENDS = (signal.SIGTERM, signal.SIGINT)
PERCENTILES = (50, 95, 99)

Metric = tuple[str, float, float]
"""A name, a value, and the seconds over which it was measured."""

JOBS = job_table(
    "jobs",
    sa.MetaData(),
    sa.Column("sent_at", sa.Double, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # threads inherit it; the main thread waits for them
    given = settings.read(os.environ)
    measures = Measures()
    with queue_of(given) as observer:
        make(observer.engine, tables_for(JOBS))
        records.write(records.descriptor(given))
        with at_work(given, measures) as threads:
            sample_until_signal(Sampler(given, measures, observer), given.sample_seconds, threads)


def queue_of(given: Settings) -> Queue:
    return Queue(given.database_url, JOBS, claims=given.claims)


@contextmanager
def at_work(given: Settings, measures: Measures) -> Iterator[list[Future[None]]]:
    """The producer and the consumers, each in a thread with a Queue of its own."""
    stopped = threading.Event()
    with ExitStack() as stack:
        producer, *consumers = [stack.enter_context(queue_of(given)) for _ in range(1 + given.workers)]
        pool = stack.enter_context(ThreadPoolExecutor(1 + given.workers))
        try:
            yield [
                pool.submit(produce, producer, given, measures, stopped),
                *(pool.submit(consume, queue, given, measures) for queue in consumers),
            ]
        finally:
            stopped.set()
            for queue in consumers:
                queue.stop(timeout=SECONDS_TO_STOP)


def consume(queue: Queue, given: Settings, measures: Measures) -> None:
    """Work until the queue is stopped. The latency of a job ends when its own work begins, not at the claim."""
    for batch in queue.batches(given.claim_size):
        latencies = []
        with batch:
            for job in batch:
                latencies.append(time.time() - job.sent_at)
                if given.work_seconds:
                    time.sleep(given.work_seconds)
        measures.add_completed(len(latencies) - len(batch.lost), latencies)


class Sampler:
    """Turns measures into samples."""

    def __init__(self, given: Settings, measures: Measures, observer: Queue) -> None:
        self._given, self._measures, self._observer = given, measures, observer
        self._last, self._enqueued, self._completed = time.monotonic(), 0, 0

    def write(self) -> None:
        """Write a sample of each metric. What all processes see alike only the first one writes."""
        at = records.instant()
        measured = [*self._latencies(), *self._rates()]
        if self._given.instance == 0:
            measured.append(("producer_target_rate", rate(self._given), 0.0))
            measured.extend(self._depth())
        for record in records.samples(self._given, measured, at):
            records.write(record)

    def _latencies(self) -> Iterator[Metric]:
        values = self._measures.percentiles([share / 100 for share in PERCENTILES])
        return ((f"claim_p{share}_ms", value, WINDOW) for share, value in zip(PERCENTILES, values, strict=True))

    def _rates(self) -> Iterator[Metric]:
        now, enqueued, completed = time.monotonic(), self._measures.enqueued, self._measures.completed
        seconds = now - self._last
        yield "enqueue_rate", (enqueued - self._enqueued) / seconds, self._given.sample_seconds
        yield "completion_rate", (completed - self._completed) / seconds, self._given.sample_seconds
        self._last, self._enqueued, self._completed = now, enqueued, completed

    def _depth(self) -> Iterator[Metric]:
        try:
            yield "queue_depth", self._observer.stats().unclaimed, 0.0
        except (ClaimjobsError, sa.exc.DBAPIError) as error:  # the suite restarts the server in some of its phases
            print(f"the depth of the queue cannot be read: {error}", file=sys.stderr)


def sample_until_signal(sampler: Sampler, every: int, threads: Sequence[Future[None]]) -> None:
    """Write samples at each full multiple of so many seconds. Raises what a thread raised."""
    while not signal.sigtimedwait(ENDS, every - time.time() % every):
        for thread in threads:
            if thread.done():
                thread.result()
        sampler.write()


if __name__ == "__main__":
    main()
