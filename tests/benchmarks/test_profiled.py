"""Where a consumer's time goes: all of it is somewhere, and claimjobs' own part is seen."""

from __future__ import annotations

import pytest

from benchmarks import article, profiled, tables
from benchmarks.contestants import OURS
from benchmarks.crew import Worker, gather
from benchmarks.profiled import WAITING, Profile
from tests.backends import Backend

pytestmark = pytest.mark.thorough("that the benchmarks measure what they say")

JOBS = 20_000  # enough for a slow tick to see every layer


def test_the_time_of_a_consumer_is_all_told(anywhere: Backend) -> None:
    tables.setup_claimjobs(anywhere.url)
    tables.fill(anywhere.url, list(article.payload(JOBS)))
    [profile] = gather([Worker(profiled.consume, anywhere.url, name=OURS)])
    assert profile.jobs == JOBS
    phases = profile.phases()
    assert sum(phases.values()) == pytest.approx(1)
    assert {"driver", "claimjobs"} <= set(phases)
    assert f"{OURS}: the client's CPU by function" in profiled.text({OURS: profile})


def test_what_is_no_cpu_is_waiting() -> None:
    profile = Profile(jobs=10, seconds=2.0, cpu=0.5)
    profile.layers.update({"driver": 3, "claimjobs": 1})
    assert profile.phases() == {WAITING: 0.75, "driver": pytest.approx(0.1875), "claimjobs": pytest.approx(0.0625)}
