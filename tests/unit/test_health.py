"""When /livez says that a restart is needed, and /readyz that consumers do not work."""

from __future__ import annotations

import time
from itertools import chain, repeat
from types import SimpleNamespace
from typing import cast

import pytest

from claimjobs.metrics.backlog_reader import BacklogReader
from claimjobs.report import Report
from claimjobs.workers.endpoints import REPORTS_WITHIN, TICKS_WITHIN, missing, stuck
from claimjobs.workers.process_main import Plan
from claimjobs.workers.process_slot import ProcessSlot
from claimjobs.workers.run import Run
from claimjobs.workers.supervisor import Supervisor
from claimjobs.workers.supervisor_pipe import ProcessState

LONG = 600.0

READABLE = cast(BacklogReader, SimpleNamespace(latest=lambda: SimpleNamespace(error=None)))


def supervisor() -> Supervisor:
    """One that has not begun, with two consumers that report."""
    made = Supervisor(Plan("postgresql://nobody@127.0.0.1:1/none"), Run(consumers=2))
    made.ticked_at = time.monotonic()
    for slot in made.consumers:
        slot.note(ProcessState(Report()))
    return made


def test_consumers_that_report_are_live() -> None:
    assert not list(stuck(supervisor(), LONG))


def test_a_consumer_that_starts_is_live() -> None:
    checked = supervisor()
    checked.consumers[0].heard_at = None
    assert not list(stuck(checked, LONG))


def test_a_consumer_that_ends_while_it_is_asked_about_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    checked, heard = supervisor(), chain([time.monotonic()], repeat(None))
    monkeypatch.setattr(ProcessSlot, "heard_at", property(lambda _: next(heard)), raising=False)
    assert not list(stuck(checked, LONG))


def test_a_consumer_that_is_silent_is_not() -> None:
    checked = supervisor()
    checked.consumers[1].heard_at = time.monotonic() - REPORTS_WITHIN - 1
    assert list(stuck(checked, LONG)) == [f"consumer 2 has not reported for {REPORTS_WITHIN + 1:.0f} s"]


def test_a_consumer_whose_open_transaction_makes_no_progress_is_not() -> None:
    checked = supervisor()
    checked.consumers[0].note(ProcessState(Report(), stalled=LONG + 1))
    assert list(stuck(checked, LONG)) == [f"consumer 1 has made no progress on its batch for {LONG + 1:.0f} s"]


def test_a_supervisor_that_is_stuck_is_not() -> None:
    checked = supervisor()
    checked.ticked_at = time.monotonic() - TICKS_WITHIN - 1
    assert len(list(stuck(checked, LONG))) == 1


def test_where_each_consumer_has_ended_and_none_reports_it_is_not_ready() -> None:
    checked = Supervisor(Plan("postgresql://nobody@127.0.0.1:1/none"), Run(consumers=2))
    assert list(missing(checked, READABLE)) == ["2 consumers are starting"]
    for slot in checked.consumers:
        slot.reap()
    assert list(missing(checked, READABLE)) == [f"no consumer has reported for {REPORTS_WITHIN:g} s"]
    checked.consumers[0].note(ProcessState(Report()))
    checked.consumers[0].reap()
    assert not list(missing(checked, READABLE))
    checked.consumers[0].reported_at -= REPORTS_WITHIN
    assert list(missing(checked, READABLE))
