"""The plans of a claim and of a settle, and the index that they need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import sqlalchemy as sa

from claimjobs.claim.strategy import Phase
from claimjobs.dialects.inspection import Plan, TableRead
from claimjobs.explain.sent import as_sent
from claimjobs.explain.subject import Subject
from claimjobs.findings import Finding, PhaseReport
from claimjobs.table.claim_index import claim_index, missing_index
from claimjobs.table.definitions import OWNER_TABLE


class Planned(NamedTuple):
    """A phase and its plan."""

    phase: Phase
    sql: str
    plan: Plan

    @property
    def report(self) -> PhaseReport:
        """What is shown of it."""
        return PhaseReport(self.phase.name, self.sql, self.plan.text)

    @property
    def reads(self) -> list[TableRead]:
        """Without the table of owners, of which one row is read by its key."""
        return [read for read in self.plan.reads if read.table != OWNER_TABLE]

    @property
    def sorts(self) -> bool:
        """Whether it sorts rows of a table. The few rows that are found by their keys may be sorted."""
        return self.plan.sorts and not any(isinstance(value, list) for value in self.phase.parameters.values())

    @property
    def is_costly(self) -> bool:
        """Whether it reads a whole table or sorts rows of a table."""
        return self.sorts or any(read.is_scan for read in self.reads)


def planned(connection: sa.Connection, subject: Subject) -> Iterator[Planned]:
    """Each phase with its plan. Without rows in the table only those that need no keys."""
    keys = subject.some_keys(connection)
    for phase in subject.phases(subject.some_owner(connection), keys):
        if keys or [] not in phase.parameters.values():
            sql, parameters = as_sent(connection, phase.statement, phase.parameters)
            yield Planned(phase, sql, subject.inspection.plan(connection, sql, parameters))


def plan_finding(found: Planned, *, is_small: bool) -> Finding:
    """What a phase's plan means."""
    costs = [f"reads all of {read.table}{_where(read)}{_about(read)}" for read in found.reads if read.is_scan]
    if found.sorts:
        costs.append("sorts rows of the table before it takes the first")
    check = f"plan of {found.phase.name}"
    if not found.reads:
        return Finding(check, "not known", "not known, because no owner lives for whom it could reach a row")
    if not costs:
        reads = ", ".join(map(_through, found.reads))
        are_small = any(read.are_small for read in found.reads)
        return Finding(check, "ok", f"it reads {reads}" + ("" if are_small else ", and sorts nothing"))
    if is_small:
        return Finding(check, "ok", f"it {', and '.join(costs)}: that costs little in a table as small as this one")
    return Finding(check, "warning", f"it {', and '.join(costs)}, each time: see the finding on the index")


def index_finding(connection: sa.Connection, subject: Subject, *, is_costly: bool, is_small: bool) -> Finding:
    """Whether the table has the index that claims read. In any order that is the index of the default order."""
    source = subject.backend.source
    lack = missing_index(connection, source, subject.plan.selection.order or source.default_order)
    if lack is not None and (is_costly or is_small):
        return Finding("index", "warning", f"{lack.effect}: add one", (lack.ddl,))
    if lack is not None:
        return Finding("index", "ok", f"the plan needs no other index, but in general {lack.effect}", (lack.ddl,))
    if is_costly and not is_small:
        return Finding("index", "warning", _unhelped(subject))
    return Finding("index", "ok", "the table has the index that claims read")


def _unhelped(subject: Subject) -> str:
    """What to do where the usual index is there, or cannot be told, and the plan is costly nevertheless."""
    if not subject.plan.selection.order:
        return "the table has the index that claims read, but in any order the plan does not use it: see `any order`"
    if claim_index(subject.backend.source, subject.plan.selection.order) is None:
        return (
            "claimjobs can name no index for this order: add one with the columns of `where`, then those of the order"
        )
    return (
        "the table has the index that claims read, but the plan does not use it: "
        "let the database learn about the table (ANALYZE), and put the columns of `where` into an index with the order"
    )


def _about(read: TableRead) -> str:
    return "" if read.rows is None else f" (about {read.rows:,} rows)"


def _through(read: TableRead) -> str:
    by = f"through {read.index}" if read.index else "without an index"
    if read.are_small:
        by = "as a whole, because little is in it,"
    return f"{read.table} {by}{_where(read)}"


def _where(read: TableRead) -> str:
    """Which partitions are read. They are in the order of their times, so the first and the last say which."""
    names = read.partitions
    if len(names) > 1:
        return f" in {len(names)} partitions ({names[0]} .. {names[-1]})"
    return f" in the partition {names[0]}" if names else ""
