"""Every statement that claimjobs sends, one short function each, in the order of a job's way:

`produce` inserts, `find` reads candidates (phase 1), `lock` locks them and `mark` makes them ours (phase 2;
`claim` is both phases in one statement; `side_car` has those of claims in a table of their own, `advisory` those by
advisory locks), `settle` writes the outcomes. Beside it stand `owners` and `sleepers`, `dead`, `purge` and `count`,
`assign`, and `ledger`.

Each function returns a SQLAlchemy statement with named parameters, so that it is built once and run many times.
"""
