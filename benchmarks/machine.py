"""What else decides the figures: the machine, who else is on it, and what the server does for durability."""

from __future__ import annotations

import os
from typing import Any

import sqlalchemy as sa

QUIET = 0.5
"""A load average above this before the start means that somebody else is at work."""

DURABILITY = {
    "postgres": ("fsync", "synchronous_commit", "full_page_writes"),
    "mysql": ("innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog"),
    "mariadb": ("innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog"),
}


def load() -> float:
    """The load average of the last minute."""
    return os.getloadavg()[0]


def cores() -> int:
    return len(os.sched_getaffinity(0))


def durability(backend: str, url: str) -> dict[str, str]:
    """The server's settings that say what a commit survives."""
    ask = "SHOW {}" if backend == "postgres" else "SELECT @@{}"
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return {name: str(_scalar(connection, ask.format(name))) for name in DURABILITY[backend]}


def _scalar(connection: sa.Connection, statement: str) -> Any:
    return connection.exec_driver_sql(statement).scalar_one()


def remarks(before: float) -> list[str]:
    """What a reader of the figures must know: `before` is the load average before the start."""
    said = [f"{cores()} cores, shared by server and consumers; load average before the start: {before:.2f}"]
    if before > QUIET:
        said.append("NOT A QUIET MACHINE: others were at work. Compare nothing but ratios, and those with care.")
    return said
