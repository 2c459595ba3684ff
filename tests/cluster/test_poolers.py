"""Each setting with a pooler, in short. `make cluster` has the long form, and the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.row import run
from tests.cluster.setting import Setting
from tests.cluster.settings.poolers import SETTINGS

pytestmark = pytest.mark.thorough("it starts several servers, poolers or hosts")

SECONDS = 0.5
"""Of work before each fault."""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_all_jobs_are_done_once_or_it_is_refused_at_the_start(setting: Setting, tmp_path: Path) -> None:
    row = run(setting, tmp_path, SECONDS)
    if row.said.startswith("left out"):
        pytest.skip(row.said)
    logs = "\n".join(f"{path.name}: {path.read_text()[-1000:]}" for path in sorted(tmp_path.glob("*.log"))[-6:])
    assert not row.broken, "\n".join([*row.broken, logs])
    assert (row.lost, row.settled_twice) == (0, 0)
    assert bool(row.jobs) != bool(setting.refused)
