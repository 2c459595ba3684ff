"""The benchmark does what it says: each contestant empties the table, and a wrong count is found out. No times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import article, drain, report
from benchmarks.crew import CrewFailed, Worker, gather
from benchmarks.harness import Share, now
from tests.backends import Backend

CONTESTANTS = {contestant.name: contestant for contestant in drain.contestants(read_committed=False)}
ROWS = list(article.payload(300))


@pytest.mark.parametrize("name", CONTESTANTS)
def test_a_contestant_drains_the_table(anywhere: Backend, name: str) -> None:
    run = drain.drain(CONTESTANTS[name], 2, url=anywhere.url, rows=ROWS)
    assert (run.contestant, run.consumers, run.jobs) == (name, 2, len(ROWS))
    assert run.claims > run.empty
    [median] = report.medians([run, replace(run, seconds=run.seconds * 2), run])
    assert median.rate == run.rate
    assert name in report.table([run])


@pytest.mark.parametrize(
    ("done", "message"),
    [
        ([1, 2, 2, 3], "1 jobs twice"),
        ([1, 2], "1 not done"),
        ([1, 2, 3], "1 left"),
    ],
)
def test_a_wrong_count_is_found_out(anywhere: Backend, done: list[int], message: str) -> None:
    article.setup_tables(anywhere.url)
    if "left" in message:
        drain.fill(anywhere.url, ROWS[:1])
    with pytest.raises(drain.WrongCount, match=message):
        drain.verify(anywhere.url, [1, 2, 3], [_share(done)])


def _share(keys: list[int]) -> Share:
    return Share(keys, began=now(), ended=now(), last=0.0, claims=1, empty=0, again=0)


def test_a_worker_that_fails_ends_the_others() -> None:
    with pytest.raises(CrewFailed, match="ZeroDivisionError"):
        gather([Worker(_for_ever), Worker(_fail)])


def _for_ever() -> None:
    import threading

    threading.Event().wait()


def _fail() -> None:
    raise ZeroDivisionError
