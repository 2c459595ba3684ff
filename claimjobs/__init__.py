"""claimjobs: claim jobs in batches from the table you already have, on MySQL 8+ and Postgres."""

__version__ = "0.1.0"
