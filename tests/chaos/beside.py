"""A consumer of a table beside others of another kind: on a table with a side-car, or on one that claimjobs made."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from typing import Any

import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.options import Liveness
from tests.chaos.engines import engine_to

LEASE = 3.0
SIZE = 10
WORK_SECONDS = 0.05
READY = "ready"
"""What a consumer logs when a SIGTERM lets it end in order."""
META = sa.MetaData()
INNODB: dict[str, Any] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
ORDERS = sa.Table("orders", META, sa.Column("id", sa.Integer, primary_key=True, autoincrement=False), **INNODB)
RUNS = sa.Table(
    "runs",
    META,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("id", sa.Integer, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    **INNODB,
)
"""Each execution of a job, committed before its work is done."""


def main(url: str, options: dict[str, Any]) -> None:
    """Consume until SIGTERM. `options`: of the Queue."""
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)8d %(name)s %(message)s")
    audit = engine_to(url, isolation_level="AUTOCOMMIT", pool_size=1)
    with Queue(url, liveness=Liveness(lease=LEASE), **options) as queue:
        signal.signal(signal.SIGTERM, lambda *_: queue.stop())
        logging.info(READY)
        for batch in queue.batches(SIZE):
            with batch:
                with audit.connect() as connection:
                    rows = [{"id": job.key, "pid": os.getpid()} for job in batch.jobs]
                    connection.execute(sa.insert(RUNS), rows)
                time.sleep(WORK_SECONDS)
                batch.done()
        queue.engine.dispose()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
