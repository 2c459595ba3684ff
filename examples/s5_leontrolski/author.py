"""The article's loop: one event at a time, claimed by one statement.

MySQL has no UPDATE with a CTE that locks, and no RETURNING: there it is two statements in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.article import Connection
from examples.harness import first, on_mysql, run

TO_PROCESS, PROCESSING, PROCESSED, ERRORED = range(4)

NEXT = "select id from event_queue where status = %s order by updated_at limit 1 for update skip locked"
CLAIM = f"""
with ids as materialized ({NEXT})
update event_queue set status = %s, updated_at = now() where id = any(select id from ids) returning id
"""
UNFENCED = f"update event_queue set status = %s, updated_at = now() where id in ({NEXT}) returning id"
"""The statement without MATERIALIZED: a plan may run this subquery more than once."""

Process = Callable[[Any], None]


def work(db: Connection, process: Process) -> int:
    """Claim, process, set the status, until no event can be claimed; return how many."""
    count = 0
    while (event := next_event(db)) is not None:
        try:
            process(event)
            set_status(db, event, PROCESSED)
        except ValueError:  # the one that the examples' handlers raise
            set_status(db, event, ERRORED)
        count += 1
    return count


def next_event(db: Connection) -> Any:
    """Claim the next event; return its key, or None if others have claimed all."""
    found = _select_and_update(db) if on_mysql(db) else first(db, CLAIM, TO_PROCESS, PROCESSING)
    db.commit()
    return found and found[0]


def _select_and_update(db: Connection) -> Any:
    found = first(db, NEXT, TO_PROCESS)
    if found:
        _update(db, found[0], PROCESSING)
    return found


def set_status(db: Connection, event: Any, status: int) -> None:
    """Write the status of an event."""
    _update(db, event, status)
    db.commit()


def _update(db: Connection, event: Any, status: int) -> None:
    now = "utc_timestamp(6)" if on_mysql(db) else "now()"
    run(db, f"update event_queue set status = %s, updated_at = {now} where id = %s", status, event)
