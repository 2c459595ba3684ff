"""The statements of a queue, as they would be sent, their plans, and the index that they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import sqlalchemy as sa

from claimjobs.claim.claim_plan import ClaimPlan
from claimjobs.claim.strategy import ClaimRequest, Phase
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Key
from claimjobs.dialects.inspection import Finding, Inspection, Plan, TableRead
from claimjobs.job import key_of
from claimjobs.options import Liveness
from claimjobs.settle.settler import Settler
from claimjobs.statements import owners, stored_jobs
from claimjobs.table.backend import Backend
from claimjobs.table.claim_index import claim_index, missing_index
from claimjobs.table.definitions import OWNER_TABLE

CLAIM_SIZE: Final = 100
"""The size of the claim that is explained."""
FEW_KEYS: Final = 10
"""How many keys are given to a statement that is planned. For many keys a planner may prefer to read a whole table."""
SMALL_TABLE_ROWS: Final = 10_000
"""A planner may read a table of fewer rows as a whole, whatever indexes it has. That costs little."""
NOBODY: Final = 0
"""The id of no owner."""


@dataclass
class Subject:
    """What is explained: a queue's tables and statements, as it would claim."""

    backend: Backend
    plan: ClaimPlan
    settler: Settler
    liveness: Liveness
    planned: list[Planned] = field(default_factory=list, init=False)
    """The statements with their plans, from `plan_findings` on."""

    @property
    def inspection(self) -> Inspection:
        """How this database is asked."""
        return self.backend.dialect.inspection

    def phases(self, connection: sa.Connection, owner: int = NOBODY) -> list[Phase]:
        """The statements of a claim, then of a settle, of a few rows of the table; if it has none, of a key of NULL."""
        width = len(self.backend.source.key)
        keys = self.some_keys(connection) or [None if width == 1 else (None,) * width]
        claim = self.plan.strategy.phases(owner, ClaimRequest(CLAIM_SIZE, CLAIM_SIZE), keys)
        return [*claim, *self.settler.phases(owner, keys)]

    def some_keys(self, connection: sa.Connection) -> list[Key]:
        """The keys of a few rows, as far as the driver can read them."""
        rows = connection.execute(stored_jobs.some_keys(self.backend.source, self.backend.dialect, FEW_KEYS))
        return [key_of(row) for row in rows]


class _Caught(Exception):
    """Ends the execution of a statement before the driver gets it."""


def as_sent(connection: sa.Connection, statement: Any, values: Mapping[str, Any] | None = None) -> tuple[str, Any]:
    """The text and the parameters that the driver would get for a statement. Nothing is sent.

    EXPLAIN is written before this text: compiled by itself, a statement can differ from what a claim sends.
    """
    sa.event.listen(connection, "before_cursor_execute", _catch)
    try:
        connection.execute(statement, values or {})
    except _Caught as caught:
        return caught.args
    finally:
        sa.event.remove(connection, "before_cursor_execute", _catch)
    raise AssertionError("SQLAlchemy sent nothing")


def _catch(_connection: Any, _cursor: Any, sql: str, parameters: Any, _context: Any, _many: bool) -> NoReturn:
    raise _Caught(sql, parameters)


@dataclass(frozen=True)
class Planned:
    """A statement of a claim or a settle, as it is sent, and its plan."""

    name: str
    sql: str
    plan: Plan
    by_keys: bool
    """Whether it finds rows by their keys. Those few may be sorted."""

    @property
    def reads(self) -> list[TableRead]:
        """Without the table of owners, of which one row is read by its key."""
        return [read for read in self.plan.reads if read.table != OWNER_TABLE]

    @property
    def costs(self) -> str:
        """What it does that takes long in a large table; empty: nothing."""
        costs = [f"reads all of {read.table}" for read in self.reads if read.is_scan]
        if self.plan.sorts and not self.by_keys:
            costs.append("sorts rows of the table before it takes the first")
        return ", and ".join(costs)


