"""What an operator does to a queue at work: deploys anew, stops by a deadline, pauses and resumes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from tests.chaos.arena import Arena
from tests.chaos.fleet import ROOT, Group, Overdue, until

CHARGED = "SELECT count(*) FROM chaos_jobs WHERE attempts > 0 OR suspect > 0"
"""Jobs that somebody was charged for. No handler fails here, and nobody dies."""


def stop_at_deadline(arena: Arena) -> None:
    """SIGTERM of a supervisor whose deadline ends before its batches do: they are released, and cost no attempt."""
    supervisor = arena.supervisors[-1]
    arena.busy(supervisor.consumers())
    arena.hit(supervisor.consumers())
    _end(supervisor)
    _nothing_charged(arena)


def deploy(arena: Arena) -> None:
    """Start a supervisor beside the old one, then end the old one: it finishes its batches."""
    old = arena.supervisors[-1]
    settings, consumers = arena.formation.settings, arena.formation.supervised
    arena.supervisors.append(arena.supervisor(settings, consumers))
    until(lambda: all(arena.supervisors[-1].seats(arena.owners())), "the new consumers are registered")
    arena.hit(old.consumers(), consumers=0)
    _end(old)
    _nothing_charged(arena)


def pause_and_resume(arena: Arena) -> None:
    """Pause the queue until nobody holds a job, see that nothing is claimed, and resume it."""
    _claimjobs(arena, "pause", "--reason", "a drill")
    until(lambda: _is_quiet(arena), "every consumer has noticed the pause")
    before = _claims(arena)
    arena.pause(0.3, 0.6)
    if _claims(arena) != before or any(arena.owners().values()):
        raise Overdue("a paused queue was claimed from")
    _claimjobs(arena, "resume")
    arena.hit_everyone()
    _nothing_charged(arena)


def _is_quiet(arena: Arena) -> bool:
    """Whether nothing was claimed for longer than a consumer takes to notice a pause."""
    before = _claims(arena)
    time.sleep(arena.formation.settings.lease / 5 + 0.5)
    return _claims(arena) == before


def _claims(arena: Arena) -> object:
    claims = "SELECT count(*) FROM chaos_moves WHERE new_status = 'claimed'"
    return arena.ask(claims), arena.ask("SELECT count(*) FROM chaos_runs")


def _end(supervisor: Group) -> None:
    supervisor.doomed = True
    os.kill(supervisor.pid, signal.SIGTERM)
    until(lambda: not supervisor.processes(), "the consumers of a stopped supervisor are gone", 20)
    if supervisor.leader.returncode != 0:
        raise Overdue(f"a supervisor that was stopped ended with {supervisor.leader.returncode}, log {supervisor.log}")


def _nothing_charged(arena: Arena) -> None:
    if arena.ask(CHARGED) != [(0,)]:
        raise Overdue(f"{arena.ask(CHARGED)} jobs were charged an attempt")


def _claimjobs(arena: Arena, *words: str) -> None:
    command = [sys.executable, "-m", "claimjobs", *words, *arena.queue.words, "--url", arena.server.url]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
