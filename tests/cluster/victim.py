"""A consumer on a host that vanishes: at one moment of its work it says so, and stays there until it is killed."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Literal

import sqlalchemy as sa

from claimjobs import Liveness, Queue

Moment = Literal["claim", "work", "settle"]
"""After the statement that locks jobs; in the handler; before the commit of the settle."""
SIZE = 10


def main(url: str, moment: Moment, options: dict[str, Any], liveness: dict[str, Any]) -> None:
    """Claim a batch and settle it, but for that moment."""
    queue = Queue(url, liveness=Liveness(**liveness), **options)
    if moment == "claim":
        sa.event.listen(queue.engine, "after_cursor_execute", _after_lock)
    with queue.claim(SIZE) as batch:
        if moment == "work":
            _stay()
        sa.event.listen(queue.engine, "commit", lambda _: _stay())
        batch.done()


def _after_lock(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
    if "FOR UPDATE" in statement and "jobs" in statement:
        _stay()


def _stay() -> None:
    print("here", flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4]))  # type: ignore[arg-type]
