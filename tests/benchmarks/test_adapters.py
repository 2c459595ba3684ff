"""The adapter says what the suite's guide for adapters asks for, on a real server, and ends when it is told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

import pytest
import sqlalchemy as sa

from benchmarks.adapters import records
from benchmarks.adapters.measures import WINDOW, Measures
from tests.backends import Backend, wait_for

pytestmark = pytest.mark.thorough("that the benchmarks measure what they say")

ROOT = Path(__file__).parents[2]
SECONDS = 30.0
"""Within which a line must come."""
SECONDS_TO_END = 30.0
"""Of the guide."""

WINDOWS = {
    **dict.fromkeys(("claim_p50_ms", "claim_p95_ms", "claim_p99_ms"), 30.0),
    **dict.fromkeys(("enqueue_rate", "completion_rate"), 1.0),
    "queue_depth": 0.0,
    "producer_target_rate": 0.0,
}
"""The metrics, and the seconds over which each is measured."""
SAMPLE = {"t", "system", "kind", "subject_kind", "subject", "metric", "value", "window_s", "instance_id"}
FIXED = {"PRODUCER_MODE": "fixed", "PRODUCER_RATE": "200"}
RUNS = {
    "adapter": FIXED,
    "harness": {**FIXED, "PRODUCER_PACING": "harness"},
    "depth": {"PRODUCER_MODE": "depth-target", "TARGET_DEPTH": "50"},
    "batches": {**FIXED, "CLAIMJOBS_CLAIMS": "batches"},
}


class Adapter:
    """The adapter as a process, and the records that it writes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: SimpleQueue[str] = SimpleQueue()
        assert process.stdout
        self._reader = Thread(target=self._read, args=(process.stdout,))
        self._reader.start()

    def record(self) -> dict[str, Any]:
        """The next one. Each line is a record."""
        record = json.loads(self._lines.get(timeout=SECONDS))
        assert isinstance(record, dict)
        return record

    def until_done(self, system: str) -> None:
        """Check samples until jobs were done, and their latencies seen."""
        deadline = time.monotonic() + SECONDS
        seen: defaultdict[str, float] = defaultdict(float)
        while not (seen["completion_rate"] and seen["claim_p99_ms"] and seen.keys() == WINDOWS.keys()):
            assert time.monotonic() < deadline, seen
            record = self.record()
            check(record, system)
            seen[record["metric"]] = max(seen[record["metric"]], record["value"])

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._lines.put(line)


def check(record: Mapping[str, Any], system: str) -> None:
    """A sample, by the guide."""
    assert set(record) == SAMPLE
    assert (record["kind"], record["subject_kind"], record["subject"]) == ("adapter", "adapter", "")
    assert (record["system"], record["instance_id"]) == (system, 0)
    assert record["window_s"] == WINDOWS[record["metric"]]
    assert isinstance(record["value"], int | float)
    assert record["value"] >= 0
    written = datetime.fromisoformat(record["t"])
    assert record["t"].endswith("Z")
    assert abs(datetime.now(UTC) - written) < timedelta(seconds=SECONDS)


@contextmanager
def started(backend: Backend, variables: Mapping[str, str]) -> Iterator[Adapter]:
    given = {"DATABASE_URL": backend.url, "SCENARIO": "long_horizon", "WORKER_COUNT": "2", "SAMPLE_EVERY_S": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.adapters"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **given, **variables},
        cwd=ROOT,
        text=True,
    )
    adapter = Adapter(process)
    try:
        yield adapter
    finally:
        adapter.end()


@pytest.mark.parametrize("run", RUNS)
def test_the_adapter_writes_what_the_guide_asks_for_and_ends_by_a_signal(anywhere: Backend, run: str) -> None:
    with started(anywhere, RUNS[run]) as adapter:
        described = adapter.record()
        assert described["kind"] == "descriptor"
        assert described["system"] == ("claimjobs-batches" if run == "batches" else "claimjobs")
        assert described["db_name"] == anywhere.engine.url.database
        if run == "harness":
            adapter.say("ENQUEUE 40\nENQUEUE 30")
        adapter.until_done(described["system"])
        if run == "harness":
            wait_for(lambda: not anywhere.rows("jobs"), "the jobs are done", SECONDS)
        adapter.process.send_signal(signal.SIGTERM)
        assert adapter.process.wait(SECONDS_TO_END) == 0
    if run == "harness":
        with anywhere.engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT last_value FROM jobs_id_seq").scalar_one() == 70


def test_the_manifest_is_what_the_descriptor_and_the_database_say(anywhere: Backend) -> None:
    with started(anywhere, FIXED) as adapter:
        described = adapter.record()
        there = sa.inspect(anywhere.engine)
        tables = {f"public.{name}" for name in there.get_table_names()}
        indexes = {f"public.{index['name']}" for index in there.get_indexes("jobs")}
        indexes.add(f"public.{there.get_pk_constraint('jobs')['name']}")
        adapter.process.send_signal(signal.SIGTERM)
        assert adapter.process.wait(SECONDS_TO_END) == 0
    known = records.manifest("rows")
    assert set(described["event_tables"]) == set(known["event_tables"]) == tables
    assert set(known["event_indexes"]) <= indexes
    assert described["extensions"] == known["extensions"] == []


def test_the_manifest_of_claims_per_batch_differs_by_names_alone() -> None:
    rows, batches = records.manifest("rows"), records.manifest("batches")
    names = {name for name in rows if rows[name] != batches[name]}
    assert names == {"system", "display_name", "db_name"}


def test_an_adapter_whose_consumers_fail_ends_with_an_error(anywhere: Backend) -> None:
    with started(anywhere, {**FIXED, "CONSUMER_BATCH_SIZE": "0"}) as adapter:
        assert adapter.process.wait(SECONDS) == 1


def test_a_process_that_is_not_the_first_says_nothing_of_what_all_see(anywhere: Backend) -> None:
    with started(anywhere, {**FIXED, "BENCH_INSTANCE_ID": "1"}) as adapter:
        assert adapter.record()["instance_id"] == 1
        metrics = [adapter.record()["metric"] for _ in range(6)]
        adapter.process.send_signal(signal.SIGTERM)
        assert adapter.process.wait(SECONDS_TO_END) == 0
    assert "queue_depth" not in metrics
    assert metrics.count("completion_rate") >= 1


def test_latencies_are_those_of_the_last_seconds() -> None:
    now = 100.0
    measured = Measures(clock=lambda: now)
    assert measured.percentiles([0.99]) == [0.0]
    measured.add_completed(100, [0.0012345] * 98 + [0.5, 0.9])
    assert measured.percentiles([0.5, 0.98, 0.99, 1.0]) == [1.23, 1.23, 500.0, 900.0]
    now += WINDOW
    assert measured.percentiles([0.99]) == [0.0]
    assert measured.completed == 100
