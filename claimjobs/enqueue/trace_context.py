"""The trace context in which rows are enqueued, for the column that stores it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from claimjobs import tracing
from claimjobs.enqueue.bulk_insert import Row
from claimjobs.table.roles import ColumnRoles


def with_trace_context(rows: Row | Iterable[Row], source: ColumnRoles) -> Row | Iterable[Row]:
    """The rows with the current trace context, if the table has a column for it. A value that is given stays."""
    column = source.traceparent
    context = None if column is None else tracing.traceparent()
    if column is None or context is None:
        return rows
    default = {column.name: context}
    return {**default, **rows} if isinstance(rows, Mapping) else ({**default, **row} for row in rows)
