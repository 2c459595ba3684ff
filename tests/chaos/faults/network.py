"""What happens between consumers and their server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import sqlalchemy as sa

from tests.chaos import namespace
from tests.chaos.arena import Arena
from tests.chaos.faults.fault import NotHere
from tests.chaos.fleet import until
from tests.chaos.proxy import Proxy

COME_BACK_SECONDS = 30.0
"""Seconds until a consumer whose network was away works again."""


@contextlib.contextmanager
def behind_a_proxy(arena: Arena) -> Iterator[Arena]:
    """Consumers of road `proxy` go through a proxy."""
    with Proxy(_address(arena)) as proxy:
        arena.proxy = proxy
        arena.roads["proxy"] = _by_way_of(arena, proxy)
        yield arena


@contextlib.contextmanager
def in_a_namespace(arena: Arena) -> Iterator[Arena]:
    """Consumers of road `namespace` live in a network of their own; a proxy on this side leads to the server."""
    try:
        cage = namespace.Namespace()
    except namespace.NotPermitted as error:
        raise NotHere(str(error)) from None
    with cage, Proxy(_address(arena), cage.outside) as proxy:
        arena.roads["namespace"] = _by_way_of(arena, proxy)
        arena.prefix = cage.prefix
        arena.cage = cage
        yield arena


def _address(arena: Arena) -> tuple[str, int]:
    url = sa.make_url(arena.server.url)
    return url.host or "127.0.0.1", int(url.port or 0)


def _by_way_of(arena: Arena, proxy: Proxy) -> str:
    url = sa.make_url(arena.server.url).set(host=proxy.host, port=proxy.port)
    return url.render_as_string(hide_password=False)


def _far(arena: Arena) -> list[int]:
    """The consumers that do not reach the server directly."""
    return [pid for group in (*arena.supervisors, *arena.bares) for pid in group.consumers()]


def cut(arena: Arena) -> None:
    """Every connection is reset."""
    arena.hit(_far(arena))
    arena.the_proxy.cut()


def stall(arena: Arena) -> None:
    """Nothing passes for some seconds, shorter or longer than the lease; then all of it does."""
    arena.hit(_far(arena))
    arena.the_proxy.stall()
    arena.pause(0.5, arena.formation.settings.lease * 2)
    arena.the_proxy.flow()


def swallow(arena: Arena) -> None:
    """A black hole for longer than the lease; what was open then is never heard of again."""
    arena.hit(_far(arena))
    arena.the_proxy.swallow()
    arena.pause(arena.formation.settings.lease + 1, arena.formation.settings.lease + 2)
    arena.the_proxy.spit()
    _work_again(arena)
    arena.the_proxy.forget_swallowed()


def take_down(arena: Arena) -> None:
    """The network of a machine is away for longer than the lease, then back."""
    arena.hit(_far(arena))
    arena.the_cage.down()
    arena.pause(arena.formation.settings.lease + 1, arena.formation.settings.lease + 2)
    arena.the_cage.up()
    _work_again(arena)


def _work_again(arena: Arena) -> None:
    """Wait until each consumer that was away has executed something."""
    since = time.time()
    seen = "SELECT DISTINCT pid FROM chaos_runs WHERE at > :since"
    until(
        lambda: set(_far(arena)) <= {row[0] for row in arena.ask(seen, since=since)},
        f"consumers whose network was away work again: {_far(arena)}",
        COME_BACK_SECONDS,
    )
