"""One place for a process: when a death is a new misfortune, and when the same one again."""

from __future__ import annotations

import os
from math import inf
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait

import pytest

from claimjobs.report import Report
from claimjobs.workers import process_slot
from claimjobs.workers.process_slot import FIRST_WAIT, LONGEST_WAIT, STRIKES, ProcessSlot
from claimjobs.workers.supervisor_pipe import GaveUp, ProcessState

LIKE_THIS = GaveUp("constraint", "no such value")
LIKE_THAT = GaveUp("table", "no such table")


def dies(pipe: Connection) -> None:
    """A process that comes to nothing."""
    del pipe
    os._exit(7)


def place() -> ProcessSlot:
    return ProcessSlot(1, dies)


def test_a_place_whose_processes_die_young_waits_twice_as_long_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_slot, "YOUNG_SECONDS", inf)  # a busy machine may start a process slowly
    child = place()
    child.start()
    assert child.process is not None
    assert wait([child.process.sentinel], 20)
    assert child.reap() == 7
    waits = [child.start_later() for _ in range(8)]
    doubled = [FIRST_WAIT * 2**n for n in range(1, 9)]
    assert waits == [min(seconds, LONGEST_WAIT) for seconds in doubled]
    assert not child.due


def test_a_process_that_the_system_refuses_leaves_nothing_and_can_be_started_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = place()
    resource_tracker.ensure_running()  # it has a descriptor of its own
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with monkeypatch.context() as full:
        full.setattr("multiprocessing.popen_spawn_posix.Popen._launch", refuses)
        for _ in range(3):
            with pytest.raises(BlockingIOError):
                child.start()
            child.kill()
    assert (child.process, child.pipe, child.restarts) == (None, None, 0)
    assert (len(os.listdir("/proc/self/fd")) if before else 0) == before
    child.start()
    assert child.process is not None
    assert wait([child.process.sentinel], 20)
    assert child.reap() == 7


def refuses(*_: object) -> None:
    raise BlockingIOError(11, "Resource temporarily unavailable")


def test_a_death_after_a_long_life_is_a_new_misfortune(monkeypatch: pytest.MonkeyPatch) -> None:
    child = place()
    monkeypatch.setattr("claimjobs.workers.process_slot.YOUNG_SECONDS", float("inf"))
    assert [child.start_later() for _ in range(2)] == [2 * FIRST_WAIT, 4 * FIRST_WAIT]
    monkeypatch.setattr("claimjobs.workers.process_slot.YOUNG_SECONDS", 0.0)
    assert [child.start_later() for _ in range(2)] == [FIRST_WAIT, FIRST_WAIT]


def test_the_same_error_again_and_again_ends_a_place() -> None:
    child = place()
    for _ in range(STRIKES - 1):
        child.note(LIKE_THIS)
        assert child.gave_up is None
    child.note(LIKE_THIS)
    assert child.gave_up == LIKE_THIS


def test_a_batch_in_between_makes_an_error_the_first_again() -> None:
    child = place()
    for _ in range(STRIKES):
        for _ in range(STRIKES - 1):
            child.note(LIKE_THIS)
        child.note(ProcessState(Report(), batch=1))
    assert child.gave_up is None
    for _ in range(STRIKES):
        child.note(ProcessState(Report()))  # the last word of each process: it had no batch
        child.note(LIKE_THIS)
    assert child.gave_up == LIKE_THIS


def test_another_error_in_between_makes_an_error_the_first_again() -> None:
    child = place()
    for _ in range(STRIKES):
        for error in (*[LIKE_THIS] * (STRIKES - 1), LIKE_THAT):
            child.note(error)
    assert child.gave_up is None


def test_an_error_that_no_other_process_need_meet_ends_a_place_at_once() -> None:
    child = place()
    child.note(GaveUp("nothing done", "nothing came of it", at_once=True))
    assert child.gave_up is not None
