"""claimjobs: claim jobs in batches from the table you already have, on MySQL 8+ and Postgres.

`Queue` is the front door; `job_table` makes a table of jobs with a payload of your own.
"""

from claimjobs.batch import Batch
from claimjobs.errors import ClaimjobsError
from claimjobs.job import Job
from claimjobs.queue import Queue
from claimjobs.retry import Retry
from claimjobs.schema import job_table
from claimjobs.setup import make, tables_for

__version__ = "0.1.0"

__all__ = ["Batch", "ClaimjobsError", "Job", "Queue", "Retry", "job_table", "make", "tables_for"]
