"""Every statement of a job's way, compiled for a database without a server, as a person reads it."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.admin.stored_jobs import STATE
from claimjobs.claim.key_locking import HELD_BACK_SECONDS
from claimjobs.claim.record import record_of
from claimjobs.claim.row_reader import RowReader
from claimjobs.dialects import DIALECTS, Dialect
from claimjobs.dialects.types import Instant, database_now, statement_now
from claimjobs.options import Liveness
from claimjobs.statements import claim_rows, key_rows, owners, settle
from claimjobs.statements import enqueue as inserts
from claimjobs.statements import stored_jobs as stored
from claimjobs.statements.claim import claim, claim_batch, find_and_lock, lock, lock_first, mark
from claimjobs.statements.find import Selection, find, how_many, keyset_order_of
from claimjobs.statements.job_rows import JobRows
from claimjobs.statements.key_rows import KeyStatements
from claimjobs.table.backend import Backend, KeyRows
from claimjobs.table.claim_rows import ME, ClaimRows
from claimjobs.table.definitions import (
    DEFAULT_TABLE,
    FIRST_OWNER,
    article_table,
    batches_table,
    key_table,
    owner_table,
    queues_table,
)
from claimjobs.table.roles import ColumnRoles, roles_of
from docs.sql_format import formatted

URLS: Final = {"postgres": "postgresql+psycopg://", "mysql": "mysql+pymysql://", "mariadb": "mariadb+pymysql://"}
"""Enough to compile for a database; nothing is connected to."""

OURS: Final = "claimjobs_"
"""What the names of parameters begin with that a column of the user's might have; left out here."""
GIVEN: Final = (
    *("me", "size", "limit", "keys", "candidates", "meant", "after_0", "after_1", "d", "e"),
    *("host", "pid", "claims", "lease", "since", "group_size", "until", "number", "seconds", "json"),
    *("per_keys", "rows_wanted", "each", "part_0", "next_at", "rate_at", "held_back"),
)
"""Parameters that differ from run to run. All others are constants of the statement."""
CAST: Final = r"::TIMESTAMP WITH TIME ZONE|::\w+"


def statements(family: str) -> dict[str, str]:
    """Every statement by its name, as a person reads it."""
    return {name: readable(statement, family) for name, statement in built(family).items()}


def built(family: str) -> dict[str, Any]:
    """Every statement by its name, as SQLAlchemy has it."""
    jobs, now = article_table(), database_now()
    roles, dialect = roles_of(jobs), _dialect(family)
    selection, target = Selection(roles.due(now), roles.default_order), settle.SettleGuard(roles, dialect, roles.mine)
    return {
        **_claims(roles, dialect, selection, now),
        "done": settle.delete(target),
        "kept": settle.keep(target, now),
        "released": settle.release(target),
        "retried": settle.retry(target, now, {1: settle.Failure("ValueError: ...", 0.75)}),
        "dead": settle.mark_dead(target, now, {1: settle.Failure("ValueError: ...")}),
        "suspects": settle.suspect(
            target, now, {key: settle.Failure("ValueError: ...", wait, 2) for key, wait in ((1, 0.75), (2, 0.6))}
        ),
        "still mine": settle.lock_mine(target),
        "enqueue": inserts.insert_rows(roles.table).values(d=sa.bindparam("d"), e=sa.bindparam("e")),
        **_life(roles, dialect),
        **_reclaiming(roles, dialect),
        "list": _list(roles, dialect),
        "unfinished": stored.lock_unfinished(roles, dialect),
        "cancel": stored.cancel(roles, dialect, now, "cancelled"),
        "not cancelled": stored.unfinished(roles, dialect),
        "revive": stored.retry_dead(roles, dialect, now),
        "drop": stored.delete(roles, dialect, (roles.state.job_is("dead"),)),
        **_clean_up(roles, dialect),
        **{f"batch {name}": statement for name, statement in _per_batch(roles, dialect, now).items()},
        **{f"key {name}": statement for name, statement in _per_key(roles, dialect, selection).items()},
    }


def _list(roles: ColumnRoles, dialect: Dialect) -> Any:
    rows = JobRows(_backend(roles, dialect), database_now())
    columns = [*RowReader(roles, dialect).columns, rows.state.label(STATE)]
    return stored.page(roles, dialect, columns, (rows.in_state("dead"),))


