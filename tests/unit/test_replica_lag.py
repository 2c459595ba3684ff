"""How far a replica is behind at least, by the heartbeats of an owner."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from claimjobs.contrib.replica import lag_of


@pytest.mark.parametrize(("asleep", "lag"), [(False, 14.0), (True, 0.0)])
def test_an_owner_that_sleeps_writes_fewer_heartbeats_and_no_lag_is_concluded_from_that(
    asleep: bool, lag: float
) -> None:
    """It was just woken, and the replica does not have its new heartbeat yet."""
    now = datetime(2026, 11, 24, tzinfo=UTC)
    before = now - timedelta(seconds=20)
    owner: Any = SimpleNamespace(started=before, beat=now, now=now, lease=30.0)
    shown: Any = [(before, before if asleep else None)]
    assert lag_of(owner, shown) == lag
