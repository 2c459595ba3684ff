"""When a failed job runs again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimjobs import Retry


@given(st.integers(0, 10_000), st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_wait_is_between_half_of_the_back_off_and_all_of_it(before: int, base: float, cap: float) -> None:
    longest = min(base * 2 ** min(before, 64), cap)
    assert longest * 0.5 <= Retry(base=base, cap=cap).wait(before) <= longest


def test_waits_differ() -> None:
    retry = Retry(base=100)
    assert len({retry.wait(3) for _ in range(20)}) > 1


@pytest.mark.parametrize(("attempts", "before", "last"), [(1, 0, True), (2, 0, False), (2, 1, True), (5, 9, True)])
def test_a_job_has_so_many_attempts(attempts: int, before: int, last: bool) -> None:
    assert Retry(attempts=attempts).is_last(before) is last


@pytest.mark.parametrize("figures", [{"attempts": 0}, {"base": -1}, {"cap": -0.1}])
def test_figures_without_sense_are_refused(figures: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="attempts from 1, base and cap"):
        Retry(**figures)  # type: ignore[arg-type]
