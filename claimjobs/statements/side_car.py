"""Claims in a table beside the one that holds the jobs: `source` is the user's table, `claims` the other one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.statements.find import SUSPECT, Selection, first
from claimjobs.statements.mark import ownership
from claimjobs.statements.owners import alive
from claimjobs.table.columns import UNCLAIMED
from claimjobs.table.roles import Roles

ATTEMPTS: Final = "claimjobs_attempts"
"""The last column of a job: how often it has failed."""


@dataclass(frozen=True)
class SideCarJoin:
    """The user's table and its claims, in words of this database, by this clock."""

    source: Roles
    claims: Roles
    dialect: Dialect
    now: sa.ColumnElement[Any]

    @property
    def same_key(self) -> sa.ColumnElement[bool]:
        """The predicate of a row of each that belong together."""
        return sa.and_(*(ours == theirs for ours, theirs in zip(self.claims.key, self.source.key, strict=True)))

    def told(self, expression: Any) -> sa.ScalarSelect[Any]:
        """What the claim on a row says; NULL where there is none.

        A subquery for each row, through the primary key, and no join: a planner that may choose how to join reads all
        claims before it returns the first row (MariaDB always, MySQL where it believes they are few). And a user's
        predicate, which stands beside it, may name columns plainly: those of the claims are not in sight.
        """
        return sa.select(expression).where(self.same_key).correlate(self.source.table).scalar_subquery()

    @property
    def company(self) -> sa.ColumnElement[int]:
        """How suspect a job is that may be claimed; less than 0: it may not."""
        suspect = self.claims.need("suspect", "claiming")
        free = sa.case((self.claims.due(self.now), suspect), else_=-1)
        return sa.func.coalesce(self.told(free), 0, type_=sa.Integer)

    @property
    def attempts(self) -> sa.Column[Any]:
        """Where it is counted how often a job has failed."""
        return self.claims.need("attempts", "claiming")


def find(pair: SideCarJoin, selection: Selection) -> sa.Select[Any]:
    """The first `limit` rows that are ready and that no claim is in the way of, in order: keys, how suspect each is."""
    return first(sa.select(*pair.source.key, pair.company.label(SUSPECT)).where(pair.company >= 0), selection)


def lock(pair: SideCarJoin, selection: Selection) -> sa.Select[Any]:
    """Lock the first `size` of the `candidates` that nobody else has locked, and that are still ready: their keys.

    What it knows of the claims may be older than the locks. Whoever goes on with these keys asks again.
    """
    source = pair.source
    rows = sa.select(*source.key).where(selection.ready, pair.company >= 0)
    picked = pair.dialect.only_candidates(rows, source.key, selection.order, source.key_index)
    return picked.limit(sa.bindparam("claimjobs_size", type_=sa.Integer)).with_for_update(
        skip_locked=True, key_share=True, of=source.table
    )


def claim_keys(pair: SideCarJoin, owners: sa.Table) -> sa.Executable:
    """Make those of `keys` that no claim is in the way of claimed by `me`; none if `me` was declared dead.

    New keys are inserted. A key that somebody else inserts at the same moment is waited for, and left to them. All
    insert in the order of the keys, so that no two wait for each other.
    """
    values = ownership(pair.claims, pair.now)
    fresh = {**values, pair.claims.need("run_at", "claiming"): pair.now}
    told = [sa.literal(value, column.type) if isinstance(value, str) else value for column, value in fresh.items()]
    rows = (
        sa.select(*pair.source.key, *told)
        .where(pair.dialect.among(pair.source.key, "claimjobs_keys"), pair.company >= 0, alive(owners))
        .order_by(*pair.source.key)
    )
    # The state comes last: where assignments count one after the other, what follows it would see it changed.
    ordered = dict(reversed(values.items()))
    return pair.dialect.upsert(
        pair.claims.table, [*pair.claims.key, *fresh], rows, values=ordered, guard=pair.claims.due(pair.now)
    )


def claimed(pair: SideCarJoin, selection: Selection, columns: Sequence[Any]) -> sa.Select[Any]:
    """These columns of the rows of `keys` that `me` has claimed and that are there and still ready; and how often each
    failed."""
    # Not as a condition: an index that leads to all that is ours would be walked for each row.
    attempts = pair.told(sa.case((pair.claims.mine, pair.attempts)))
    return _rows(pair, columns, attempts).where(selection.ready, attempts.is_not(None))


def free(pair: SideCarJoin, columns: Sequence[Any]) -> sa.Select[Any]:
    """These columns of the rows of `keys` that no claim is in the way of; and how often each failed."""
    return _rows(pair, columns, sa.func.coalesce(pair.told(pair.attempts), 0)).where(pair.company >= 0)


def note(pair: SideCarJoin) -> sa.Executable:
    """Insert an unclaimed row for those of `keys` that have none, so that an outcome can be written into it."""
    run_at = pair.claims.need("run_at", "claiming")
    rows = sa.select(*pair.source.key, pair.now).where(pair.dialect.among(pair.source.key, "claimjobs_keys"))
    columns = [*pair.claims.key, run_at]
    return pair.dialect.upsert(pair.claims.table, columns, rows.order_by(*pair.source.key), values={}, guard=sa.true())


def remove(pair: SideCarJoin) -> sa.Delete:
    """Done, and not kept: the rows `keys` leave the user's table."""
    source, dialect = pair.source, pair.dialect
    return dialect.reach(dialect.delete(source.table), source.key, source.key_index)


def of_jobs(pair: SideCarJoin, where: Sequence[sa.ColumnElement[bool]]) -> sa.ColumnElement[bool]:
    """The predicate of a claim on a row of the user's table for which all this holds."""
    return sa.exists().where(pair.same_key, *where).correlate(pair.claims.table)


def waiting(pair: SideCarJoin) -> sa.Select[Any]:
    """One row: `jobs`, the rows that are unclaimed; `oldest` (the earliest run_at, if any), `now`."""
    run_at, claims = pair.source.run_at, pair.claims
    oldest = sa.null() if run_at is None else sa.func.min(run_at)
    counts: tuple[Any, ...] = (sa.func.count().label("jobs"), oldest.label("oldest"), pair.now.label("now"))
    held = sa.exists().where(pair.same_key, ~claims.state.is_(UNCLAIMED)).correlate(pair.source.table)
    return sa.select(*counts).select_from(pair.source.table).where(~held)


def _rows(pair: SideCarJoin, columns: Sequence[Any], attempts: Any) -> sa.Select[Any]:
    rows = sa.select(*columns, attempts.label(ATTEMPTS))
    return rows.where(pair.dialect.among(pair.source.key, "claimjobs_keys"))
