"""What a run looks like as JSON, and in words."""

from __future__ import annotations

import io
import json
import logging
from collections import Counter
from dataclasses import replace

import pytest
from rich.console import Console

from claimjobs.cli.screen import JsonLines, LiveTable, LogLines, drawn, summary_json, summary_lines
from claimjobs.report import Report
from claimjobs.workers.run import ProcessFigures, Snapshot, Summary

TROUBLED = Report(done=3, transients=Counter({"deadlock": 2, "connection lost": 1}))


def test_transients_are_counted_by_kind_in_the_summary() -> None:
    summary = Summary(
        before=3, generated=0, done=3, failed=0, left=0, seconds=1.0, total=TROUBLED, replaced=0, handed_back=0
    )
    assert json.loads(summary_json(summary))["total"]["transients"] == {"deadlock": 2, "connection lost": 1}


def test_transients_are_counted_by_kind_while_it_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    now = Snapshot(phase="running", elapsed=1.0, consumers=(), generators=(), total=TROUBLED, waiting=0, rate=0.0)
    JsonLines().update(now)
    assert json.loads(capsys.readouterr().out)["total"]["transients"] == {"deadlock": 2, "connection lost": 1}


def test_what_died_is_told_in_words_that_fit_one_and_many() -> None:
    summary = Summary(
        before=3, generated=0, done=3, failed=0, left=0, seconds=1.0, total=TROUBLED, replaced=1, handed_back=1_000
    )
    assert summary_lines(summary)[-1] == "processes that died, replaced: 1; jobs reclaimed: 1,000"


def test_a_process_that_is_over_is_not_called_replaced() -> None:
    """At the end of a run nobody takes its place."""
    over = ProcessFigures(number=1, pid=None, batch=0, jobs=5, rate=0.0, restarts=0)
    now = Snapshot(phase="ended", elapsed=1.0, consumers=(over,), generators=(), total=TROUBLED, waiting=0, rate=0.0)
    assert "ended" in shown(now)
    assert "replaced" not in shown(now)


RUNNING = Snapshot(
    phase="running", elapsed=9.0, consumers=(), generators=(), total=Report(done=75, dead=5), waiting=120, rate=2.0
)


def test_with_a_log_of_json_the_state_is_a_record_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "claimjobs.screen"):
        LogLines().update(RUNNING)
    [record] = caplog.records
    assert (vars(record)["event"], vars(record)["waiting"]) == ("progress", 120)


def test_the_live_table_shows_the_last_state() -> None:
    console = Console(file=io.StringIO(), width=92, force_terminal=True)
    with LiveTable(console) as screen:
        screen.update(RUNNING)
    logging.getLogger().handlers.clear()
    assert isinstance(console.file, io.StringIO)
    assert "queue length 120" in console.file.getvalue()


def shown(snapshot: Snapshot) -> str:
    file = io.StringIO()
    Console(file=file, width=92).print(drawn(snapshot))
    return file.getvalue()


def test_a_run_whose_end_is_known_shows_how_far_it_is() -> None:
    text = shown(replace(RUNNING, to_come=120))
    assert "━" in text
    assert "40%" in text
    assert "1 min left" in text
    assert "━" not in shown(RUNNING)
    assert "100%" in shown(replace(RUNNING, to_come=0))


def test_while_it_starts_a_run_says_what_is_started() -> None:
    waits = ProcessFigures(number=1, pid=None, batch=0, jobs=0, rate=0.0, restarts=0)
    starting = replace(RUNNING, phase="starting", consumers=(waits, waits), generators=(waits,), ready=1)
    assert "1 of 2 consumers ready, 1 generator" in shown(starting)
    assert "jobs/s" not in shown(starting).partition("\n")[0]


def test_the_summary_tells_who_waits_for_a_retry() -> None:
    summary = Summary(
        before=3, generated=0, done=0, failed=0, left=3, seconds=1.0, total=TROUBLED, replaced=0, handed_back=0
    )
    assert "retry" not in "".join(summary_lines(summary))
    text = "".join(summary_lines(replace(summary, retries=3, next_retry=2 * 86_400.0)))
    assert "3 wait for their retry, the next at 20" in text
