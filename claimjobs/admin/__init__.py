"""Administration of a queue: stats, dead jobs, purge, ledger, assignments."""
