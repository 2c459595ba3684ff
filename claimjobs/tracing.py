"""OpenTelemetry spans, through its API alone (the extra `otel`). Without it, or without a tracer, nothing is done."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

API: Final = "opentelemetry.trace"
"""The module with which a program sets a tracer provider. It is not imported here for programs that do not use it."""
HEADER: Final = "traceparent"
MOST_LINKS: Final = 128
"""Links of a span that an SDK keeps by default."""
NOTHING: Final = nullcontext()
"""The span where there is no tracer."""


def is_on() -> bool:
    """Whether the program has set a tracer provider."""
    api = sys.modules.get(API)
    provider = getattr(api, "get_tracer_provider", None)  # another thread may be importing it now
    return provider is not None and not isinstance(provider(), api.ProxyTracerProvider)  # type: ignore[union-attr]


def span(operation: str, table: str, jobs: int | None = None, *, of: Iterable[str] = ()) -> AbstractContextManager[Any]:
    """A `with` block as a span: `claimjobs OPERATION`. `of`: the `traceparent` of jobs, to which the span is linked."""
    return _span(operation, table, jobs, of) if is_on() else NOTHING


def traceparent() -> str | None:
    """The current context as a W3C `traceparent`; None: there is none."""
    if not is_on():
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 - an extra

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(HEADER)


@contextmanager
def _span(operation: str, table: str, jobs: int | None, of: Iterable[str]) -> Iterator[Any]:
    from opentelemetry import trace  # noqa: PLC0415 - an extra
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    attributes: dict[str, Any] = {"messaging.system": "claimjobs", "messaging.destination.name": table}
    if jobs is not None:
        attributes["messaging.batch.message_count"] = jobs
    links = []
    for header in list(dict.fromkeys(of))[:MOST_LINKS]:
        context = TraceContextTextMapPropagator().extract({HEADER: header})
        found = trace.get_current_span(context).get_span_context()
        if found.is_valid:
            links.append(trace.Link(found))
    tracer = trace.get_tracer("claimjobs")
    with tracer.start_as_current_span(f"claimjobs {operation}", attributes=attributes, links=links) as current:
        yield current
