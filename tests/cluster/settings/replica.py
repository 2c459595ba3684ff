"""Candidates from a replica, which lags, is cut off and is killed: claims go on, with the primary alone if need be."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from claimjobs.options import Kind
from servers import Backend
from servers.replication import Pair, replicated
from tests.chaos.arena import Arena
from tests.chaos.faults.processes import kill_bare
from tests.chaos.fleet import Formation
from tests.cluster.setting import Setting

FLEET: Final = Formation(supervised=0, bare=4, witnesses=0).but(lease=3.0)
LAG: Final = 12
"""Seconds. From 10 seconds on claims leave a replica by themselves."""


class CandidatesArena(Arena):
    """An arena on the primary; its consumers find candidates on the replica."""

    pair: Pair


@contextmanager
def members(folder: Path, *, backend: Backend, kind: Kind = "rows") -> Iterator[Arena]:
    """An arena on a primary with its replica."""
    with replicated(backend) as pair:
        print(f"{backend} {pair.primary.version}, candidates from a replica", flush=True)
        arena = CandidatesArena(pair.primary, random.Random(backend), folder, kind, pair.replica.url)
        pair.wait_until_it_follows()
        arena.pair = pair
        yield arena


def lag(arena: Arena) -> None:
    """The replica shows the tables as they were seconds ago."""
    pair = _pair(arena)
    pair.delay(LAG)
    arena.pause(LAG + 2, LAG + 3)
    pair.delay(0)


def cut_off(arena: Arena) -> None:
    """The replica answers, and shows the tables as they were when it was cut off."""
    pair = _pair(arena)
    pair.cut_off()
    arena.pause(3, 4)
    pair.reconnect()


def kill_replica(arena: Arena) -> None:
    """SIGKILL of the replica, which is started again."""
    replica = _pair(arena).replica
    replica.kill()
    arena.pause(3, 4)
    replica.restart()


def _pair(arena: Arena) -> Pair:
    assert isinstance(arena, CandidatesArena)
    return arena.pair


STRIKES: Final = (kill_bare, lag, cut_off, kill_replica)

SETTINGS: Final = (
    Setting("Postgres, candidates from a standby", partial(members, backend="postgres"), FLEET, STRIKES),
    Setting(
        "Postgres, candidates from a standby, claims per batch",
        partial(members, backend="postgres", kind="batches"),
        FLEET,
        STRIKES,
    ),
    Setting("MySQL, candidates from a replica", partial(members, backend="mysql"), FLEET, STRIKES),
    Setting("MariaDB, candidates from a replica", partial(members, backend="mariadb"), FLEET, STRIKES),
)
