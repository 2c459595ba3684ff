"""A session ends in the middle of a pipeline, and the driver leaves answers unread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.backends import Backend
from tests.conformance.connections import told
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import still


def test_a_settle_goes_on_with_another_connection(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a run of tests/chaos: the error for the end of the session came before the end of the connection."""
    if not backend.dialect.pipelines:
        pytest.skip(f"on {backend.name} the statements are sent one by one")
    leave, armed = psycopg.Pipeline._exit_gen, [False]

    def ends(pipeline: psycopg.Pipeline) -> Iterator[Any]:
        if armed[0]:
            armed[0] = False
            raise psycopg.errors.AdminShutdown("terminating connection due to administrator command")
        yield from leave(pipeline)

    monkeypatch.setattr(psycopg.Pipeline, "_exit_gen", ends)
    queue = still(backend.queue(claims="batches"))
    queue.enqueue(jobs(40))
    done: list[str] = []
    for batch in queue.batches(5, drain=True):
        done += names(batch)
        armed[0] = len(done) == 20
        with batch:
            batch.done()
    assert not armed[0]
    assert done == [f"{number:04}" for number in range(40)]
    assert (backend.rows(), batch.lost, queue.report.lost) == ([], (), 0)
    assert told(caplog)[0].startswith("connection lost")
