"""The table of `make cluster`, and its exit code."""

from __future__ import annotations

import pytest

from tests.cluster.__main__ import exit_code, markdown
from tests.cluster.row import Row
from tests.cluster.settings import all_settings

pytestmark = pytest.mark.thorough("it starts several servers, poolers or hosts")


def test_what_is_lost_or_settled_twice_or_broken_ends_it_with_1() -> None:
    good = [Row("a", jobs=5), Row("b", said="left out: no PgBouncer")]
    assert exit_code(good) == 0
    for bad in (Row("c", lost=1), Row("c", settled_twice=1), Row("c", broken=["it was not refused"])):
        assert exit_code([*good, bad]) == 1


def test_a_row_has_a_cell_for_each_heading() -> None:
    lines = markdown([Row("a", 5, 0, 1, 2.5, 3, 4.0), Row("b", said="refused at the start")]).splitlines()
    assert lines[2] == "| a | 5 | 0 | 1 | 2.50 | 3 | 4 |"
    assert {line.count("|") for line in lines} == {8}


def test_the_settings_have_names_of_their_own() -> None:
    names = [setting.name for setting in all_settings()]
    assert names
    assert len(set(names)) == len(names)


def test_only_where_jobs_wait_for_sweeps_the_limit_depends_on_the_rate() -> None:
    by_name = {setting.name: setting for setting in all_settings()}
    assert by_name["Galera, in order"].limit(10_000, 500) == 30
    assert by_name["Galera, any order"].limit(10_000, 500) == 30 + 2 * 20
