"""Find candidates, lock them, check them again, and record the claim.

candidates.py finds: its SQL is `find` in statements/find.py. locking.py finds and locks in two statements or one, by
statements/claim.py. record.py writes whose the jobs are. one_statement.py does all of it at once, where the database
can. `ClaimPlans.strategy` (claim_plan.py) chooses one of these for a queue. candidate_range.py says where a claim
begins in the order, and row_reader.py makes jobs of rows. key_locking.py and key_search.py are for limits per key.
"""
