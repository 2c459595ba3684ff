"""claimjobs on what people run in place of one server: each setting under load and faults, in one table."""
