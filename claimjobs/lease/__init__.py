"""Which owner holds what, and for how long: owners, heartbeat, reaper, and how an idle owner is woken.

What becomes of the jobs of a dead consumer: the heartbeat's thread of any other (owner.py) calls `Reaper.dead` and
`Reaper.reclaim` (reaper.py); `OwnerState.is_dead` (registry.py) says who is dead. The two ways to hold jobs are
lease_hold.py and transaction_hold.py; the first notes in held_batches.py what its owner holds.
"""
