"""Several primaries: a MySQL group in multi-primary mode and a Galera cluster, with consumers on every member."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import sqlalchemy as sa

from servers.galera import galera
from servers.group import group
from servers.machine import Machine
from servers.network import Host, network
from servers.server import Server
from tests.chaos.arena import Arena
from tests.chaos.faults.processes import kill_bare
from tests.chaos.fleet import Formation, Road, until
from tests.cluster.setting import Setting

FLEET: Final = Formation(bare=6, witnesses=0).but(size=50, road="namespace")
BACKLOG: Final = 10_000
"""A random place is drawn if there is room for eight batches."""
JOBS: Final = 50_000
SPREAD: Final = 30_000
"""Of them before a member is cut off: then its consumers go to others, and stay there."""
JOBS_SECONDS: Final = 300.0
BACK_SECONDS: Final = 120.0
"""Until a member that was cut off is back."""
REFUSALS: Final = 0.02
"""The most claims in any order that may be refused, as a part of all."""
SWEEPS: Final = 2
"""The sweep in which a job of a killed consumer is released, and the next one
(docs/decisions/0049-a-random-place-and-around.md)."""


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

    def is_back(self, member: Server) -> bool:
        """Whether a member that was killed or cut off takes part again."""


class PrimariesArena(Arena):
    """An arena whose consumers, on a host of their own, each begin with another member. The audit is on the first
    member, which stays.
    """

    primaries: Primaries
    hosts: Sequence[Host]
    """Those of the members."""
    addresses: deque[str]

    def url(self, road: Road) -> str:
        url = sa.make_url(super().url(road))
        self.addresses.rotate()
        return url.update_query_dict({"host": tuple(self.addresses)}).render_as_string(hide_password=False)


@contextmanager
def members(
    folder: Path, *, start: Callable[[Sequence[Machine]], AbstractContextManager[Primaries]]
) -> Iterator[Arena]:
    """An arena on several primaries, each on a host of its own."""
    with network("one", "two", "three", "consumers") as network_hosts:
        *hosts, consumers = network_hosts.values()
        with start(hosts) as primaries:
            first, together = primaries.members[0], primaries.together.url
            print(f"{first.backend} {first.version}, {len(hosts)} primaries", flush=True)
            arena = PrimariesArena(first, random.Random("primaries"), folder, backlog=BACKLOG, chunk=1_000)
            arena.prefix, arena.roads["namespace"] = consumers.prefix, together
            arena.primaries, arena.hosts = primaries, hosts
            arena.addresses = deque(sa.make_url(together).query["host"])
            yield arena


def cut_off(arena: Arena) -> None:
    """No packet reaches a member or leaves it, for longer than the others wait. Then it comes back."""
    arena = _of_primaries(arena)
    _cut_off(arena, arena.hosts[2])


def cut_off_from_members(arena: Arena) -> None:
    """A member reaches no other one, and consumers reach it. Then it comes back."""
    arena = _of_primaries(arena)
    first, second, third = arena.hosts
    _cut_off(arena, second, first, third)


def _cut_off(arena: PrimariesArena, host: Host, *others: Host) -> None:
    """Cut a member off from everybody, or from others. All consumers work with the other members meanwhile."""
    primaries, pids = arena.primaries, arena.consumers()
    host.cut(*others)
    try:
        until(lambda: primaries.size == 2, "the others have expelled it")
        expelled = time.time()
        until(lambda: set(pids) <= arena.ran_since(expelled), f"consumers work with other members: {pids}")
    finally:
        host.heal(*others)
    arena.hit_everyone()
    until(lambda: primaries.size == len(primaries.members), "it is a member again", BACK_SECONDS)


def kill_member(arena: Arena) -> None:
    """SIGKILL of a member, which stays away."""
    _of_primaries(arena).primaries.members[1].kill()
    arena.pause(3.0, 4.0)
    arena.hit_everyone()


def fill(arena: Arena) -> None:
    """Wait until so many jobs have been enqueued as the row must have, and the member that was cut off has applied all
    that it missed. While others write as much as this machine can, it may not get that far.
    """
    primaries = _of_primaries(arena).primaries
    until(lambda: arena.load.acknowledged >= JOBS, f"{JOBS} jobs are enqueued", JOBS_SECONDS)
    arena.load.stop()
    until(lambda: primaries.is_back(primaries.members[2]), "the member has all that it missed", BACK_SECONDS)


def spread(arena: Arena) -> None:
    """Wait until more than half of the jobs have been enqueued: until now consumers are on all members."""
    until(lambda: arena.load.acknowledged >= SPREAD, f"{SPREAD} jobs are enqueued", JOBS_SECONDS)


def _of_primaries(arena: Arena) -> PrimariesArena:
    assert isinstance(arena, PrimariesArena)
    return arena


STRIKES: Final = (kill_bare, spread, cut_off, cut_off_from_members, kill_member, fill)
GROUP: Final = partial(members, start=partial(group, single=False))
GALERA: Final = partial(members, start=galera)
ANY_ORDER: Final = FLEET.but(any_order=True)
SETTINGS: Final = (
    Setting("MySQL group, three primaries, in order", GROUP, FLEET, (kill_bare,)),
    Setting(
        "MySQL group, three primaries, any order", GROUP, ANY_ORDER, STRIKES, most_refusals=REFUSALS, sweeps=SWEEPS
    ),
    Setting("Galera, in order", GALERA, FLEET, (kill_bare,)),
    Setting("Galera, any order", GALERA, ANY_ORDER, STRIKES, most_refusals=REFUSALS, sweeps=SWEEPS),
)
