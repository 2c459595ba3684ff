"""What a run looks like as JSON, and in words."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from claimjobs.cli.screen import JsonLines, picture, summary_json, summary_text
from claimjobs.report import Report
from claimjobs.snapshot import Line, Snapshot, Summary

TROUBLED = Report(done=3, transients=Counter({"deadlock": 2, "connection lost": 1}))


def test_transients_are_counted_by_kind_in_the_summary() -> None:
    summary = Summary(
        before=3, generated=0, done=3, failed=0, left=0, seconds=1.0, total=TROUBLED, replaced=0, handed_back=0
    )
    assert json.loads(summary_json(summary))["total"]["transients"] == {"deadlock": 2, "connection lost": 1}


def test_transients_are_counted_by_kind_while_it_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    now = Snapshot(phase="running", elapsed=1.0, consumers=(), generators=(), total=TROUBLED, waiting=0, rate=0.0)
    JsonLines()(now)
    assert json.loads(capsys.readouterr().out)["total"]["transients"] == {"deadlock": 2, "connection lost": 1}


def test_what_died_is_told_in_words_that_fit_one_and_many() -> None:
    summary = Summary(
        before=3, generated=0, done=3, failed=0, left=0, seconds=1.0, total=TROUBLED, replaced=1, handed_back=1_000
    )
    assert summary_text(summary).endswith("\nprocesses that died, replaced: 1; jobs handed back: 1,000")


def test_a_process_that_is_over_is_not_called_replaced() -> None:
    """At the end of a run nobody takes its place."""
    over = Line(number=1, pid=None, batch=0, jobs=5, rate=0.0, restarts=0)
    now = Snapshot(phase="ended", elapsed=1.0, consumers=(over,), generators=(), total=TROUBLED, waiting=0, rate=0.0)
    shown = picture(now)
    assert "ended" in shown
    assert "replaced" not in shown
