"""The table of `make examples`, and the commands. No database but for one that is named by its URL."""

from __future__ import annotations

import subprocess
import sys

import pytest

from examples import report
from examples.__main__ import NAMES
from examples.harness import WrongResult, must
from examples.report import Figure
from tests.backends import Backend

pytestmark = pytest.mark.thorough("an example of an article, as a whole")

HERE = [Figure("seconds", "1.0 s", "63.8 s"), Figure("rows twice", "none")]
THERE = [Figure("seconds", "2.0 s", "63.8 s"), Figure("only there", "yes")]


def test_one_table_has_the_authors_figure_beside_ours() -> None:
    printed = report.together({"S1 an article": {"here": HERE, "there": THERE}}, ["here", "there"])
    assert printed.splitlines() == [
        "              the author  here   there",
        "S1 an article",
        "  seconds     63.8 s      1.0 s  2.0 s",
        "  rows twice  -           none   -",
        "  only there  -           -      yes",
    ]


def test_one_example_alone() -> None:
    assert report.alone("here", HERE).splitlines()[1] == "seconds     63.8 s      1.0 s"


def test_a_broken_promise_is_an_error() -> None:
    must(True, "a row twice")
    with pytest.raises(WrongResult, match="a row twice"):
        must(False, "a row twice")


@pytest.mark.parametrize("name", NAMES)
def test_each_command_says_what_it_can(name: str) -> None:
    said = _run(name, "--help")
    assert "--backend" in said
    assert "--url" in said


def test_a_command_prints_its_table(anywhere: Backend) -> None:
    said = _run("s4_tiikkaja", "--url", anywhere.url, "--claims", "10", "--consumers", "2").splitlines()
    assert said[0].split() == ["the", "author", "your", "database"]
    assert said[-1].endswith("0")


def _run(name: str, *options: str) -> str:
    command = [sys.executable, "-m", f"examples.{name}", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