def _per_key(roles: ColumnRoles, dialect: Dialect, selection: Selection) -> dict[str, Any]:
    """The statements of `per_key=PerKey("d", at_most=1)` that have no like above; and of one with a rate."""
    column = sa.Column("d", roles.table.c.d.type, primary_key=True)
    ours = KeyRows(key_table(DEFAULT_TABLE, [column], sa.MetaData()), (roles.table.c.d,), limit=1)
    rows = JobRows(_backend(roles, dialect), database_now())
    by: dict[str, Any] = {"selection": selection, "job_rows": rows, "held": None, "weights": {}, "now": statement_now()}
    built = KeyStatements(ours, roles, dialect, **by)
    make_next = key_rows.make_next(ours, database_now())
    read = RowReader(roles, dialect, known=list(record_of(_backend(roles, dialect)).written)).parts
    return {
        "unknown": built.first_page.keys,
        "unknown after": built.page_after.keys,
        "appear": built.first_page.insert,
        "appear after": built.page_after.insert,
        "next": built.next(after=False),
        "next after": built.next(after=True),
        "claimed": built.claimed,
        "jobs": built.jobs(),
        "lock": lock(roles, dialect, selection, read),
        **({} if "mark" in _claims(roles, dialect, selection, database_now()) else {"mark": _mark(roles, dialect)}),
        "serve": built.serve(moves=True),
        "hold back": built.hold_back(HELD_BACK_SECONDS),
        "waiting": built.waiting,
        "wait": built.wait,
        "end": built.end,
        "left": built.remaining,
        "place": built.next_at_rate,
        "make next": dialect.restrict_to_keys(make_next, ours.key, None),
        "make next given back": dialect.restrict_to_keys(
            key_rows.make_next(ours, database_now(), given_back=True), ours.key, None
        ),
        "make all next": make_next,
        "make next again": built.make_next,
    }


def _finish(target: settle.SettleGuard, ours: ClaimRows) -> Any:
    return settle.and_close(settle.delete(target).returning(*target.roles.key), ours)


def _mark(roles: ColumnRoles, dialect: Dialect) -> Any:
    return mark(roles, dialect, database_now(), owner_table())


def _per_batch(by_row: ColumnRoles, dialect: Dialect, now: Any) -> dict[str, Any]:
    """The statements of claims="batches" that have no like above."""
    ours = ClaimRows(batches_table(), by_row.name, by_row.key, dialect)
    roles = by_row.claimed_in(ours)
    selection = Selection(roles.due(now), roles.default_order, state=roles.state)
    target = settle.SettleGuard(roles, dialect, record_of(_backend(roles, dialect)).guard)
    return {
        **_locks(roles, dialect, selection),
        **{f"{name} after": statement for name, statement in _searches(roles, dialect, selection).items()},
        "record": claim_rows.record(ours, owner_table()),
        "open now": claim_rows.open_now(ours),
        **(_in_pipeline(roles, selection, ours) if dialect.pipelines else {}),
        **({"finish": _finish(target, ours)} if dialect.returns_what_it_writes else {}),
        "close": claim_rows.close(ours),
        "done": settle.delete(target),
        "locked": claim_rows.locked(ours),
        "numbered": claim_rows.numbered(ours),
        "shorten": claim_rows.shorten(ours),
        **({"still mine": settle.lock_mine(target)} if dialect.returns_what_it_writes else {}),
        "used": owners.is_used(owner_table(), dialect, record_of(_backend(roles, dialect)).is_recorded),
        "held": claim_rows.held(ours),
        "close all": claim_rows.close_all(ours),
    }


def _in_pipeline(roles: ColumnRoles, selection: Selection, ours: ClaimRows) -> dict[str, Any]:
    order, read = keyset_order_of(selection), RowReader(roles, ours.dialect).parts
    assert order is not None  # noqa: S101 - the default order can be entered anywhere
    record = record_of(_backend(roles, ours.dialect))
    done = _finish(settle.SettleGuard(roles, ours.dialect, record.guard), ours)
    return {
        "at once": claim_batch(roles, ours.dialect, selection, order, claim_rows=ours, owners=owner_table(), read=read),
        "turn": claim_rows.settle_and_check(done, ours),
    }


def _locks(roles: ColumnRoles, dialect: Dialect, selection: Selection) -> dict[str, Any]:
    read = RowReader(roles, dialect).parts
    if dialect.locks_in_order:
        return {"take": lock_first(roles, dialect, selection, read)}
    if dialect.finds_and_locks_at_once:
        return {"take": find_and_lock(roles, dialect, selection, read)}
    return {"find": find(roles, selection), "lock": lock(roles, dialect, selection, read)}


def _searches(roles: ColumnRoles, dialect: Dialect, selection: Selection) -> dict[str, Any]:
    walk = keyset_order_of(selection)
    assert walk is not None  # noqa: S101 - the default order can be entered anywhere
    found = _locks(roles, dialect, walk.after(selection, dialect))
    return {name: statement for name, statement in found.items() if name != "lock"}


def _clean_up(roles: ColumnRoles, dialect: Dialect) -> dict[str, Any]:
    old, order = stored.old(roles, "done", sa.bindparam("until", type_=Instant())), stored.purge_order(roles)
    return {"old": stored.page(roles, dialect, order, old, order=order), "purge": stored.delete(roles, dialect, old)}


