"""OpenTelemetry spans, through its API alone (the extra `otel`). Without it, or without a tracer, nothing is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError:  # the extra is not installed
    trace = None  # type: ignore[assignment]

HEADER: Final = "traceparent"
MOST_LINKS: Final = 128
"""Links of a span that an SDK keeps by default."""
NOTHING: Final = nullcontext()
"""The span where there is no tracer."""


def is_on() -> bool:
    """Whether the program has set a tracer provider."""
    return trace is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def span(operation: str, table: str, jobs: int | None = None, *, of: Iterable[str] = ()) -> AbstractContextManager[Any]:
    """A `with` block as a span: `claimjobs OPERATION`. `of`: the `traceparent` of jobs, to which the span is linked."""
    return _span(operation, table, jobs, of) if is_on() else NOTHING


def traceparent() -> str | None:
    """The current context as a W3C `traceparent`; None: there is none."""
    carrier: dict[str, str] = {}
    if is_on():
        TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(HEADER)


@contextmanager
def _span(operation: str, table: str, jobs: int | None, of: Iterable[str]) -> Iterator[Any]:
    attributes: dict[str, Any] = {"messaging.system": "claimjobs", "messaging.destination.name": table}
    if jobs is not None:
        attributes["messaging.batch.message_count"] = jobs
    tracer = trace.get_tracer("claimjobs")
    name = f"claimjobs {operation}"
    with tracer.start_as_current_span(name, attributes=attributes, links=list(_links(of))) as current:
        yield current


def _links(headers: Iterable[str]) -> Iterator[trace.Link]:
    """A link for each different context."""
    for header in list(dict.fromkeys(headers))[:MOST_LINKS]:
        context = TraceContextTextMapPropagator().extract({HEADER: header})
        found = trace.get_current_span(context).get_span_context()
        if found.is_valid:
            yield trace.Link(found)
