"""The SQL statements of claimjobs, one short function each.

`enqueue` inserts jobs, and changes those that are there by a unique key. `find` reads candidates: `find.in_order` is
the search in each claim. `claim` locks them and marks them as claimed, or does all of it in one statement. `key_rows`
has those for limits per key, `side_car` those for a table that must not be altered, `claim_rows` those for claims per
batch. `settle` writes outcomes. `owners` is about owners and the pause of a queue. `stored_jobs` counts, lists and
changes jobs in any state; `job_rows` says where their states are.

Each function returns a SQLAlchemy statement with named parameters: it is built once and run many times.
"""
