"""An answer to the author, who asks whether his statement is free of races.

Many sessions at once found no race, under every plan that Postgres can be forced to use, while events moved in the
order. The word MATERIALIZED is needed: without it, one statement with LIMIT 1 may update every row of the table,
because a nested loop runs the subquery again for each row.
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
"""The settings that are off for each plan."""

TOUCH = "update event_queue set updated_at = now() where id = %s and status = 0"


def force(db: Connection, plan: str) -> None:
    """Switch these settings off for this session. MySQL has only one plan."""
    for setting in [] if on_mysql(db) else PLANS[plan]:
        run(db, f"set {setting} = off")
    db.commit()


def taken_by_one(db: Connection, *, fenced: bool) -> int:
    """How many rows one statement with LIMIT 1 updates; it is rolled back."""
    taken = rows(db, CLAIM, TO_PROCESS, PROCESSING) if fenced else rows(db, UNFENCED, PROCESSING, TO_PROCESS)
    db.rollback()
    return len(taken)


def shuffle(db: Connection, more_to_come: Callable[[], bool]) -> int:
    """Move waiting events to the end of the queue, while others claim them; return how many."""
    moved = 0
    waiting = [row[0] for row in rows(db, "select id from event_queue where status = 0")]
    db.commit()
    while waiting and more_to_come():
        moved += run(db, TOUCH, random.choice(waiting))
        db.commit()
    return moved
