"""Phase 2 of a claim, lock: the candidates that are still free. Some databases find and lock in one statement.

The columns of a job are returned as they are, or several as one text, which the driver reads faster
(docs/decisions/0065). `claimjobs.claim.row_reader` reads both forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.statements.find import PLACE, SIZE, Selection, in_order, numbered, one_after_another, same_key
from claimjobs.statements.owners import alive
from claimjobs.table.columns import CLAIMED
from claimjobs.table.roles import ColumnRoles


class Parts(NamedTuple):
    """The columns of a table that a statement returns."""

    plain: Sequence[sa.Column[Any]]
    joined: Sequence[sa.Column[Any]]
    """These are one text, behind the plain ones. `suspect` is the first of them."""


def parts_of(columns: Sequence[sa.Column[Any]], dialect: Dialect, roles: ColumnRoles) -> Parts:
    """How to return these columns. The key is not joined."""
    joined = [column for column in columns if dialect.from_text(column) and column not in set(roles.key)]
    joined.sort(key=lambda column: column is not roles.suspect)
    return Parts([column for column in columns if column not in set(joined)], joined)


def encoded(
    read: Parts, dialect: Dialect, of: sa.FromClause | None = None, *, last: sa.ColumnElement[int] | None = None
) -> list[sa.ColumnElement[Any]]:
    """The columns to SELECT or to return. `of`: from this subquery, which has the columns of the table.

    `last`: a number at the end, which `last_of` reads.
    """
    plain, joined = ([column if of is None else of.c[column.key] for column in part] for part in read)
    columns = [sa.type_coerce(column, sa.types.NullType()).label(str(column.name)) for column in plain]
    end = [] if last is None else [last]
    if not joined:
        return [*columns, *end]
    text = sa.type_coerce(dialect.joined([*joined, *end]), sa.types.NullType())
    return [*columns, text.label("claimjobs_joined")]


def last_of(row: Sequence[Any]) -> int:
    """The number at the end of a row."""
    return int(str(row[-1]).rpartition(",")[2])


def lock(roles: ColumnRoles, dialect: Dialect, selection: Selection, read: Parts) -> sa.Select[Any]:
    """Lock the first `size` of the `candidates` that nobody else has locked and that are still ready.

    The recheck is needed: between the phases another consumer may have claimed a candidate and committed.
    """
    jobs = sa.select(*encoded(read, dialect)).where(selection.ready)
    picked = dialect.only_candidates(jobs, roles.key, selection.order, roles.key_index)
    return free_ones(picked.limit(SIZE), roles)


def find_and_lock(roles: ColumnRoles, dialect: Dialect, selection: Selection, read: Parts) -> sa.Select[Any]:
    """Find and lock in one statement, for a database that can lock one of two joined tables in the order of the other.

    It returns the columns `read`, and at the end the number of each job among the `limit` candidates.
    """
    candidate = numbered(roles, selection).subquery("candidate")
    wanted = sa.select(*encoded(read, dialect, last=candidate.c[PLACE])).where(selection.ready)
    joined = candidate.join(roles.table, same_key(roles, candidate))
    return dialect.lock_in_order(wanted, joined, SIZE, roles.key_index)


def lock_first(roles: ColumnRoles, dialect: Dialect, selection: Selection, read: Parts) -> sa.Select[Any]:
    """Find and lock in one statement, for a database that `locks_in_order`: it locks each row before it reads the next.

    Rows that it skips because others have locked them are not counted: the number of each job is 0.
    """
    return first_free(sa.select(*encoded(read, dialect, last=sa.literal(0).label(PLACE))), selection, roles)


def first_free(rows: sa.Select[Any], selection: Selection, roles: ColumnRoles) -> sa.Select[Any]:
    """Lock the first `size` rows of a selection that nobody else has locked, for a database that `locks_in_order`."""
    return one_after_another([free_ones(part.limit(SIZE), roles) for part in in_order(rows, selection)], SIZE)


def lock_those(roles: ColumnRoles, dialect: Dialect, predicates: Sequence[sa.ColumnElement[bool]]) -> sa.Select[Any]:
    """Lock those of the rows `keys` for which a user's predicates hold, and return their keys. The predicates hold
    until the transaction ends. So the statement that writes needs no text of the user's.
    """
    rows = dialect.restrict_to_keys(sa.select(*roles.key).where(*predicates), roles.key, roles.key_index)
    return rows.order_by(*roles.key).with_for_update(of=roles.table)


def still_ready(roles: ColumnRoles, dialect: Dialect, selection: Selection) -> sa.Select[Any]:
    """Those of `keys`, which this transaction has locked, that are still ready: sent as a statement of its own, it sees
    what was committed in other tables before the locks were taken.
    """
    return dialect.restrict_to_keys(sa.select(*roles.key).where(selection.ready), roles.key, roles.key_index)


def free_ones(rows: sa.Select[Any], roles: ColumnRoles) -> sa.Select[Any]:
    """Lock these rows, without those that others have locked."""
    return rows.with_for_update(skip_locked=True, key_share=True, of=roles.table)


def mark(roles: ColumnRoles, dialect: Dialect, now: sa.ColumnElement[Any], owners: sa.Table) -> sa.Update:
    """Mark the jobs `keys`, which this transaction has locked, as claimed by `me`; none if `me` was declared dead."""
    update = sa.update(roles.table).where(alive(owners)).values(ownership(roles, now))
    return dialect.restrict_to_keys(update, roles.key, roles.key_index)


def ownership(roles: ColumnRoles, now: sa.ColumnElement[Any]) -> dict[Any, Any]:
    """The values that a claim writes into a job."""
    values = roles.state.becomes(CLAIMED, sa.bindparam("claimjobs_me", type_=sa.Integer))
    if roles.owner_date is not None:
        values[roles.owner_date] = now
    return values
