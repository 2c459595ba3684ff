"""A switchover with claims per batch, in short. `make cluster` has all settings, and tests/conformance the cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.row import run
from tests.cluster.settings.failover import SETTINGS

pytestmark = pytest.mark.thorough("it starts several servers, poolers or hosts")

SECONDS = 0.5
"""Of work before each fault."""


@pytest.mark.timeout(180)
def test_all_jobs_are_done_once_where_the_primary_is_demoted(tmp_path: Path) -> None:
    [setting] = [one for one in SETTINGS if one.name == "Postgres, switchover, claims per batch"]
    row = run(setting, tmp_path, SECONDS)
    logs = "\n".join(f"{path.name}: {path.read_text()[-1000:]}" for path in sorted(tmp_path.glob("*.log"))[-6:])
    assert not row.broken, "\n".join([*row.broken, logs])
    assert (row.lost, row.settled_twice) == (0, 0)
    assert row.jobs, row.said
