"""claimjobs: claim jobs in batches from the table you already have, on MySQL 8+ and Postgres.

`Queue` is the front door; `job_table` makes a table of jobs with a payload of your own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from claimjobs.batch.batch import Batch
    from claimjobs.claim.locking import JobLocks, Locking
    from claimjobs.embedded.server import database_url
    from claimjobs.errors import ClaimjobsError, Fail, RetryLater
    from claimjobs.instants import next_whole
    from claimjobs.job import Done, Job
    from claimjobs.options import Liveness, Retry, SideCar
    from claimjobs.per_key import PerKey
    from claimjobs.queue.map_file import read_map
    from claimjobs.queue.queue import Queue
    from claimjobs.signals import stop_on_signals
    from claimjobs.table.columns import Columns
    from claimjobs.table.create import make, tables_for
    from claimjobs.table.definitions import include_object, job_table
    from claimjobs.table.tables_beside import key_tables, side_car_tables

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "ClaimjobsError",
    "Columns",
    "Done",
    "Fail",
    "Job",
    "JobLocks",
    "Liveness",
    "Locking",
    "PerKey",
    "Queue",
    "Retry",
    "RetryLater",
    "SideCar",
    "database_url",
    "include_object",
    "job_table",
    "key_tables",
    "make",
    "next_whole",
    "read_map",
    "side_car_tables",
    "stop_on_signals",
    "tables_for",
]

_MODULES = {
    "Batch": "batch.batch",
    "ClaimjobsError": "errors",
    "Columns": "table.columns",
    "Done": "job",
    "Fail": "errors",
    "Job": "job",
    "JobLocks": "claim.locking",
    "Liveness": "options",
    "Locking": "claim.locking",
    "Queue": "queue.queue",
    "PerKey": "per_key",
    "Retry": "options",
    "SideCar": "options",
    "RetryLater": "errors",
    "database_url": "embedded.server",
    "include_object": "table.definitions",
    "job_table": "table.definitions",
    "make": "table.create",
    "next_whole": "instants",
    "read_map": "queue.map_file",
    "side_car_tables": "table.tables_beside",
    "stop_on_signals": "signals",
    "tables_for": "table.create",
    "key_tables": "table.tables_beside",
}


def __getattr__(name: str) -> Any:
    """Public names, imported when first used: `claimjobs --help` would wait half a second for SQLAlchemy."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
