"""Processes that die before they are ready, and one that nobody is left to kill."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from claimjobs.workers.process_slot import FIRST_WAIT
from tests.backends import Backend
from tests.process.command import HANDLERS, noted, rows, started, statuses, summary
from tests.process.dear import dear

pytestmark = pytest.mark.one_server("the processes are the same on each")


@dear
def test_a_run_whose_consumers_die_before_they_are_ready_ends_after_its_duration(
    anywhere: Backend, tmp_path: Path
) -> None:
    """Its clock begins when the last of them has died once: else a run that cannot begin would never end."""
    anywhere.queue().enqueue(rows(3))
    words = ("tests.process.stillborn:handle", "--consumers", "2", "--duration", "1", "--json")
    with started(anywhere, tmp_path, *words) as command:
        _, out, err = command.end(30)
    assert summary(out)["done"] == 0
    assert re.search(r"process \d+ ended by signal 9; replaced in ", err)
    assert statuses(anywhere) == ["unclaimed"] * 3


@dear
def test_processes_that_die_young_are_replaced_ever_later(anywhere: Backend, tmp_path: Path) -> None:
    words = ("tests.process.stillborn:handle", "--consumers", "1", "--duration", "60")
    with started(anywhere, tmp_path, *words) as command:
        for doubled in (2, 4, 8):
            command.wait_until_it_says(f"by signal 9; replaced in {FIRST_WAIT * doubled:.1f} s")


@dear
def test_an_orphan_whose_handler_does_not_let_go_ends_itself(anywhere: Backend, tmp_path: Path) -> None:
    """Nobody is left to kill it; its jobs go to others."""
    queue = anywhere.queue()
    queue.enqueue(rows(10))
    words = (f"{HANDLERS}:hold_on_as_an_orphan", "--consumers", "1")
    with started(anywhere, tmp_path, *words) as command:
        anywhere.wait_for(lambda: noted(anywhere, "begun"), "the consumer has begun")
        command.process.kill()
        command.wait_until_all_is_gone(10)
    anywhere.wait_for(lambda: (queue.reclaim(), statuses(anywhere) == ["unclaimed"] * 10)[-1], "they are handed back")
