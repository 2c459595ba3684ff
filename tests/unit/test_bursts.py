"""Of a burst of the same error a person sees the first lines, and then how many more there were."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from claimjobs.cli.screen import BURST_SECONDS, FAILURES_SHOWN, Bursts, Screen
from claimjobs.log_events import FAILURES_COUNTED, JOB_DEAD, JOB_RETRY, OWNER_DEAD
from claimjobs.report import Report
from claimjobs.workers.run import Snapshot

LOG = logging.getLogger("claimjobs.settle")


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def shown() -> Iterator[tuple[Lines, Bursts]]:
    lines, burst = Lines(), Bursts()
    lines.addFilter(burst)
    LOG.addHandler(lines)
    yield lines, burst
    burst.tell()
    LOG.removeHandler(lines)


def fail(number: int, error: str = "no answer", event: str = JOB_RETRY) -> None:
    LOG.warning("job %d: %s", number, error, extra={"event": event, "error": error})


def test_the_first_ones_have_a_line_and_the_others_are_counted(shown: tuple[Lines, Bursts]) -> None:
    lines, burst = shown
    for number in range(10):
        fail(number)
    fail(11, "another")
    fail(12, event=JOB_DEAD)
    LOG.warning("owner 7 is dead", extra={"event": OWNER_DEAD, "error": "no answer"})
    burst.tell()
    burst.tell()
    first = [f"job {number}: no answer" for number in range(FAILURES_SHOWN)]
    others = ["job 11: another", "job 12: no answer", "owner 7 is dead"]
    assert lines.lines == [*first, *others, "7 more failures, to run again, by the same error: no answer"]


def test_a_burst_that_goes_on_is_only_counted(shown: tuple[Lines, Bursts]) -> None:
    lines, burst = shown
    for count in (FAILURES_SHOWN + 1, 2, 0, 1):
        for number in range(count):
            fail(number, event=JOB_DEAD)
        burst.tell()
    first = [f"job {number}: no answer" for number in range(FAILURES_SHOWN)]
    counted = [f"{count}, dead, by the same error: no answer" for count in ("1 more failure", "2 more failures")]
    assert lines.lines == [*first, *counted, "job 0: no answer"]


def test_the_count_comes_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    state = Snapshot("running", 0.0, (), (), Report(), waiting=0, rate=0.0)
    with Screen(quiet=True) as screen:
        screen.update(state)
        for number in range(FAILURES_SHOWN + 1):
            fail(number)
        screen.update(replace(state, elapsed=BURST_SECONDS - 0.1))
        assert "1 more failure" not in capsys.readouterr().err
        screen.update(replace(state, elapsed=BURST_SECONDS))
        assert "WARNING: 1 more failure, to run again, by the same error: no answer" in capsys.readouterr().err
    logging.getLogger().handlers.clear()
    assert FAILURES_COUNTED == "failures_counted"
