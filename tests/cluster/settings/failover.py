"""A primary with a replica that has each commit before it returns: the primary is killed, the replica promoted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
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

FLEET: Final = Formation(supervised=2, bare=2, witnesses=0).but(lease=3.0)


class ReplicatedArena(Arena):
    """An arena whose URL has both hosts."""

    pair: Pair


@contextmanager
def members(folder: Path, *, backend: Backend, kind: Kind = "rows") -> Iterator[Arena]:
    """An arena on a primary and its replica."""
    with replicated(backend) as pair:
        pair.be_synchronous()
        print(f"{backend} {pair.primary.version}, a primary and a replica", flush=True)
        arena = ReplicatedArena(pair.members, random.Random(backend), folder, kind)
        pair.wait_until_it_follows()
        arena.pair = pair
        yield arena


def kill_primary(arena: Arena) -> None:
    """SIGKILL of the primary; the replica is promoted a moment later."""
    _fail_over(arena, _pair(arena).primary.kill)


def demote_primary(arena: Arena) -> None:
    """The primary answers on and refuses writes, as in a switchover; the replica is promoted a moment later."""
    _fail_over(arena, _pair(arena).demote)


def _fail_over(arena: Arena, end: Callable[[], None]) -> None:
    end()
    arena.pause(0.3, 0.6)
    arena.hit_everyone()
    _pair(arena).promote()


def _pair(arena: Arena) -> Pair:
    assert isinstance(arena, ReplicatedArena)
    return arena.pair


KILLED: Final = (kill_bare, kill_primary)
DEMOTED: Final = (kill_bare, demote_primary)

SETTINGS: Final = (
    Setting("Postgres, synchronous standby promoted", partial(members, backend="postgres"), FLEET, KILLED),
    Setting(
        "Postgres, switchover, claims per batch",
        partial(members, backend="postgres", kind="batches"),
        FLEET,
        DEMOTED,
    ),
    Setting("MySQL, semi-synchronous replica promoted", partial(members, backend="mysql"), FLEET, KILLED),
    Setting("MySQL, switchover", partial(members, backend="mysql"), FLEET, DEMOTED),
    Setting("MariaDB, semi-synchronous replica promoted", partial(members, backend="mariadb"), FLEET, KILLED),
)
