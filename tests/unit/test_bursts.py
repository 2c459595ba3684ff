"""Of a burst of the same error a person sees the first lines, and then how many more there were."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from claimjobs.cli import bursts
from claimjobs.cli.bursts import SHOWN, Bursts
from claimjobs.log_events import FAILURES_COUNTED, JOB_DEAD, JOB_RETRY, OWNER_DEAD

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
    first = [f"job {number}: no answer" for number in range(SHOWN)]
    others = ["job 11: another", "job 12: no answer", "owner 7 is dead"]
    assert lines.lines == [*first, *others, "7 more failures, to run again, by the same error: no answer"]


def test_the_count_comes_by_itself(shown: tuple[Lines, Bursts], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "SECONDS", 0.01)
    lines, burst = shown
    for number in range(SHOWN + 1):
        fail(number, event=JOB_DEAD)
    timer = burst._timer
    assert timer is not None
    timer.join()
    assert lines.lines[-1] == "1 more failure, dead, by the same error: no answer"
    assert FAILURES_COUNTED == "failures_counted"
