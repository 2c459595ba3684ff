"""Assignments: rows that are given to workers, each to one at most, for as long as the worker wants.

An assignment is no claim and no lease: it has no owner, and it is not reclaimed when a worker dies.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import sqlalchemy as sa

from claimjobs.admin.assigner import Assigner, Assignment, AssignStrategy
from claimjobs.claim.selector import Selector
from claimjobs.database.connect import engine_of
from claimjobs.database.connection import Connector
from claimjobs.dialects import Dialect
from claimjobs.dialects.types import database_now
from claimjobs.errors import CrossedFork
from claimjobs.options import Liveness
from claimjobs.report import Report
from claimjobs.table.backend import inspect_table
from claimjobs.table.columns import Columns
from claimjobs.table.predicates import OrderBy, Where
from claimjobs.table.reflection import TableLike


class Assignments:
    """A table whose rows are given to workers: `Columns(assignee=...)` names the unique column of the worker.

    `bind`, `table`, `columns`, `where`, `order_by`, `liveness`, `dialect` and `now` are as for a Queue. Any free row is
    assigned; with `order_by`, the first one that is not locked among the first 64. Nothing is sent to the database
    before the first call, which raises ConnectionFailed, ServerUnfit, UnfitTable, ColumnUnfit, or UnfitTable without
    a unique index. Several threads may use it; another process needs an object of its own (CrossedFork).
    """

    def __init__(
        self,
        bind: str | sa.URL | sa.Engine,
        table: TableLike,
        *,
        columns: Columns | None = None,
        where: Where = None,
        order_by: OrderBy = None,
        liveness: Liveness | None = None,
        dialect: Dialect | None = None,
        now: sa.ColumnElement[Any] | None = None,
    ) -> None:
        self.engine = engine_of(bind)
        self.report = Report()
        """Counts of what was tried again so far."""
        self._table, self._columns, self._dialect = table, columns, dialect
        self._where, self._order_by = where, order_by
        self._now = database_now() if now is None else now
        self._liveness = liveness or Liveness()
        self._process = os.getpid()
        self._preparing = threading.RLock()
        self._assigner: Assigner | None = None
        self._strategy: tuple[Where, AssignStrategy] | None = None

    def assign(self, worker: Any, where: Where = None) -> Assignment:
        """Assign a row to a worker: its value is written into the column `assignee`, until `unassign`.

        A worker has at most one row, and a row at most one worker. `where` narrows which rows may be assigned. This
        waits for a short time if another transaction writes the same value at this moment: see `Assignment.outcome`.
        Raises BadArgument if another unique index refuses the value, and BadPredicate.
        """
        assigner = self._ready()
        selector = self._selector(assigner)
        with selector.understood(where):
            return assigner.assign(worker, self._strategy_for(assigner, selector, where))

    def unassign(self, worker: Any) -> bool:
        """Free the worker's row; return whether it had one."""
        return self._ready().unassign(worker)

    def pair(self, values: Mapping[str, Any]) -> Assignment:
        """Insert a row with a new key and its worker (`{"tid": 1, "taskid": 2}`), where neither is in the table yet.

        The outcome is `already assigned` if either is there, with that row; `busy` if another transaction has written
        either and has not committed for a while. Each of the columns must be unique by itself (UnfitTable). Raises
        BadArgument if a unique index over other columns refuses the row.
        """
        return self._ready().pair(values)

    def check(self) -> None:
        """Check the unique index and the predicate now. Assigns nothing."""
        selector = self._selector(self._ready())
        with selector.understood(None):
            selector.trial(None, ordered=True)

    def close(self) -> None:
        """Close the connection. Assigned rows stay assigned. The object can be used again."""
        with self._preparing:
            assigner, self._assigner, self._strategy = self._assigner, None, None
        if assigner is not None:
            assigner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready(self) -> Assigner:
        if self._process != os.getpid():
            raise CrossedFork
        with self._preparing:
            if self._assigner is None:
                backend = inspect_table(self.engine, self._table, self._dialect, columns=self._columns, by_lease=False)
                connector = Connector(self.engine, backend.dialect, self._liveness, self.report)
                try:
                    self._assigner = Assigner(connector, backend)
                except BaseException:
                    connector.close()
                    raise
                weakref.finalize(self, _close_unless_forked, connector, self._process)
            return self._assigner

    def _selector(self, assigner: Assigner) -> Selector:
        backend = assigner.backend
        return Selector(self.engine, backend.dialect, backend.roles, self._where, self._order_by, self._now)

    def _strategy_for(self, assigner: Assigner, selector: Selector, where: Where) -> AssignStrategy:
        """The strategy for a predicate. It is built once for a predicate that does not change."""
        built = self._strategy
        if selector.changes(where) or built is None or built[0] is not where:
            selection = selector.selection(where)
            unordered = replace(selection, order=selection.order if self._order_by is not None else ())
            self._strategy = built = (where, assigner.strategy(unordered))
        return built[1]


def _close_unless_forked(connector: Connector, process: int) -> None:
    """In a forked child the connection is its parent's."""
    if process == os.getpid():
        connector.close()
