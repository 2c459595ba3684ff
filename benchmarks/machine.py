"""What else decides the figures: the machine, who else is on it, and what the server does for durability."""

from __future__ import annotations

import os
import platform
from importlib import metadata
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


def name() -> str:
    """What this machine is."""
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{cores()} cores of {_model()}, {gigabytes:.0f} GB, {platform.system()} {platform.release()}"


def _model() -> str:
    """The processor, where the kernel says what it is."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def versions() -> dict[str, str]:
    """Of what runs in the client."""
    packages = ("claimjobs", "sqlalchemy", "psycopg", "pymysql")
    return {"python": platform.python_version(), **{package: metadata.version(package) for package in packages}}


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
