"""Jobs that spoil their batch, and a clock that is wrong."""

from __future__ import annotations

import time
from math import log2

from tests.chaos import work
from tests.chaos.arena import Arena
from tests.chaos.faults import processes
from tests.chaos.fleet import until


def hands(size: int) -> int:
    """In how many hands an innocent job may be, that met a poison job in a batch of this size."""
    return int(log2(size)) + 1


def plant_raising(arena: Arena) -> None:
    """A job whose handler raises without a word of which job it was."""
    _plant_poison(arena, work.RAISES)


def plant_killing(arena: Arena) -> None:
    """A job that kills its process with SIGKILL; wait until it is out of attempts."""
    job = _plant_poison(arena, work.KILLS)
    status = "SELECT status FROM chaos_jobs WHERE id = :job"
    until(lambda: arena.ask(status, job=job) == [("dead",)], "a job that kills its process is dead")


def plant_holding(arena: Arena) -> None:
    """A job that lets no thread of its process run; wait until it is out of attempts."""
    job = _plant_poison(arena, work.HOLDS)
    status = "SELECT status FROM chaos_jobs WHERE id = :job"
    until(lambda: arena.ask(status, job=job) == [("dead",)], "a job that lets no thread run is dead")


def _plant_poison(arena: Arena, kind: str) -> int:
    settings = arena.formation.settings
    company = settings.most_held
    innocent = (company - 1) * (hands(company) - 1)
    guilty = hands(company) - 1 + settings.attempts - 1
    arena.endanger(innocent + guilty)
    return arena.plant(kind)


def hang(arena: Arena) -> None:
    """A handler that hangs for longer than a batch may take."""
    job = arena.plant(work.HANGS)
    ran: list[int] = []

    def look() -> bool:
        ran[:] = [row[0] for row in arena.ask("SELECT pid FROM chaos_runs WHERE job = :job", job=job)]
        return bool(ran)

    until(look, "the handler hangs")
    arena.hit(ran[:1])
    time.sleep(arena.hang_seconds + 0.5)  # until what still hangs lets go, and hears that its jobs are not its own


def kill_one_of_another_time(arena: Arena) -> None:
    """SIGKILL of a consumer where clocks are hours off: whoever hands back its jobs goes by a wrong clock too."""
    if arena.random.random() < 0.5:
        processes.kill_supervised(arena)
    else:
        processes.kill_bare(arena)
