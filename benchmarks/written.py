"""Written: what a run makes the server write. Bytes of its log, and versions of rows that are dead afterwards.

Every UPDATE and every DELETE of a row leaves its old version, which autovacuum or purge must remove later. The log is
the WAL of Postgres, or the redo log of InnoDB without the binary log; what purge writes after the run is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from benchmarks.article import is_postgres

SECONDS_TO_END = 15.0
SECONDS_A_LOOK = 0.02

POSTGRES = """
select pg_current_wal_insert_lsn() - '0/0'::pg_lsn, coalesce(sum(n_tup_upd + n_tup_del), 0)
from pg_stat_user_tables
"""
SESSIONS = """
select count(*) from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and backend_start > %s
"""
"""A session adds what it has done to the statistics of tables when it ends."""
INNODB = """
show global status
where variable_name in ('innodb_os_log_written', 'innodb_lsn_current', 'handler_update', 'handler_delete')
"""


@dataclass
class Written:
    """What a server has written while a `with` block lasted; known when it is left."""

    log_bytes: int = 0
    dead_rows: int = 0


class SessionsLeft(Exception):
    """Sessions of a run have not ended: how many rows are dead is not known."""


@contextmanager
def written(url: str) -> Iterator[Written]:
    """Count what the server of this database writes meanwhile. Sessions that begin in the block must end in it, too.

    Raises SessionsLeft.
    """
    found = Written()
    read = _read_postgres if is_postgres(url) else _read_innodb
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        began = connection.exec_driver_sql("select now()").scalar_one()
        before = read(connection)
        yield found
        if is_postgres(url):
            _await_statistics(connection, began)
        after = read(connection)
    found.log_bytes, found.dead_rows = (now - then for now, then in zip(after, before, strict=True))


def _read_postgres(connection: sa.Connection) -> tuple[int, int]:
    log_bytes, dead_rows = connection.exec_driver_sql(POSTGRES).one()
    return int(log_bytes), int(dead_rows)


def _read_innodb(connection: sa.Connection) -> tuple[int, int]:
    status = {name.lower(): int(value) for name, value in connection.exec_driver_sql(INNODB)}
    log_bytes = status.get("innodb_lsn_current", status["innodb_os_log_written"])
    return log_bytes, status["handler_update"] + status["handler_delete"]


def _await_statistics(connection: sa.Connection, began: Any) -> None:
    deadline = time.monotonic() + SECONDS_TO_END
    while left := connection.exec_driver_sql(SESSIONS, (began,)).scalar_one():
        if time.monotonic() > deadline:
            raise SessionsLeft(f"{left} sessions of the run have not ended after {SECONDS_TO_END:g} s")
        time.sleep(SECONDS_A_LOOK)