def _life(roles: ColumnRoles, dialect: Dialect) -> dict[str, Any]:
    ours = owner_table()
    row: dict[str, Any] = {name: sa.bindparam(name) for name in ("host", "pid", "claims", "lease", "kind", "sees")}
    names = ("settings", "isolation", "dates", "zone")
    settings = dict(zip(names, map(sa.text, dialect.sessions.settings(Liveness().lock_timeout)), strict=False))
    return {
        **settings,
        "silence": sa.text(dialect.sessions.silence_setting(Liveness().lease)),
        "register": owners.register(ours).values(row),
        "used": owners.is_used(ours, dialect, record_of(_backend(roles, dialect)).is_recorded),
        "hold": sa.select(dialect.sessions.try_session_lock(ours, ME)),
        "shown": sa.select(dialect.sessions.lock_holder(ours, ME)),
        "locked": owners.locked(ours),
        "paused": owners.paused(queues_table(), roles.name),
        "beat": owners.beat(ours),
        "long held": settle.still_mine(settle.SettleGuard(roles, dialect, roles.mine)),
        **({} if dialect.sessions.forget_plans is None else {"plans": dialect.sessions.forget_plans}),
        **_asleep(ours, roles, dialect),
        "held": owners.held(roles),
        "leave": owners.leave(ours),
    }


def _asleep(ours: sa.Table, roles: ColumnRoles, dialect: Dialect) -> dict[str, Any]:
    work = owners.any_due(roles, Selection(roles.due(database_now()), roles.default_order))
    listen = dialect.sessions.listen(FIRST_OWNER)
    listener: Any = dialect.sessions.listener
    interrupts = dialect.interrupts
    return {
        **({} if listen is None else {"listen": listen}),
        "lie down": owners.mark_asleep(ours),
        "check": owners.check(ours, work, dialect),
        "careful": owners.check(ours, work, dialect, owners.unknown(roles, ours.alias("known"))),
        "call": owners.wake(ours, dialect, DEFAULT_TABLE),
        **({"interrupt": dialect.sessions.interrupt(4711), "wait": listener.sleep} if interrupts else {}),
    }


def _reclaiming(roles: ColumnRoles, dialect: Dialect) -> dict[str, Any]:
    ours = owner_table()
    return {
        "lead": sa.select(dialect.sessions.try_leader_lock(ours, roles.table)),
        "look": owners.everyone(ours, dialect),
        "unknown owners": owners.unknown(roles, ours),
        "end session": dialect.sessions.end_session(4711),
        "seize": owners.seize(ours),
        "declare dead": owners.declare_dead(ours),
        "left behind": owners.to_reclaim(roles),
        "claims of": owners.claims_of(ours),
        "holder": owners.sessions_of(ours, dialect),
    }


def _claims(roles: ColumnRoles, dialect: Dialect, selection: Selection, now: Any) -> dict[str, Any]:
    walk = keyset_order_of(selection)
    assert walk is not None  # noqa: S101 - the default order can be entered anywhere
    after = walk.after(selection, dialect)
    read = RowReader(roles, dialect, known=list(record_of(_backend(roles, dialect)).written)).parts
    counts = {"count": how_many(find(roles, selection)), "count after": how_many(find(roles, after))}
    if dialect.claims_in_one_statement:
        one = partial(claim, roles, dialect, now=now, owners=owner_table(), read=read)
        done = settle.delete(settle.SettleGuard(roles, dialect, roles.mine)).returning(*roles.key)
        return {
            "claim": one(selection),
            "claim after": one(after),
            "turn": one(after, settled=done.cte("claimjobs_settled")),
            "turn at head": one(selection, settled=done.cte("claimjobs_settled")),
            **counts,
        }
    marks = {"mark": mark(roles, dialect, now, owner_table())}
    if dialect.finds_and_locks_at_once:
        take = partial(find_and_lock, roles, dialect, read=read)
        return {"take": take(selection), "take after": take(after), **counts, **marks}
    finds = {"find": find(roles, selection), "find after": find(roles, after)}
    return {**finds, "lock": lock(roles, dialect, selection, read), **marks}


def _backend(roles: ColumnRoles, dialect: Dialect) -> Backend:
    return Backend(dialect, roles, roles, owner_table(), "")


def _dialect(family: str) -> Dialect:
    name, driver = ("postgresql", "psycopg") if family == "postgres" else (family, "pymysql")
    return DIALECTS[name](driver)


def compiled(statement: Any, family: str) -> Any:
    """As for a server of the oldest version that is supported, with parameters as `:name`."""
    dialect: Any = sa.create_engine(URLS[family], paramstyle="named").dialect
    dialect.server_version_info = _dialect(family).oldest
    if family == "mysql":
        dialect.supports_for_update_of = True  # learned from a server's version otherwise
    many = isinstance(statement, sa.Insert) and statement.table.name == DEFAULT_TABLE
    return statement.compile(dialect=dialect, for_executemany=many)


def readable(statement: Any, family: str) -> str:
    """SQL with its constants in place, a clause a line."""
    text = compiled(statement, family)
    sql = re.sub(r"__\[POSTCOMPILE_(\w+?)(~~[^\]]*)?\]", r":\1", str(text)).replace(f":{OURS}", ":")
    for name, value in text.params.items():
        if name.removeprefix(OURS) not in GIVEN:
            sql = re.sub(rf"(?<!:):{name}\b({CAST})?", _literal(value), sql)
    return formatted(sql)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, str) else str(value)
