"""A MySQL group with a single primary, which is killed: the group elects another one by itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from servers.group import Group, group
from tests.chaos.arena import Arena
from tests.chaos.faults.processes import kill_bare
from tests.chaos.fleet import Formation
from tests.cluster.setting import Setting

FLEET: Final = Formation(supervised=2, bare=2, witnesses=0).but(lease=3.0)


class GroupArena(Arena):
    """An arena whose URL has the hosts of all members."""

    group: Group


@contextmanager
def members(folder: Path) -> Iterator[Arena]:
    """An arena on a group of three."""
    with group() as three:
        print(f"mysql {three.primary.version}, a group of three", flush=True)
        arena = GroupArena(three.together, random.Random("group"), folder)
        arena.group = three
        yield arena


def kill_primary(arena: Arena) -> None:
    """SIGKILL of the primary. The others wait some seconds for it, then one of them takes writes."""
    assert isinstance(arena, GroupArena)
    arena.group.primary.kill()
    arena.group.wait_for_a_primary()
    arena.hit_everyone()


SETTINGS: Final = (Setting("MySQL group, single primary killed", members, FLEET, (kill_bare, kill_primary)),)
