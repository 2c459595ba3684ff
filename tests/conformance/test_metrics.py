"""Prometheus metrics of a Queue in a program of one's own."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as openmetrics_parser

from claimjobs import Queue
from claimjobs.batch.batch import SAMPLES
from claimjobs.metrics.collectors import QueueCollector
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.process.scrape import Samples, parsed


def scraped(queue: Queue) -> Samples:
    registry = CollectorRegistry()
    registry.register(QueueCollector(queue, every=0))
    return parsed(generate_latest(registry).decode())


def test_a_queue_is_counted_and_measured(backend: Backend) -> None:
    queue = backend.queue()
    before = scraped(queue)
    assert before["claimjobs_claimed_jobs_total", ""] == 0
    queue.enqueue(jobs(30))
    backend.run("UPDATE jobs SET run_at = '2020-01-01 00:00:00'")
    with queue.claim(25) as batch:
        batch.done()
    found = scraped(queue)
    assert found["claimjobs_enqueued_jobs_total", ""] == 30
    assert found["claimjobs_settled_jobs_total", "done"] == 25
    assert found["claimjobs_batch_jobs_bucket", "20.0"] == 0
    assert found["claimjobs_batch_jobs_bucket", "50.0"] == 1
    assert found["claimjobs_claimed_to_settled_seconds_count", ""] == 25
    assert 0 < found["claimjobs_due_to_claimed_seconds_count", ""] <= SAMPLES
    assert found["claimjobs_due_to_claimed_seconds_bucket", "3600.0"] == 0, "they were due since 2020"
    assert (found["claimjobs_jobs", "unclaimed"], found["claimjobs_due_jobs", ""]) == (5, 5)


@pytest.mark.one_server("what is Python is the same on each")
def test_a_collector_of_two_tables_has_each_name_once(backend: Backend) -> None:
    first, second = backend.queue(), backend.queue("texts")
    registry = CollectorRegistry()
    registry.register(QueueCollector(first, second, every=0))
    second.enqueue(jobs(2))
    text: Any = openmetrics
    read: Any = openmetrics_parser.text_string_to_metric_families  # it refuses a name that is there twice
    families = {family.name: family.samples for family in read(text.generate_latest(registry).decode())}
    for name in ("claimjobs_enqueued_jobs", "claimjobs_due_jobs"):
        assert {sample.labels["table"]: sample.value for sample in families[name]} == {"jobs": 0, "texts": 2}


def test_jobs_that_were_just_enqueued_were_due_for_a_moment(backend: Backend) -> None:
    queue = backend.queue()
    queue.measure_batches()
    for _ in range(2):
        queue.enqueue(jobs(3))
        for batch in queue.batches(2, drain=True):
            with batch:
                batch.done()
    times = queue.report.times
    assert sum(times.due_to_claimed.counts) == 6
    assert 0 <= times.due_to_claimed.sum < 60
    assert times.claimed_to_settled.sum < 60
    assert times.batch_jobs.counts[:2] == [2, 2]


def test_a_queue_that_nobody_measures_keeps_no_times(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        batch.done()
    assert queue.report.times.batch_jobs.counts == []
