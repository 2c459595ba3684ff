"""What the README says of deaths and refusals, where no other test says it already."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.backends import Backend
from tests.docs.shop import Shop

HOLDS_FIVE = """
import os, time
from claimjobs import Queue
queue = Queue(os.environ["CLAIMJOBS_URL"])
batch = queue.claim(5)
print(queue.owner_id, flush=True)
"""


def _process(backend: Backend, ending: str) -> subprocess.Popen[str]:
    """A process of its own that holds five jobs; its first line is its owner's id."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDS_FIVE + ending],
        env={**os.environ, "CLAIMJOBS_URL": backend.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(3)", "1 / 0"])
def test_a_process_that_ends_by_itself_hands_back(database: Backend, ending: str) -> None:
    queue = database.queue()
    queue.enqueue([{"d": "d", "e": "e"}] * 20)
    with _process(database, ending):
        pass
    assert (queue.stats().unclaimed, queue.stats().owners) == (20, ())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_leaves_its_jobs_until_they_are_given_back(
    database: Backend, number: signal.Signals
) -> None:
    queue = database.queue()
    queue.enqueue([{"d": "d", "e": "e"}] * 20)
    with _process(database, "time.sleep(60)") as process:
        assert process.stdout is not None
        owner = int(process.stdout.readline())
        process.send_signal(number)
    stats = queue.stats()
    assert (stats.unclaimed, stats.claimed) == (15, 5)
    assert [(left.id, left.pid, left.jobs) for left in stats.owners] == [(owner, process.pid, 5)]
    assert queue.give_back(owner) == 5
    assert (queue.stats().unclaimed, queue.stats().owners) == (20, ())


def test_the_demonstration_refuses_a_table_with_a_payload_of_its_own(any_shop: Shop) -> None:
    any_shop.open()
    for options in ("--generators 0", ""):
        done = subprocess.run(
            any_shop.shell(f"claimjobs start-processing --table emails --duration 1 {options}"),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 4
        assert "emails" in done.stderr
    assert len(any_shop.backend.rows("emails")) == 20
