"""A consumer without a supervisor: the library in a process of the user's own."""

from __future__ import annotations

import json
import logging
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import sqlalchemy as sa

from claimjobs import Batch, PerKey, Queue, Retry
from claimjobs.contrib.replica import Replica
from claimjobs.errors import BatchRolledBack
from claimjobs.options import Liveness
from tests.chaos import work
from tests.chaos.kinds import KINDS, QueueKind

TRANSIENTS = "transients "
"""What the line begins with that counts them by their kinds."""
CLAIMS = "claims "
"""What the line begins with that says how many claims were made."""
PATIENCE = 180.0
"""Seconds. A MySQL that met a full disk looks once a minute whether there is space again."""


def main(url: str, settings: dict[str, Any]) -> None:
    """Consume until SIGTERM, then print how many claims were made, and the errors after which it tried again.

    Settings: those of `fleet.BARE`.
    """
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)8d %(name)s %(message)s")
    shown = {name: settings[name] for name in ("lease", "max_batch_time", "session_lock")}
    liveness = Liveness(patience=PATIENCE, **shown)
    retry = Retry(settings["attempts"])
    kind = KINDS[settings["kind"]]
    where: dict[str, Any] = {**kind.options, "order_by": () if settings["any_order"] else None}
    limits = {"at_most": settings["per_key"] or None, "in_order": settings["in_order"]}
    where["per_key"] = PerKey("e", **limits) if any(limits.values()) else None
    where["locking"] = Replica(settings["candidates"]) if settings["candidates"] else None
    with Queue(url, liveness=liveness, retry=retry, **where) as queue:
        signal.signal(signal.SIGTERM, lambda *_: queue.stop())
        with ThreadPoolExecutor(settings["threads"]) as others:
            each = (queue, settings["size"], kind)
            loops = [others.submit(_consume, *each) for _ in range(settings["threads"] - 1)]
            _consume(*each)
            for loop in loops:
                loop.result()
    print(f"{TRANSIENTS}{json.dumps(queue.report.transients)}", flush=True)
    print(f"{CLAIMS}{queue.report.claims}", flush=True)
    queue.engine.dispose()


def _consume(queue: Queue, size: int, kind: QueueKind) -> None:
    for batch in queue.batches(size):
        _handle(batch, kind)


def _handle(batch: Batch, kind: QueueKind) -> None:
    try:
        with batch:
            getattr(work, kind.handler)(batch)
    except work.Poison:
        logging.info("poison in a batch of %d", len(batch))
    except (BatchRolledBack, sa.exc.DBAPIError) as error:  # of the settle, or of what the handler wrote
        logging.info("%d jobs: %s", len(batch), error)
    if batch.lost:
        logging.warning("%d jobs were not ours any more", len(batch.lost))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
