"""claimjobs: claim jobs in batches from the table you already have, on MySQL 8+ and Postgres.

`Queue` is the front door; `job_table` makes a table of jobs with a payload of your own.

The way of a job is that of the folders: `enqueue`, `claim`, `batch`, `settle`; `lease` has what becomes of it if its
consumer dies. `queue` is the interface to them, and `workers` runs it in processes. Below are `statements` (all SQL),
`table` (columns and states), `database` (connections), and `dialects` (what differs between databases). The
`__init__.py` of each folder says which file does what.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers: the same names as below
    # ruff: isort: off
    from claimjobs.batch.batch import Batch as Batch
    from claimjobs.claim.locking import JobLocks as JobLocks, Locking as Locking
    from claimjobs.embedded.server import database_url as database_url
    from claimjobs.errors import ClaimjobsError as ClaimjobsError, Fail as Fail, RetryLater as RetryLater
    from claimjobs.instants import next_whole as next_whole
    from claimjobs.job import Done as Done, Job as Job
    from claimjobs.options import Liveness as Liveness, PerKey as PerKey, Retry as Retry, SideCar as SideCar
    from claimjobs.queue.map_file import read_map as read_map
    from claimjobs.queue.queue import Queue as Queue
    from claimjobs.signals import stop_on_signals as stop_on_signals
    from claimjobs.table.columns import Columns as Columns
    from claimjobs.table.create import key_tables as key_tables, make as make, side_car_tables as side_car_tables
    from claimjobs.table.create import tables_for as tables_for
    from claimjobs.table.definitions import include_object as include_object, job_table as job_table
    # ruff: isort: on

__version__ = "0.1.0"

_NAMES = {
    "batch.batch": ("Batch",),
    "claim.locking": ("JobLocks", "Locking"),
    "embedded.server": ("database_url",),
    "errors": ("ClaimjobsError", "Fail", "RetryLater"),
    "instants": ("next_whole",),
    "job": ("Done", "Job"),
    "options": ("Liveness", "PerKey", "Retry", "SideCar"),
    "queue.map_file": ("read_map",),
    "queue.queue": ("Queue",),
    "signals": ("stop_on_signals",),
    "table.columns": ("Columns",),
    "table.create": ("key_tables", "make", "side_car_tables", "tables_for"),
    "table.definitions": ("include_object", "job_table"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULES)  # noqa: PLE0605 - each is a name


def __getattr__(name: str) -> Any:
    """Public names, imported when first used: `claimjobs --help` would wait half a second for SQLAlchemy."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
