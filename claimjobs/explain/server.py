"""The server: isolation, other primaries, and who keeps old versions of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from claimjobs.explain.subject import Subject
from claimjobs.findings import Finding

LONG: Final = 60.0
"""Seconds. Who holds a snapshot for longer is a warning."""
SHOWN: Final = 3
"""So many of those who hold a snapshot are named."""


def isolation(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Which isolation a claim has, and other programs beside it."""
    level, dialect = connection.default_isolation_level or "not known", subject.backend.dialect
    says = f"a claim is {dialect.isolation}; sessions of this database are {level} if they choose nothing"
    if level in dialect.reads_that_lock:
        yield Finding("isolation", "warning", f"{says}: their plain reads lock the rows that they read, for claims too")
    else:
        yield Finding("isolation", "ok", says)


def primaries(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """What other primaries mean for claims, if there are any. Raises SeveralPrimaries if these are not safe there."""
    subject.backend.check_primaries(connection)
    if not subject.backend.dialect.sessions.is_one_of_several_primaries(connection):
        return
    says = "this server is one of several primaries: when consumers on two of them claim one job, one claim is refused"
    if subject.plan.selection.in_sweeps:
        yield Finding("primaries", "ok", f"{says}, which is rarer, because each begins at a random place")
    else:
        hint = "which is frequent in one order: if any order will do, say so with --any-order (order_by=())"
        yield Finding("primaries", "warning", f"{says}, {hint}; or let all write to one member")


def any_order(subject: Subject) -> Iterator[Finding]:
    """Whether each consumer begins at a random place, if any order will do. None for a queue with an order."""
    selection = subject.plan.selection
    if selection.in_sweeps:
        yield Finding("any order", "ok", "in any order each consumer begins at a random place")
    elif not selection.order:
        says = (
            "any order gains nothing here, because no random place can be drawn: not with a `where`, with a key or a "
            "priority that is no whole number, or without the claim index; leave out --any-order (order_by=())"
        )
        yield Finding("any order", "warning", says)


def snapshots(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Who keeps rows that are deleted since then from being removed, and for how long already."""
    old = [pin for pin in subject.inspection.pins(connection) if pin.seconds is None or pin.seconds > LONG]
    if not old:
        yield Finding("snapshots", "ok", f"nobody has held a snapshot for longer than {LONG:g} s")
        return
    named = ", ".join(pin.who + ("" if pin.seconds is None else f" for {pin.seconds:,.0f} s") for pin in old[:SHOWN])
    more = f" and {len(old) - SHOWN} more" if len(old) > SHOWN else ""
    says = (
        f"a snapshot is held by {named}{more}: rows deleted since then stay, and claims at the head read them; end it"
    )
    yield Finding("snapshots", "warning", says)
