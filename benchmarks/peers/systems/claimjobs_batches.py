"""claimjobs with `Queue(..., claims="batches")`: a claim is one row of `claimjobs_batches`, and writes no job.

All else is what claimjobs.py does.
"""

from __future__ import annotations

from benchmarks.peers.driver import Line, Order
from benchmarks.peers.systems import claimjobs

fill = claimjobs.fill


def work(order: Order, line: Line) -> None:
    claimjobs.work(order, line, claims="batches")
