"""Which owner holds what, and for how long: owners, heartbeat, reaper, and how an idle owner is woken.

What becomes of the jobs of a dead consumer is in reaper.py, from `Reaper.reclaim_dead` on; `OwnerState.is_dead`
(registry.py) says who is dead. owner.py has the thread of the heartbeat, which calls the reaper. The two ways to hold
jobs are lease_hold.py and transaction_hold.py; the first notes in held_batches.py what its owner holds.
"""
