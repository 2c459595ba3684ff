"""An answer to the author, who would like to be told that his statement is free of races.

It is, as far as many sessions at once can tell, under every plan that Postgres can be talked into, with events moved
about in the order meanwhile. The word MATERIALIZED is needed for it: without, one statement with LIMIT 1 may take every
row of the table, because a nested loop runs the subquery again for each row.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.article import Connection
from examples.harness import on_mysql, rows, run
from examples.s5_leontrolski.author import CLAIM, PROCESSING, TO_PROCESS, UNFENCED

PLANS: dict[str, list[str]] = {
    "as it likes": [],
    "no hashing": ["enable_hashagg", "enable_hashjoin"],
    "nested loops over the table": [
        "enable_hashagg",
        "enable_hashjoin",
        "enable_mergejoin",
        "enable_material",
        "enable_memoize",
        "enable_sort",
        "enable_indexscan",
        "enable_bitmapscan",
        "enable_indexonlyscan",
    ],
    "merge joins": ["enable_hashjoin", "enable_nestloop", "enable_hashagg"],
    "no index": ["enable_indexscan", "enable_bitmapscan", "enable_indexonlyscan"],
}
"""What the planner is forbidden."""

TOUCH = "update event_queue set updated_at = now() where id = %s and status = 0"


def force(db: Connection, plan: str) -> None:
    """Forbid the planner what this plan is without. MySQL has one way only."""
    for setting in [] if on_mysql(db) else PLANS[plan]:
        run(db, f"set {setting} = off")
    db.commit()


def taken_by_one(db: Connection, *, fenced: bool) -> int:
    """How many rows one statement with LIMIT 1 takes; it is undone."""
    taken = rows(db, CLAIM, TO_PROCESS, PROCESSING) if fenced else rows(db, UNFENCED, PROCESSING, TO_PROCESS)
    db.rollback()
    return len(taken)


def shuffle(db: Connection, more_to_come: Callable[[], bool]) -> int:
    """Move waiting events to the end of the queue, while others claim them; how many were moved."""
    moved = 0
    waiting = [row[0] for row in rows(db, "select id from event_queue where status = 0")]
    db.commit()
    while waiting and more_to_come():
        moved += run(db, TOUCH, random.choice(waiting))
        db.commit()
    return moved
