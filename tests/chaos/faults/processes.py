"""Processes that die, and one that comes back from the dead."""

from __future__ import annotations

import signal

from tests.chaos.arena import Arena
from tests.chaos.fleet import Group, until


def kill_supervised(arena: Arena) -> None:
    """SIGKILL of a consumer that has a supervisor."""
    _kill(arena, arena.busy(arena.supervisors[-1].consumers()))


def kill_bare(arena: Arena) -> None:
    """SIGKILL of a consumer that has none."""
    _kill(arena, arena.busy([group.pid for group in arena.bares if group.alive]))


def _kill(arena: Arena, victim: int) -> None:
    arena.hit([victim])
    group = _group_of(arena, victim)
    if victim == group.pid:
        group.doom()
    else:
        group.send(signal.SIGKILL, victim)


def kill_supervisor(arena: Arena) -> None:
    """SIGKILL of a supervisor: its consumers finish what they have in hand, and end."""
    supervisor = arena.supervisors[-1]
    arena.hit(supervisor.consumers(), consumers=0)
    supervisor.doom()
    until(lambda: not supervisor.processes(), "the consumers of a killed supervisor are gone", 20)


def kill_group(arena: Arena) -> None:
    """SIGKILL of a supervisor and all its consumers at once, as when a machine dies."""
    supervisor = arena.supervisors[-1]
    arena.busy(supervisor.consumers())
    arena.hit(supervisor.consumers())
    supervisor.send(signal.SIGKILL)
    supervisor.doom()


def freeze(arena: Arena) -> None:
    """SIGSTOP for longer than the lease, then SIGCONT: a zombie that comes back."""
    victim = arena.busy([pid for group in (*arena.supervisors, *arena.bares) for pid in group.consumers()])
    group = _group_of(arena, victim)
    arena.hit([victim])
    group.send(signal.SIGSTOP, victim)
    arena.pause(arena.formation.settings.lease + 1, arena.formation.settings.lease + 2)
    group.send(signal.SIGCONT, victim)


def _group_of(arena: Arena, pid: int) -> Group:
    return next(group for group in arena.groups if pid in group.processes())
