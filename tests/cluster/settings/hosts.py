"""A host with the server, others with consumers: one vanishes, or is cut off and back, or their clocks are wrong."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from servers import Backend
from servers.network import Host, network
from tests.chaos.arena import Arena, clock
from tests.chaos.faults.network import COME_BACK_SECONDS
from tests.chaos.faults.processes import freeze, kill_bare, kill_group, kill_supervised
from tests.chaos.faults.server import restart
from tests.chaos.fleet import Formation, Group, Settings, until
from tests.cluster.setting import Setting

FLEET: Final = Formation(supervised=2, bare=3, witnesses=0).but(lease=3.0, road="namespace")
RIGHT_CLOCKS: Final[Mapping[str, float]] = MappingProxyType({"one": 0.0, "two": 0.0})
WRONG_CLOCKS: Final[Mapping[str, float]] = MappingProxyType({"one": 5.0, "two": -7.0})
"""Hours."""
SEED: Final = os.environ.get("CHAOS_SEED", "1")
"""Of the random times and choices."""
TEN: Final = Formation(supervised=4, bare=6, witnesses=0).but(lease=3.0, road="namespace")
THREE_HOSTS: Final[Mapping[str, float]] = MappingProxyType({"one": 0.0, "two": 0.0, "three": 0.0})


class HostsArena(Arena):
    """An arena whose groups are started on the hosts in turn."""

    hosts: dict[str, Host]
    """Those of the consumers that are there."""
    clocks: Mapping[str, float]

    def _start(self, command: list[str], settings: Settings, consumers: int | None) -> Group:
        here = {name: self.groups_on(host) for name, host in self.hosts.items()}
        name = min(here, key=lambda one: len(here[one]))
        environment = (f"{variable}={value}" for variable, value in clock(self.clocks[name]).items())
        self.prefix = [*self.hosts[name].prefix, "env", *environment]
        return super()._start(command, settings, consumers)

    def groups_on(self, host: Host) -> list[Group]:
        """The groups on a host that are alive."""
        inside = set(host.processes())
        return [group for group in self.groups if group.alive and group.pid in inside]

    def sessions_from(self, host: Host) -> list[Any]:
        """The sessions of a host, each with whether it holds anything: a transaction or a lock."""
        if self.postgres:
            return self.ask(
                "SELECT pid, state <> 'idle' OR EXISTS (SELECT 1 FROM pg_locks WHERE pid = s.pid AND granted "
                "AND locktype = 'advisory') FROM pg_stat_activity s WHERE host(client_addr) = :address",
                address=host.address,
            )
        return self.ask(
            "SELECT id, EXISTS (SELECT 1 FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = id) "
            "FROM information_schema.processlist WHERE host LIKE :address",
            address=f"{host.address}:%",
        )


@contextmanager
def several(
    folder: Path, *, backend: Backend, clocks: Mapping[str, float] = RIGHT_CLOCKS, **options: Any
) -> Iterator[Arena]:
    """An arena on several hosts. `clocks`: by how many hours those of the consumers' hosts are off."""
    with network("database", *clocks) as hosts, hosts["database"].serve(backend) as server:
        print(f"{backend} {server.version}, a host for it and {len(clocks)} for consumers", flush=True)
        arena = HostsArena(server, random.Random(f"hosts {SEED} {backend}"), folder, **options)
        arena.hosts = {name: hosts[name] for name in clocks}
        arena.clocks = clocks
        arena.roads["namespace"] = server.network_url
        yield arena


def _of_hosts(arena: Arena) -> HostsArena:
    assert isinstance(arena, HostsArena)
    return arena


def vanish(arena: Arena) -> None:
    """A host is gone without a word: nothing it held may stay held for much longer than its lease."""
    arena = _of_hosts(arena)
    host = arena.hosts.pop("two")
    groups = arena.groups_on(host)
    pids = [pid for group in groups for pid in group.consumers()]
    arena.busy(pids)
    arena.hit(pids)
    for group in groups:
        group.doomed = True
    host.vanish()
    until(lambda: not set(pids) & set(arena.owners()), "the owners of a host that vanished are dead", COME_BACK_SECONDS)
    until(lambda: not any(holds for _, holds in arena.sessions_from(host)), "its sessions hold nothing", 5.0)
    for session, _ in arena.sessions_from(host):  # they are of no harm, and last for hours
        arena.end_session(session)


def part(arena: Arena) -> None:
    """A host is cut off for longer than the lease, then back: its consumers work again by themselves."""
    arena = _of_hosts(arena)
    host = arena.hosts["two"]
    pids = [pid for group in arena.groups_on(host) for pid in group.consumers()]
    arena.busy(pids)
    arena.hit(pids)
    host.cut()
    until(lambda: not set(pids) & set(arena.owners()), "the owners of a host that is cut off are dead")
    arena.pause(1.0, 3.0)
    host.heal()
    healed = time.time()
    until(
        lambda: set(pids) <= arena.ran_since(healed),
        f"consumers of a host that was cut off work again: {pids}",
        COME_BACK_SECONDS,
    )
    print(f"all {len(pids)} consumers of the host work again after {time.time() - healed:.1f} s", flush=True)


def _settings(backend: Backend, title: str) -> tuple[Setting, ...]:
    place, per_batch = partial(several, backend=backend), partial(several, backend=backend, kind="batches")
    skewed = partial(several, backend=backend, clocks=WRONG_CLOCKS)
    return (
        Setting(f"{title}, a host vanishes", place, FLEET, (vanish,)),
        Setting(f"{title}, a host vanishes, claims per batch", per_batch, FLEET, (vanish,)),
        Setting(f"{title}, a host cut off and back, twice", place, FLEET, (part, part)),
        Setting(f"{title}, hosts with clocks 5 h ahead and 7 h behind", skewed, FLEET, (kill_bare,)),
    )


def _with_keys(backend: Backend, title: str) -> Iterator[Setting]:
    place = partial(several, backend=backend, clocks=THREE_HOSTS)
    faults = (kill_supervised, freeze, part, restart, kill_bare, kill_group)
    limited, in_order = partial(place, per_key=2), partial(place, kind="batches", in_order=True)
    yield Setting(f"{title}, ten consumers on three hosts, at most 2 of a key", limited, TEN, faults)
    yield Setting(f"{title}, ten consumers on three hosts, keys in order, claims per batch", in_order, TEN, faults)


SETTINGS: Final = (
    *_settings("postgres", "Postgres"),
    *_settings("mysql", "MySQL"),
    *_with_keys("postgres", "Postgres"),
    *_with_keys("mysql", "MySQL"),
    *_with_keys("mariadb", "MariaDB"),
)
