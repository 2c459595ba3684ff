"""The SQL statements of claimjobs, one short function each.

`insert` enqueues, `duplicates` if jobs have a unique key. `find` reads candidates, `lock` locks them and marks them as
claimed; `claim` does both in one statement, with what `lock` reads. `key_rows` has those for limits per
key, `side_car` those for a table that must not be altered, `claim_rows` those for claims per batch. `settle` writes
outcomes. `owners`, `idle` and `pause` are about owners. `job_rows` says where states are read, for `count`,
`stored_jobs`, `dead_jobs` and `purge`; `samples` is for `explain`.

Each function returns a SQLAlchemy statement with named parameters: it is built once and run many times.
"""
