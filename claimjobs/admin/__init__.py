"""Looking after a queue: its numbers, dead jobs, old jobs, the ledger, assignments."""
