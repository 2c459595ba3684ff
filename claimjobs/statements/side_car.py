"""A side-car: `source` is the user's table with the jobs, `side_car` is the second table, with their outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import sqlalchemy as sa

from claimjobs.dialects import Dialect, Key
from claimjobs.statements.find import SUSPECT
from claimjobs.statements.settle import values_by_key
from claimjobs.statements.stored_jobs import Predicates, counts
from claimjobs.table.claim_rows import ME, ClaimRows
from claimjobs.table.columns import DONE, UNCLAIMED
from claimjobs.table.roles import ColumnRoles

ATTEMPTS: Final = "claimjobs_attempts"
"""How many attempts of a job have failed."""


@dataclass(frozen=True)
class SideCarJoin:
    """The user's table and its side-car."""

    source: ColumnRoles
    side_car: ColumnRoles
    dialect: Dialect
    now: sa.ColumnElement[Any]

    @property
    def same_key(self) -> sa.ColumnElement[bool]:
        """The predicate of a row and its entry in the side-car."""
        return sa.and_(*(ours == theirs for ours, theirs in zip(self.side_car.key, self.source.key, strict=True)))

    def in_entry(self, expression: Any) -> sa.ScalarSelect[Any]:
        """An expression over the entry of a row in the side-car; NULL if it has none.

        It is a subquery for each row, through the primary key, and no join. With a join the planner may read them all
        before the first row (MariaDB always, MySQL if it believes that they are few). And in a subquery the columns of
        the side-car do not clash with those that a user's predicate names without their table.
        """
        return sa.select(expression).where(self.same_key).correlate(self.source.table).scalar_subquery()

    @property
    def group_size(self) -> sa.ColumnElement[int]:
        """The size of the group of suspects of a job that may be claimed. Less than 0: the job may not be claimed."""
        size = sa.case((self.side_car.due(self.now), self.side_car.need("suspect", "claiming")), else_=-1)
        return sa.func.coalesce(self.in_entry(size), 0, type_=sa.Integer)

    @property
    def attempts(self) -> sa.Column[Any]:
        """The counter of failed attempts."""
        return self.side_car.need("attempts", "claiming")


def recheck(pair: SideCarJoin) -> sa.Select[Any]:
    """Those of the rows `keys` that may still be claimed: their keys, failed attempts, sizes of their groups.

    One statement looks at claim rows and at the side-car: a settle may bring a job from one to the other in between.
    """
    source, attempts = pair.source, sa.func.coalesce(pair.in_entry(pair.attempts), 0)
    rows = sa.select(*source.key, attempts.label(ATTEMPTS), pair.group_size.label(SUSPECT))
    return rows.where(pair.dialect.among(source.key, "claimjobs_keys"), pair.group_size >= 0, source.in_no_claim_row)


def note(pair: SideCarJoin) -> sa.Executable:
    """Insert an unclaimed row for those of `keys` that have none: outcomes are written into it."""
    run_at = pair.side_car.need("run_at", "claiming")
    rows = sa.select(*pair.source.key, pair.now).where(pair.dialect.among(pair.source.key, "claimjobs_keys"))
    columns, ordered = [*pair.side_car.key, run_at], rows.order_by(*pair.source.key)
    return pair.dialect.upsert(pair.side_car.table, columns, ordered, values={}, guard=sa.true())


def finish(pair: SideCarJoin) -> sa.Executable:
    """Done: keep the keys as done. A claim has written no row of the side-car."""
    side_car = pair.side_car
    # The state is assigned last: MySQL assigns in order, and later expressions would read the new state.
    values = {side_car.need("owner_date", "finishing"): pair.now, **side_car.state.becomes(DONE)}
    fresh = {**values, side_car.need("run_at", "finishing"): pair.now}
    given = [sa.literal(value, column.type) if isinstance(value, str) else value for column, value in fresh.items()]
    rows = sa.select(*pair.source.key, *given).where(pair.dialect.among(pair.source.key, "claimjobs_keys"))
    columns = [*side_car.key, *fresh]
    guard = side_car.state.row_says(UNCLAIMED)
    upsert = pair.dialect.upsert(side_car.table, columns, rows.order_by(*pair.source.key), values=values, guard=guard)
    return upsert.execution_options(preserve_rowcount=True)


def also_write(pair: SideCarJoin, columns: Mapping[Key, Mapping[str, Any]]) -> sa.Update:
    """Write values of columns, of the same ones for each key, into the user's table."""
    source, dialect = pair.source, pair.dialect
    update = sa.update(source.table).values(values_by_key(source, columns))
    return dialect.restrict_to_keys(update, source.key, source.key_index)


def waiting(pair: SideCarJoin, of_queue: Predicates) -> sa.Select[Any]:
    """One row about the unclaimed rows: the columns of `stored_jobs.counts`, and the name of the state.

    A failed job waits by the side-car.
    """
    run_at = pair.side_car.need("run_at", "waiting for a retry")
    waits = sa.exists().where(pair.same_key, run_at > pair.now).correlate(pair.source.table)
    columns = counts(pair.source, pair.now, of_queue, sa.and_(pair.source.run_at_passed(pair.now), ~waits))
    name = sa.literal(UNCLAIMED).label("claimjobs_state")
    return sa.select(*columns, name).select_from(pair.source.table).where(unclaimed(pair))


def unclaimed(pair: SideCarJoin) -> sa.ColumnElement[bool]:
    """The predicate of a row that nobody has claimed and that is neither done nor dead."""
    said = pair.side_car.state.row_says(UNCLAIMED)
    return sa.and_(~sa.exists().where(pair.same_key, ~said).correlate(pair.source.table), pair.source.in_no_claim_row)


def to_reclaim(pair: SideCarJoin) -> sa.Select[Any]:
    """The rows in claim rows of `me` that are neither done nor dead: their keys, then failed attempts."""
    theirs = cast(ClaimRows, pair.source.claim_rows)  # with a side-car each claim is one
    mine = theirs.contain(theirs.of(ME))
    rows = sa.select(*pair.source.key, sa.func.coalesce(pair.in_entry(pair.attempts), 0))
    said = sa.case((pair.side_car.state.row_says(UNCLAIMED), 1), else_=0)
    return rows.where(mine, sa.func.coalesce(pair.in_entry(said), 1) == 1).order_by(*pair.source.key)
