"""What a run looks like as JSON, and in words."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from claimjobs.cli.console import can_redraw
from claimjobs.cli.screen import Screen, drawn, summary_json, summary_lines
from claimjobs.report import Report
from claimjobs.workers.run import ProcessFigures, Snapshot, Summary

TROUBLED = Report(done=3, transients=Counter({"deadlock": 2, "connection lost": 1}))


def test_transients_are_counted_by_kind_in_the_summary() -> None:
    summary = Summary(before=3, generated=0, left=0, seconds=1.0, total=TROUBLED, replaced=0, handed_back=0)
    assert json.loads(summary_json(summary))["total"]["transients"] == {"deadlock": 2, "connection lost": 1}


def test_transients_are_counted_by_kind_while_it_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    now = Snapshot(phase="running", elapsed=1.0, consumers=(), generators=(), total=TROUBLED, waiting=0, rate=0.0)
    Screen(as_json=True).update(now)
    assert json.loads(capsys.readouterr().out)["total"]["transients"] == {"deadlock": 2, "connection lost": 1}


def test_a_report_is_one_line_of_what_happened() -> None:
    assert str(replace(TROUBLED, claimed=1_200)) == "claimed 1,200, done 3, 1 x connection lost, 2 x deadlock"
    assert str(Report()) == "nothing yet"


def test_what_died_is_told_in_words_that_fit_one_and_many() -> None:
    summary = Summary(before=3, generated=0, left=0, seconds=1.0, total=TROUBLED, replaced=1, handed_back=1_000)
    assert summary_lines(summary)[-1] == (
        "processes that died, replaced: 1; jobs reclaimed: 1,000; what each of them did last may not be counted"
    )


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
        Screen("json").update(RUNNING)
    [record] = caplog.records
    assert (vars(record)["event"], vars(record)["waiting"]) == ("progress", 120)


def test_the_live_table_shows_the_last_state() -> None:
    console = Console(file=io.StringIO(), width=92, force_terminal=True)
    with Screen(terminal=console) as screen:
        screen.update(RUNNING)
    logging.getLogger().handlers.clear()
    assert isinstance(console.file, io.StringIO)
    assert "queue length 120" in console.file.getvalue()


@pytest.mark.parametrize(("kind", "has_table"), [("xterm", True), ("dumb", False), ("unknown", False)])
def test_where_nothing_can_be_drawn_again_the_state_is_lines(
    kind: str, has_table: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = pty.openpty()
    monkeypatch.setenv("TERM", kind)
    with open(slave, "w") as stderr, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", stderr)
        with Screen() as screen:
            screen.update(RUNNING)
            stderr.flush()
        logging.getLogger().handlers.clear()
        said = os.read(master, 65_536).decode()
    os.close(master)
    assert ("\x1b[" in said, "running 9 s: " in said) == (has_table, not has_table)


def test_a_file_has_no_live_table_also_if_it_is_to_have_colours(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        assert not can_redraw(Console(file=file, _environ={"FORCE_COLOR": "1"}))


def test_a_line_is_shown_for_each_phase_and_then_only_for_news(capsys: pytest.CaptureFixture[str]) -> None:
    screen, idle = Screen(every=30.0), replace(RUNNING, total=Report(done=80))
    for snapshot in (
        replace(RUNNING, phase="starting", elapsed=0.0),
        RUNNING,
        replace(idle, elapsed=20.0),  # news, but too early
        replace(idle, elapsed=40.0),
        *(replace(idle, elapsed=elapsed, total=Report(done=80, claims=9)) for elapsed in (80.0, 120.0)),  # no news
        replace(idle, phase="ended", elapsed=121.0),
    ):
        screen.update(snapshot)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["starting 0 s", "running 9 s", "running 40 s", "ended 121 s"]


def test_what_claims_met_is_shown_to_those_who_ask(capsys: pytest.CaptureFixture[str]) -> None:
    met = replace(RUNNING, total=replace(TROUBLED, claims=7, collisions=2))
    for verbose in (False, True):
        Screen(verbose=verbose).update(met)
        assert ("2 collisions" in capsys.readouterr().err) == verbose
        assert ("collisions" in shown(met, verbose=verbose)) == verbose


def test_a_quiet_run_shows_its_log_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(as_json=True, quiet=True).update(RUNNING)
    assert capsys.readouterr().out == ""


def test_only_a_run_that_had_the_table_for_itself_has_a_balance() -> None:
    summary = Summary(
        before=3, generated=0, left=2, seconds=1.0, total=Report(done=5, dead=1), replaced=0, handed_back=0
    )
    assert summary_lines(summary)[0] == "5 done, 1 dead, 0 failed and tried again; 2 left in the queue"
    balance = summary_lines(summary, has_balance=True)[0]
    assert balance == "0 generated + 3 there before = 5 done + 1 dead + 2 left, -5 not accounted for"


def shown(snapshot: Snapshot, *, verbose: bool = False) -> str:
    file = io.StringIO()
    Console(file=file, width=92).print(drawn(snapshot, verbose=verbose))
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
    summary = Summary(before=3, generated=0, left=3, seconds=1.0, total=Report(), replaced=0, handed_back=0)
    assert "retry" not in "".join(summary_lines(summary))
    waiting = replace(summary, retries=3, next_retry=2 * 86_400.0)
    assert "3 wait for their retry, the next at 20" in "".join(summary_lines(waiting))
    assert [("--drain-retries" in "".join(summary_lines(waiting, drains=drains))) for drains in (True, False)] == [
        True,
        False,
    ]