def plan_findings(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """What the plan of each statement means, whether the index is there, and whether this user may run them all: a
    database checks that when it plans them. Without rows in the table there is no plan of a statement that needs keys.
    """
    backend, refused, owner = subject.backend, list[str](), NOBODY
    rows = connection.scalar(stored_jobs.count(backend.source, (), SMALL_TABLE_ROWS)) or 0
    if backend.by_lease:
        with _noted(connection, subject, "read the owners", refused):
            # A planner may find out that a statement for a dead owner reaches no row.
            owner = connection.scalar(owners.living(backend.owners)) or NOBODY
        with _noted(connection, subject, "register", refused):
            subject.inspection.plan(connection, *as_sent(connection, owners.register_none(backend.owners)))
    for phase in subject.phases(connection, owner):
        by_keys = any(isinstance(value, list) for value in phase.parameters.values())
        with _noted(connection, subject, phase.name, refused):
            sql, parameters = as_sent(connection, phase.statement, phase.parameters)
            plan = subject.inspection.plan(connection, sql, parameters)
            if rows or not by_keys:
                subject.planned.append(Planned(phase.name, sql, plan, by_keys))
    yield from (_plan_finding(found, is_small=rows < SMALL_TABLE_ROWS) for found in subject.planned)
    if backend.has_side_car:  # the table must not be altered; the right to lock its rows is checked when that is done
        with _noted(connection, subject, "lock rows", refused):
            connection.execute(stored_jobs.lock_none(backend.source)).close()
    else:
        yield _index_finding(connection, subject, is_small=rows < SMALL_TABLE_ROWS)
    if refused:
        says = f"this user may not {', '.join(refused)}, as a consumer must"
        step = "explain with a consumer's account, or grant what docs/security.md has for one"
        yield Finding("rights", "will not work", f"{says}: {step}")
    else:
        yield Finding("rights", "ok", "this user may read and write the table of jobs as it must")


@contextmanager
def _noted(connection: sa.Connection, subject: Subject, name: str, refused: list[str]) -> Iterator[None]:
    """Note a statement that this user may not run: the refusal ends no more than the block."""
    try:
        with connection.begin_nested():
            yield
    except sa.exc.DBAPIError as error:
        if not subject.backend.dialect.errors.refuses_account(error):
            raise
        refused.append(f"{name!r} ({reason(error)})")
    except sa.exc.StatementError:  # a type that writes no NULL as a key: this is asked when the table has a row
        pass


def _plan_finding(found: Planned, *, is_small: bool) -> Finding:
    check = f"plan of {found.name}"
    if not found.reads:
        return Finding(check, "not known", "not known, because no owner lives for whom it could reach a row")
    if found.costs and is_small:
        return Finding(check, "ok", f"it {found.costs}: that costs little in a table as small as this one")
    if found.costs:
        return Finding(check, "warning", f"it {found.costs}, each time: see the finding on the index")
    how = (f"{read.table} {f'through {read.index}' if read.index else 'without an index'}" for read in found.reads)
    return Finding(check, "ok", f"it reads {', '.join(how)}")


def _index_finding(connection: sa.Connection, subject: Subject, *, is_small: bool) -> Finding:
    """Whether the table has the index that claims read. In any order that is the index of the default order."""
    source, selection = subject.backend.source, subject.plan.selection
    is_costly = any(found.costs for found in subject.planned)
    keys = () if subject.backend.key_rows is None else subject.backend.key_rows.of_jobs
    lack = missing_index(connection, source, (*keys, *(selection.order or source.default_order)))
    if lack is not None and not lack.statements:
        return Finding("index", "warning", lack.effect)
    if lack is not None and (is_costly or is_small):
        return Finding("index", "warning", f"{lack.effect}: add one", (lack.ddl,))
    if lack is not None:
        return Finding("index", "ok", f"the plan needs no other index, but in general {lack.effect}", (lack.ddl,))
    says = "the table has the index that claims read"
    if not (selection.order or selection.in_sweeps):
        why = "not with a `where`, nor with a key or a priority that is no whole number"
        says += f", but no consumer begins at a random place in it: {why}; leave out --any-order (order_by=())"
    elif is_small or not is_costly:
        return Finding("index", "ok", says)
    elif claim_index(source, selection.order or source.default_order) is None:
        says = "claimjobs can name no index for this order: add one with the columns of `where`, then of the order"
    else:
        says += ", but the plan does not use it: let the database learn about the table (ANALYZE), and put the columns "
        says += "of `where` into an index with the order"
    return Finding("index", "warning", says)
