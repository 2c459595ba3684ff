"""Which table, which column plays which role, how a row expresses its state; DDL.

columns.py is what a user says of a table; roles.py and job_state.py make SQL of it: `row_says`, `job_is`, `becomes` and
`in_no_claim_row` of `State` are the only code that knows how a row says that its job is unclaimed, claimed, done or
dead. backend.py has what was found in the database, and acceptance.py says whether it can be claimed from. The tables
that claimjobs makes are in definitions.py, and create.py makes them. values.py converts what a user gives for a column.
"""
