"""Several primaries: a MySQL group in multi-primary mode and a Galera cluster, with consumers on every member."""

from __future__ import annotations

import os
import random
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import sqlalchemy as sa

from servers.galera import galera
from servers.group import group
from servers.replication import wait_until
from servers.server import Server
from tests.chaos.arena import Arena
from tests.chaos.faults.processes import kill_bare
from tests.chaos.fleet import Formation, Road
from tests.cluster.setting import Setting

FLEET: Final = Formation(bare=6, witnesses=0).but(size=50)
BACKLOG: Final = 10_000
"""Regions need jobs: at most one for four batches."""


class Primaries(Protocol):
    """Servers that all take writes."""

    @property
    def members(self) -> Sequence[Server]:
        """All of them."""

    @property
    def together(self) -> Server:
        """All as one server."""

    @property
    def size(self) -> int:
        """How many members the first one sees."""

    def bring_back(self, member: Server) -> None:
        """Let a member that was killed take part again."""


class PrimariesArena(Arena):
    """An arena whose consumers each begin with another member. The audit is on the first one, which stays."""

    primaries: Primaries
    hosts: deque[str]

    def url(self, road: Road) -> str:
        url = sa.make_url(super().url(road))
        self.hosts.rotate()
        return url.update_query_dict({"host": tuple(self.hosts)}).render_as_string(hide_password=False)


@contextmanager
def members(folder: Path, *, start: Callable[[], AbstractContextManager[Primaries]]) -> Iterator[Arena]:
    """An arena on several primaries."""
    with start() as primaries:
        together = primaries.together
        print(f"{together.backend} {together.version}, {len(primaries.members)} primaries", flush=True)
        arena = PrimariesArena(together, random.Random("primaries"), folder, backlog=BACKLOG, chunk=1_000)
        arena.primaries, arena.hosts = primaries, deque(sa.make_url(together.url).query["host"])
        yield arena


def freeze_member(arena: Arena) -> None:
    """SIGSTOP of a member until the others have expelled it. It comes back, and applies what it missed for a while."""
    primaries = _primaries(arena)
    frozen = primaries.members[2]
    assert frozen.pid is not None
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: primaries.size == 2, "the others have expelled it")
        arena.pause(3.0, 4.0)
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    arena.hit_everyone()
    wait_until(lambda: primaries.size == len(primaries.members), "it is a member again")


def kill_member(arena: Arena) -> None:
    """SIGKILL of a member, which stays away."""
    _primaries(arena).members[1].kill()
    arena.pause(3.0, 4.0)
    arena.hit_everyone()


def _primaries(arena: Arena) -> Primaries:
    assert isinstance(arena, PrimariesArena)
    return arena.primaries


STRIKES: Final = (kill_bare, freeze_member, kill_member)
GROUP: Final = partial(members, start=partial(group, single=False))
GALERA: Final = partial(members, start=galera)
SETTINGS: Final = (
    Setting("MySQL group, three primaries, in order", GROUP, FLEET, (kill_bare,)),
    Setting("MySQL group, three primaries, any order", GROUP, FLEET.but(any_order=True), STRIKES),
    Setting("Galera, any order", GALERA, FLEET.but(any_order=True), STRIKES),
)
