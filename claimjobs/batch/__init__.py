"""Claimed jobs: what holds them, their outcomes, and the settle that writes these.

From the end of `with batch` to the SQL: `Batch.__exit__` (batch.py) gives each job an outcome and calls `Hold.settle`.

- By lease `LeaseHold.settle` (lease/lease_hold.py) lets `LeaseSettler` commit what `Settler.write` writes (both in
  settle/settler.py); or `SettleAndClaim` (settle_and_claim.py), if it claims the next batch in the same transaction.
- In a transaction `TransactionHold.settle` (lease/transaction_hold.py) lets `IsolatingSettle`
  commit what `Settler.write_locked` writes.

The statements are those of `OutcomeTable.writes` (settle/outcome_table.py). `JobsTable` and `SideCarTable`, in the same
file, make them once, of the functions in statements/settle.py.
"""
