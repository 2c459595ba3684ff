"""Rows into the table, and the notifier that wakes idle owners.

enqueuer.py inserts rows in chunks, and finds out which row does not fit. `BulkInsert.write` (bulk_insert.py) sends a
chunk: by COPY (`copy` in dialects/postgres/dialect.py) where the database has that, or by INSERT. unique_key.py changes
rows that the table has already. notifier.py wakes owners at the commit, and recurring.py enqueues for each tick of a
schedule.
"""
