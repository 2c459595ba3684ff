"""Every SQL statement of claimjobs, one short function each.

`insert` enqueues. `find` reads candidates, `lock` locks them, `mark` marks them as owned; `claim` does all three in one
statement. `side_car` has those for a table that must not be altered. `settle` writes outcomes. `owners`
and `idle` are about owners, `dead_jobs`, `purge` and `count` about what their names say.

Each function returns a SQLAlchemy statement with named parameters: it is built once and run many times.
"""
