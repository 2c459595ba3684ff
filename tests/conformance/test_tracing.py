"""OpenTelemetry spans of a queue."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from claimjobs import Columns, job_table, tracing
from claimjobs.errors import BadRow
from tests.backends import Backend
from tests.conformance.jobs import jobs


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What is exported while the test runs."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def test_enqueue_claim_batch_and_settle_have_spans(backend: Backend, spans: InMemorySpanExporter) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(3))
    for batch in queue.batches(2, drain=True):
        with batch:
            batch.done()
    found = {span.name: span for span in spans.get_finished_spans()}
    assert set(found) == {f"claimjobs {name}" for name in ("enqueue", "claim", "batch", "settle")}
    settle, batch_span = found["claimjobs settle"], found["claimjobs batch"]
    assert settle.parent is not None
    assert settle.parent.span_id == batch_span.context.span_id
    assert batch_span.attributes is not None
    assert batch_span.attributes["messaging.destination.name"] == "jobs"
    assert batch_span.attributes["messaging.batch.message_count"] == 1


def test_a_column_carries_the_context_to_the_batch(backend: Backend, spans: InMemorySpanExporter) -> None:
    letters = job_table("letters", sa.MetaData(), sa.Column("body", sa.String(20)), sa.Column("trace", sa.String(60)))
    backend.make(letters)
    queue = backend.bare_queue("letters", columns=Columns(traceparent="trace"), on_done="delete")
    with trace.get_tracer_provider().get_tracer("producer").start_as_current_span("request") as request:
        bad: list[BadRow] = []
        queue.enqueue([{"body": "a"}, "no mapping", {"body": "b"}], on_bad=bad.append)  # type: ignore[list-item]
        assert [one.row for one in bad] == ["no mapping"]
    queue.enqueue({"body": "c"})
    assert "trace" not in queue.payload
    with queue.claim() as batch:
        assert [job.trace is None for job in batch.jobs].count(False) == 3
        batch.done()
    [batch_span] = [span for span in spans.get_finished_spans() if span.name == "claimjobs batch"]
    traces = [link.context.trace_id for link in batch_span.links]
    assert request.get_span_context().trace_id in traces
    assert len(batch_span.links) == 2, "one for each call of enqueue"


def test_without_a_tracer_nothing_is_written(backend: Backend) -> None:
    assert not tracing.is_on()
    assert tracing.traceparent() is None
    assert tracing.span("claim", "jobs") is tracing.span("settle", "jobs")


def test_a_program_that_imports_no_tracer_has_none(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tracing.is_on()
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert not tracing.is_on()
