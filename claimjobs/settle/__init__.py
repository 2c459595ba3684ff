"""Settle: write the outcomes of a batch.

settler.py takes jobs out of where their claim is recorded (claim/record.py), and writes their outcomes by statements of
outcome_table.py: in the table of the jobs or in its side-car. outcomes.py says which outcomes there are. refusals.py
and failures.py are for what the database refuses, and for what is told of jobs that failed.
"""
