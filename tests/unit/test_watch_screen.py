"""What `claimjobs watch` draws, on a small and on a large terminal, and what it makes of its last readings."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from claimjobs.admin.overview import COUNTED_STATES, Backlog, FailedJob, History, KeyState, Overview
from claimjobs.admin.stats import OwnerStats
from claimjobs.cli.watch import line, screen, sparkline

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)
LIVES = {"awake": 2, "asleep": 0, "dead": 1}


def owner(number: int, *, dead: bool = False) -> OwnerStats:
    words = {"host": f"host-{number}", "pid": 100 + number, "age": 60.0, "silence": 0.4, "lease": 10.0}
    return OwnerStats(id=number, lock="held", dead=dead, asleep=None, jobs=100, unclaimable=0, **words)  # type: ignore[arg-type]


def overview(unclaimed: int, seconds: int = 0, *, owners: int = 3, dead: int = 2, limit: int = 10_000) -> Overview:
    counts = {**dict.fromkeys(COUNTED_STATES, 0), "unclaimed": unclaimed, "claimed": 300, "dead": dead}
    backlog = Backlog(limit, unclaimed // 2, 12.0, 0, LIVES, paused=False, **counts)
    jobs = tuple(FailedJob(number, 3, "OSError: mailbox full \x1b[2J") for number in range(dead))
    shown = tuple(owner(number, dead=number == owners - 1) for number in range(owners))
    return Overview("emails", NOON + timedelta(seconds=seconds), backlog, shown, jobs, (), None, None)


def drawn(seen: Overview, history: History, size: tuple[int, int], asks: str = "") -> list[str]:
    file = io.StringIO()
    Console(file=file, width=size[0], height=size[1]).print(screen(seen, history, size, asks=asks), end="")
    return file.getvalue().splitlines()


def history_of(*counts: int) -> tuple[Overview, History]:
    """Readings every two seconds."""
    history = History()
    for number, count in enumerate(counts):
        seen = overview(count, 2 * number)
        history.add(seen)
    return seen, history


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 12)])
def test_it_fills_the_terminal_and_no_line_is_too_long(width: int, height: int) -> None:
    _, history = history_of(*range(9_000, 3_000, -100))
    lines = drawn(overview(3_000, 118, owners=100, dead=10), history, (width, height))
    assert len(lines) == height
    assert {len(text) for text in lines} == {width}
    assert lines[0].startswith("emails  running")
    assert lines[-1].startswith("p pause   r resume")
    assert "\x1b" not in "".join(lines)


def test_dead_owners_come_first_and_the_rest_is_counted() -> None:
    seen, history = overview(10, owners=100, dead=10), History()
    history.add(seen)
    lines = drawn(seen, history, (80, 24))
    owners = [text.split() for text in lines if "host-" in text]
    assert owners[0][0] == "99"
    assert any(f"{100 - len(owners)} more" in text for text in lines)
    assert sum("mailbox full" in text for text in lines) == 5


def test_keys_that_wait_are_shown_with_their_turn() -> None:
    _, history = history_of(5)
    keys = (KeyState("b\x1b[2J", 0, -65.0), KeyState(7, 2, 1.4))
    seen = replace(overview(10, owners=100, dead=10), keys=keys)
    lines = [" ".join(text.split()) for text in drawn(seen, history, (80, 24))]
    assert len(lines) == 24
    place = lines.index("key holds its turn")
    assert lines[place + 1].endswith("0 due for 1 min 5 s")
    assert lines[place + 2] == "7 2 held back, again in 1 s"


def test_jobs_that_will_be_tried_again_come_before_the_dead() -> None:
    _, history = history_of(5)
    again = (FailedJob(17, 4, "KeyError: 'address'", 62.0), FailedJob(18, 1, "timeout\x1b", -3.0))
    seen = overview(10, dead=1)
    seen = replace(seen, retrying=again, backlog=replace(seen.backlog, retrying=2))
    lines = [" ".join(text.split()) for text in drawn(seen, history, (80, 24))]
    place = lines.index("failed job failures next try last error")
    assert lines[place + 1 : place + 3] == ["17 4 in 1 min 2 s KeyError: 'address'", "18 1 due timeout\\x1b"]
    assert lines[place + 3].startswith("0 3 dead OSError: mailbox full")
    assert "2 failed and will be tried again" in line(seen, history)


def test_both_kinds_of_failed_jobs_are_shown_and_no_row_is_lost_to_a_long_outlook() -> None:
    seen, history = history_of(9_000, 8_999)
    again = tuple(FailedJob(100 + number, 4, "timeout", 62.0) for number in range(10))
    long = replace(seen.backlog, unclaimed=8_999, due=8_999, oldest=90_061.0, retrying=1_234)
    crowded = replace(overview(8_999, dead=10, owners=1), retrying=again, backlog=long)
    lines = [text.rstrip() for text in drawn(crowded, history, (80, 24))]
    assert sum(text.startswith("8,999 due") and text.endswith("…") for text in lines) == 1
    assert [sum(word in text for text in lines) for word in ("timeout", "mailbox full")] == [5, 5]


def test_without_a_consumer_it_says_so_and_no_time_until_the_queue_is_empty() -> None:
    seen, history = history_of(20, 10)
    alone = replace(seen, backlog=replace(seen.backlog, owners={"awake": 0, "asleep": 0, "dead": 1}))
    assert drawn(alone, history, (80, 24))[0].startswith("emails  no consumer is running")
    assert ("empty in" in line(seen, history), "empty in" in line(alone, history)) == (True, False)


def test_a_question_takes_the_place_of_the_keys() -> None:
    seen, history = history_of(5)
    assert drawn(seen, history, (80, 24), "cancel which jobs? ids: 17")[-1].rstrip() == "cancel which jobs? ids: 17"


def test_the_change_of_a_state_is_that_of_the_last_half_minute() -> None:
    _, history = history_of(*[9_000] * 10, *range(9_000, 6_000, -200))
    assert history.change("unclaimed") == pytest.approx(-(14 * 200) / 30, rel=0.1)
    assert history.empty_in() == pytest.approx(6_200 / (14 * 200 / 30), rel=0.1)
    assert history.change("claimed") == 0


def test_of_more_jobs_than_are_counted_no_change_is_known() -> None:
    seen, history = history_of(9_000, 9_500, 10_000)
    assert (history.change("unclaimed"), history.empty_in()) == (None, None)
    assert "10,000+ unclaimed" in line(seen, history)
    assert history_of(5)[1].change("unclaimed") is None


def test_a_line_says_what_is_paused_and_what_is_dead() -> None:
    seen, history = history_of(20, 10)
    paused = replace(seen, paused=65.0, pause_reason="deploy\x1b")
    assert line(paused, history) == (
        "12:00:02 emails: paused for 1 min 5 s (deploy\\x1b), 10 unclaimed, 300 claimed, 2 dead, 5 due, "
        "the oldest has been due for 12 s, empty in 2 s, owners: 2 awake, 1 dead"
    )


def test_bars_are_as_high_as_their_share_of_the_largest() -> None:
    assert sparkline([0, 1, 2, 4, 8], 3) == "▃▅█"
    assert sparkline([0, 0], 5) == "▁▁"
    assert sparkline([], 5) == ""
