"""Owners: register, heartbeat, pause, sleep, wake, declare dead, and find the jobs that they hold."""

from __future__ import annotations

import os
import socket
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.dialects.types import Instant, database_now
from claimjobs.statements.find import LIMIT, Selection, counted, skip_locked
from claimjobs.table.claim_rows import ME
from claimjobs.table.columns import CLAIMED
from claimjobs.table.definitions import FIRST_OWNER
from claimjobs.table.roles import ColumnRoles

RECORDED_AS: Final = sa.bindparam("claimjobs_claims", type_=sa.String)
"""The name of the table of jobs in the rows of its owners: `ColumnRoles.recorded_as`."""


def is_used(owners: sa.Table, dialect: Dialect, is_recorded: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Whether somebody used the id `me` before, whose row is gone: a claim of it `is_recorded`, or a session has it."""
    return sa.select(sa.or_(dialect.sessions.lock_holder(owners, ME).is_not(None), is_recorded))


def register(owners: sa.Table) -> sa.Insert:
    """Insert an owner (`host`, `pid`, `claims`, `lease`). The database gives it the next id, if it has none."""
    return sa.insert(owners)


def register_none(owners: sa.Table) -> sa.Insert:
    """Insert no owner, with each column, which needs the rights to do so. For `explain`."""
    columns = owners.columns
    return sa.insert(owners).from_select(columns.keys(), sa.select(*columns).where(sa.false()))


def largest_id(owners: sa.Table) -> sa.Select[Any]:
    """The largest id of an owner; NULL: there is none."""
    return sa.select(sa.func.max(owners.c.id))


def beat(owners: sa.Table) -> sa.Update:
    """Write a heartbeat of `me`, which is awake. It writes no row if `me` was declared dead, or is another process.

    After a failover that lost a registration the database may give its id to another owner.
    """
    mine = sa.and_(me(owners), of_process(owners), owners.c.died.is_(None))
    return sa.update(owners).where(mine).values(beat=database_now(), asleep=None)


def locked(owners: sa.Table) -> sa.Update:
    """Write which `session` has the session lock of `me`, and when its server started (`since`). NULL: it has none."""
    session, since = sa.bindparam("session", type_=sa.BigInteger), sa.bindparam("since", type_=Instant)
    return sa.update(owners).where(me(owners)).values(session=session, server_since=since)


def expect(owners: sa.Table) -> sa.Update:
    """Expect the owner `me`, whose last heartbeat is `beat`, within a lease from now; until then only its lease counts.

    For an owner that could not write a heartbeat while another server took over.
    """
    unchanged = owners.c.beat == sa.bindparam("claimjobs_beat", type_=Instant)
    expected = sa.update(owners).where(me(owners), unchanged, owners.c.died.is_(None))
    return expected.values(beat=database_now(), server_since=None)


def alive(owners: sa.Table) -> sa.ColumnElement[bool]:
    """The predicate that `me` was not declared dead. It guards the statements that write for this owner."""
    return sa.exists().where(me(owners), owners.c.died.is_(None))


def leave(owners: sa.Table) -> sa.Delete:
    """Delete the owner `me`."""
    return sa.delete(owners).where(me(owners))


def everyone(owners: sa.Table, dialect: Dialect) -> sa.Select[Any]:
    """All owners of the queue `claims`, each with the session that holds its lock, and the database's time."""
    holder = dialect.sessions.lock_holder(owners, owners.c.id).label("holder")
    columns = (*owners.columns, holder, database_now().label("now"))
    return sa.select(*columns).where(owners.c.claims == RECORDED_AS).order_by(owners.c.id)


def living(owners: sa.Table) -> sa.Select[Any]:
    """The id of an owner that was not declared dead; NULL: there is none."""
    return sa.select(sa.func.min(owners.c.id)).where(owners.c.died.is_(None))


def of_other_tables(owners: sa.Table, recorded_as: str) -> sa.Select[Any]:
    """The ids of owners that claim from another table by their row."""
    return sa.select(owners.c.id).where(owners.c.claims != recorded_as)


def sessions_of(owners: sa.Table, dialect: Dialect) -> sa.Select[Any]:
    """The session that holds the lock of the owner `me`, and the one that the owner has written as its own."""
    holder = dialect.sessions.lock_holder(owners, owners.c.id).label("holder")
    return sa.select(holder, owners.c.session).where(me(owners))


def seize(owners: sa.Table) -> sa.Select[Any]:
    """Lock and read the row of the owner `me`, before it is declared dead. If another has it locked, no row returns."""
    columns = (*owners.columns, database_now().label("now"))
    return sa.select(*columns).where(me(owners)).with_for_update(skip_locked=True)


def claims_of(owners: sa.Table) -> sa.Select[Any]:
    """The table from which the owner `me` claims, and how it records that."""
    return sa.select(owners.c.claims, owners.c.kind, owners.c.sees).where(me(owners))


def silent(owners: sa.Table, dialect: Dialect, now: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """The predicate of an owner whose lease is over, or whose heartbeat is in the future: the clock was set back."""
    ahead = owners.c.beat > dialect.later(now, owners.c.lease)
    return sa.or_(dialect.later(owners.c.beat, owners.c.lease) < now, ahead)


def declare_dead(owners: sa.Table) -> sa.Update:
    """Declare `me` dead. From then on no claim and no heartbeat of this owner succeeds."""
    return sa.update(owners).where(me(owners), owners.c.died.is_(None)).values(died=database_now())


def held(roles: ColumnRoles) -> sa.Select[Any]:
    """The keys of all jobs whose row says that `me` holds them."""
    return sa.select(*roles.key).where(roles.mine)


def to_reclaim(roles: ColumnRoles) -> sa.Select[Any]:
    """Lock the jobs that `me` holds and nobody else has locked: their keys, then attempts. They are reclaimed next."""
    attempts = sa.literal(0) if roles.attempts is None else counted(roles.attempts)
    return skip_locked(sa.select(*roles.key, attempts).where(roles.mine).order_by(*roles.key), roles)


def claimed_by_nobody(roles: ColumnRoles) -> sa.ColumnElement[bool]:
    """The predicate of a row that is claimed without an owner's id.

    No claim leaves such a row: it was written by hand or by another program. No owner has an id below 1.
    """
    owner = roles.need("owner_id", "looking for owners")
    return sa.and_(roles.state.row_says(CLAIMED), sa.or_(owner.is_(None), owner < 1))


def ownerless(roles: ColumnRoles) -> sa.Select[Any]:
    """Lock `limit` rows that are claimed without an owner and that nobody else has locked: their keys."""
    return skip_locked(sa.select(*roles.key).where(claimed_by_nobody(roles)).order_by(*roles.key).limit(LIMIT), roles)


def unknown(roles: ColumnRoles, owners: sa.FromClause) -> sa.Select[Any]:
    """The ids of owners that hold jobs and have no row: a claim of theirs was committed after their row was deleted.

    Ids below ours belong to other programs, which may claim jobs of the same table.
    """
    owner = roles.owner_id
    if owner is None:  # no owner holds a job
        return sa.select(sa.literal(0)).where(sa.false())
    known = sa.exists().where(owners.c.id == owner)
    ours = sa.and_(roles.state.job_is(CLAIMED), owner >= FIRST_OWNER)
    return sa.select(owner).where(ours, ~known).distinct()


def this_process() -> dict[str, Any]:
    """The parameters that name this process, with the values of its owners."""
    return {"claimjobs_host": socket.gethostname()[:255], "claimjobs_pid": os.getpid()}


def of_process(owners: sa.Table) -> sa.ColumnElement[bool]:
    """The predicate of the owners that `this_process` registered."""
    host, pid = sa.bindparam("claimjobs_host", type_=sa.String), sa.bindparam("claimjobs_pid", type_=sa.Integer)
    return sa.and_(owners.c.host == host, owners.c.pid == pid)


def me(owners: sa.Table) -> sa.ColumnElement[bool]:
    """The predicate of the row of the owner `me`."""
    return owners.c.id == ME


# --- a row of the table of queues says that nobody claims from a table -------------------------------------


def paused(queues: sa.Table, recorded_as: str) -> sa.Select[Any]:
    """Since when the queue is paused, why, and the database's time. No row: it is not paused."""
    is_paused = sa.and_(queues.c.claims == recorded_as, queues.c.paused.is_not(None))
    return sa.select(queues.c.paused, queues.c.reason, database_now().label("now")).where(is_paused)


def resumed(queues: sa.Table, recorded_as: str) -> sa.ColumnElement[Any]:
    """A scalar that is NULL while the queue is paused."""
    is_paused = sa.exists().where(queues.c.claims == recorded_as, queues.c.paused.is_not(None))
    return sa.select(sa.literal(1)).where(~is_paused).scalar_subquery()


def pause(queues: sa.Table, recorded_as: str, reason: str | None) -> sa.Update:
    """Pause a queue that has a row. If it is paused already, only the reason changes."""
    since = sa.func.coalesce(queues.c.paused, database_now())
    return sa.update(queues).where(queues.c.claims == recorded_as).values(paused=since, reason=reason)


def pause_first(queues: sa.Table, recorded_as: str, reason: str | None) -> sa.Insert:
    """Pause a queue that has no row."""
    return sa.insert(queues).values(claims=recorded_as, paused=database_now(), reason=reason)


def resume(queues: sa.Table, recorded_as: str) -> sa.Delete:
    """Resume a queue."""
    return sa.delete(queues).where(queues.c.claims == recorded_as)


# --- idle owners: they mark themselves as asleep, check for work now and then, and are woken ---------------


def mark_asleep(owners: sa.Table) -> sa.Update:
    """Write a heartbeat of `me`, which sleeps until its next one. It writes no row if `me` was declared dead."""
    now = database_now()
    asleep = sa.func.coalesce(owners.c.asleep, now)
    return sa.update(owners).where(me(owners), owners.c.died.is_(None)).values(beat=now, asleep=asleep)


def note_unclaimable(owners: sa.Table, rows: int) -> sa.Update:
    """Write how many rows `me` leaves, because no claim can take them."""
    return sa.update(owners).where(me(owners)).values(unclaimable=rows)


def check(
    owners: sa.Table, has_work: sa.ColumnElement[Any] | None, dialect: Dialect, unknown: sa.Select[Any] | None = None
) -> sa.Select[Any]:
    """What an idle owner checks: whether there is work, and how many other owners are awake.

    `has_work`: a scalar that is NULL if there is no work. None: this check is not about work. `unknown`: the ids of
    owners that hold jobs and have no row in `owners.alias("known")`, which are not the rows that are counted. With it
    the check is also whether there is something to reclaim: owners that seem dead, and jobs of unknown owners. Session
    locks are checked only for owners that are awake: an owner that sleeps holds no job.
    """
    is_other = owners.c.id != ME
    columns = [
        (sa.literal(0) if has_work is None else sa.case((has_work.is_not(None), 1), else_=0)).label("work"),
        sa.func.count(sa.case((sa.and_(is_other, owners.c.asleep.is_(None)), 1))).label("awake"),
    ]
    if unknown is not None:
        holder = dialect.sessions.lock_holder(owners, owners.c.id)
        lock_lost = sa.and_(owners.c.asleep.is_(None), owners.c.server_since.is_not(None), holder.is_(None))
        dead = sa.or_(owners.c.died.is_not(None), silent(owners, dialect, database_now()), lock_lost)
        others = sa.func.count(sa.case((sa.and_(is_other, dead), 1)))
        columns.append((others + sa.case((sa.exists(unknown), 1), else_=0)).label("unwell"))
    return sa.select(*columns).select_from(owners).where(owners.c.claims == RECORDED_AS)


def any_due(source: ColumnRoles, selection: Selection) -> sa.ColumnElement[Any]:
    """A scalar that is NULL if no job is due.

    It has the order of a claim, so that the planner uses the claim index. Without an order the planner may read the
    whole table, which can be long and hold only done jobs.
    """
    first = sa.select(sa.literal(1)).select_from(source.table).where(selection.candidate)
    return first.order_by(*selection.order).limit(1).scalar_subquery()


def wake(owners: sa.Table, dialect: Dialect, inserted: str | None = None) -> sa.Select[Any]:
    """Wake up to `number` idle owners, chosen at random: the sessions to interrupt then (see `Sessions.wake`).

    `inserted`: the table into which jobs were inserted; nobody is woken if its trigger does that.
    """
    asleep = sa.select(owners.c.id).where(owners.c.claims == RECORDED_AS, owners.c.asleep.is_not(None))
    if inserted is not None and dialect.no_wake_trigger is None:
        asleep = asleep.where(sa.not_(dialect.table_rules.has_trigger(inserted)))
    # A subquery of its own: the planner must not call the function for rows that the LIMIT leaves out.
    number = sa.bindparam("claimjobs_number", type_=sa.Integer)
    chosen = asleep.order_by(sa.func.random()).limit(number).subquery("chosen")
    return sa.select(dialect.sessions.wake(owners, chosen.c.id))
