"""When a replica is left for a moment because its candidates could not be claimed. No server is asked."""

from __future__ import annotations

import time

from claimjobs.contrib.replica import MEASURE_EVERY, MOST_IN_VAIN, Replica


def is_left(replica: Replica) -> bool:
    return replica._back_at > time.monotonic()


def test_it_is_left_after_so_many_claims_in_vain_in_a_row_and_counted_anew() -> None:
    replica = Replica("postgresql://nobody@127.0.0.1:1/none")
    for _ in range(2):
        for _ in range(MOST_IN_VAIN - 1):
            replica.note_claim(0)
            assert not is_left(replica)
            replica.note_claim(1)  # it begins at 0 again
        for number in range(MOST_IN_VAIN):
            assert not is_left(replica), number
            replica.note_claim(0)
        assert is_left(replica)
        assert replica._back_at <= time.monotonic() + MEASURE_EVERY
        replica._back_at = 0.0  # the moment is over
