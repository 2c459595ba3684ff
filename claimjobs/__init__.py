"""claimjobs: claim jobs in batches from the table you already have, on MySQL 8+ and Postgres.

`Queue` is the front door; `job_table` makes a table of jobs with a payload of your own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from claimjobs.assign import Assignment
    from claimjobs.assignments import Assignments
    from claimjobs.batch import Batch
    from claimjobs.claims_setup import side_car_tables
    from claimjobs.columns import Columns
    from claimjobs.errors import ClaimjobsError
    from claimjobs.instants import next_whole
    from claimjobs.job import Job
    from claimjobs.ledger import Ledger
    from claimjobs.liveness import Liveness
    from claimjobs.queue import Queue
    from claimjobs.retry import Retry
    from claimjobs.schema import job_table
    from claimjobs.setup import make, tables_for
    from claimjobs.shape import Shape
    from claimjobs.side_car import SideCar
    from claimjobs.signals import stop_on_signals

__version__ = "0.1.0"

__all__ = [
    "Assignment",
    "Assignments",
    "Batch",
    "ClaimjobsError",
    "Columns",
    "Job",
    "Ledger",
    "Liveness",
    "Queue",
    "Retry",
    "Shape",
    "SideCar",
    "job_table",
    "make",
    "next_whole",
    "side_car_tables",
    "stop_on_signals",
    "tables_for",
]

_MODULES = {
    "Assignment": "assign",
    "Assignments": "assignments",
    "Batch": "batch",
    "ClaimjobsError": "errors",
    "Columns": "columns",
    "Job": "job",
    "Ledger": "ledger",
    "Liveness": "liveness",
    "Queue": "queue",
    "Retry": "retry",
    "Shape": "shape",
    "SideCar": "side_car",
    "job_table": "schema",
    "make": "setup",
    "next_whole": "instants",
    "side_car_tables": "claims_setup",
    "stop_on_signals": "signals",
    "tables_for": "setup",
}


def __getattr__(name: str) -> Any:
    """Public names, imported when first used: `claimjobs --help` would wait half a second for SQLAlchemy."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
