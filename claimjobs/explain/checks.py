"""What ends or delays claims, beside the plans: crashes, failures that cannot be stored, limits of time, poolers."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from claimjobs.errors import StateMissing
from claimjobs.explain.subject import Subject
from claimjobs.findings import Finding
from claimjobs.table.ddl import has_wake_trigger
from claimjobs.table.definitions import OWNER_TABLE
from claimjobs.table.on_done import MARK_LOST, lost_mark
from claimjobs.table.roles import AGAIN


def durability(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """The tables that the server empties after a crash. None if it empties none of them."""
    backend = subject.backend
    tables = [backend.source.table, backend.roles.table]
    if backend.by_lease:
        tables.append(backend.owners)
    if backend.roles.batches is not None:
        tables.append(backend.roles.batches.table)
    for table in dict.fromkeys(tables):
        if fix := tuple(backend.dialect.table_rules.emptied_by_crash(connection, table)):
            says = f"the server writes no log for {table.fullname}, and empties it after a crash: let it write one"
            yield Finding("durability", "warning", says, fix)


def failures(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """What the table lacks to store a failure, or to know that its done jobs may be deleted. None if it has it all."""
    for lack in subject.backend.roles.lacking("attempts", "run_at"):
        fails = "fails for the last time" if isinstance(lack, StateMissing) else "fails"
        yield Finding("failures", "warning", f"a job that {fails} {AGAIN}, because {lack}")
    if fix := lost_mark(connection, subject.table):
        yield Finding("comments", "warning", MARK_LOST, (fix,))


def wake(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Whether an idle consumer is woken when jobs are enqueued, or why not."""
    dialect, declared = subject.backend.dialect, subject.liveness.session_lock
    if not (subject.backend.by_lease or sa.inspect(connection).has_table(OWNER_TABLE, schema=subject.backend.schema)):
        yield Finding("wake", "ok", f"no consumer is woken: there is no table {OWNER_TABLE}; it polls")
    elif subject.plan.changes:
        yield Finding("wake", "ok", "no consumer is woken: a callable gives the predicate; it polls")
    elif declared is False:
        yield _not_woken("session_lock=False says that a pooler shares the sessions")
    elif declared is None and not dialect.sessions.is_as_greeted(connection):
        yield _not_woken("a pooler is in between; if it shares no session, `--session-lock on` lets both work")
    elif not dialect.sessions.locks_are_seen(connection):
        yield _not_woken("primaries do not see each other's locks")
    else:
        who = " by a producer of the same account, or with the right CONNECTION_ADMIN" if dialect.interrupts else ""
        may = "" if subject.backend.by_lease else f", if they have all rights on {OWNER_TABLE}"
        others = "rows that are inserted otherwise are found within some 5 s"
        if has_wake_trigger(connection, subject.backend.source.table):
            others = "a trigger does so at each INSERT"
        yield Finding("wake", "ok", f"`enqueue` wakes idle consumers{who}{may}; {others}")


def _not_woken(why: str) -> Finding:
    return Finding("wake", "warning", f"an idle consumer polls, and a killed one is found only by its lease: {why}")


def time_limits(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Whether the server ends an open transaction that holds jobs before its handler may be called a hang."""
    if subject.backend.by_lease:
        return
    longest = subject.liveness.max_batch_time
    limits = subject.backend.dialect.sessions.idle_limits(connection)
    short = [f"{name} = {seconds:g} s" for name, seconds in limits.items() if seconds < longest]
    if not short:
        yield Finding("time limits", "ok", "the server ends no transaction before max_batch_time")
        return
    says = (
        f"the server ends a transaction that holds a batch for longer ({', '.join(short)}), and its jobs are claimed "
        f"again: a batch may take {longest:g} s (Liveness.max_batch_time); raise the limit for this account, or lower "
        "--max-batch-time below it if no handler takes so long"
    )
    yield Finding("time limits", "warning", says)
