"""What happens to a server, and to the sessions that it has."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

import sqlalchemy as sa

from claimjobs.claim.candidate_range import Overfetch
from tests.chaos.arena import Arena, Strike
from tests.chaos.fleet import until
from tests.chaos.work import PLAIN

FULL_SECONDS = (2.0, 4.0)
"""How long no connection is to be had."""
BY_KEY = "jobs /*! FORCE INDEX (PRIMARY) */"
"""The table, read by its key: through another index InnoDB keeps locks on entries of jobs that it skips, and then the
settle of whoever has locked those by the key waits until the end of this transaction. Postgres reads a comment.
"""


def restart(arena: Arena) -> None:
    """kill -9 of every process of the server, then its start on the same data."""
    arena.server.kill()
    arena.pause(0.0, 1.0)
    arena.server.restart()
    arena.hit_everyone()


def restart_late(arena: Arena) -> None:
    """kill -9 of the server, which starts again only after the lease has ended."""
    arena.server.kill()
    arena.pause(arena.formation.settings.lease, arena.formation.settings.lease + 2)
    arena.server.restart()
    arena.hit_everyone()


def restart_after_max_batch_time(arena: Arena) -> None:
    """kill -9 of the server, away for longer than a batch may take, and shorter than the lease: nothing runs again."""
    arena.server.kill()
    longest = arena.formation.settings.max_batch_time
    arena.pause(longest + 0.5, longest + 1.5)
    arena.server.restart()
    arena.strikes.append(Strike(time.time(), frozenset(arena.consumers()), 0, True))


def end_sessions(arena: Arena) -> None:
    """An administrator ends every session, whatever it does."""
    arena.hit(arena.consumers())
    for session in arena.sessions():
        arena.end_session(session[0])


def exhaust_connections(arena: Arena) -> None:
    """Others take every connection there is, also those that consumers lose now, and keep them for a while."""
    consumers = arena.consumers()
    with _elsewhere(arena) as administrator, contextlib.ExitStack() as taken:
        deadline = time.monotonic() + arena.random.uniform(*FULL_SECONDS)
        _take_all(arena, taken)
        arena.hit(consumers)
        _end_others(arena, administrator)
        while time.monotonic() < deadline:
            _take_all(arena, taken)
            time.sleep(0.02)
    arena.hit(consumers, consumers=0)


def _take_all(arena: Arena, taken: contextlib.ExitStack) -> None:
    while (knocked := _knock(arena)) is not None:
        taken.enter_context(knocked)


def _knock(arena: Arena) -> socket.socket | None:
    """A connection that the server counts, and whose password it waits for; None when it has no more."""
    url = sa.make_url(arena.server.url)
    door = socket.create_connection((url.host or "", url.port or 0), timeout=10)
    if arena.postgres:
        words = f"user\0{url.username}\0database\0postgres\0\0".encode()
        door.sendall(struct.pack("!ii", 8 + len(words), 3 << 16) + words)
    with contextlib.suppress(OSError):
        answer = door.recv(5)
        if answer[:1] == b"R" if arena.postgres else answer[4:] == b"\n":  # a request to log in
            return door
    door.close()
    return None


@contextlib.contextmanager
def _elsewhere(arena: Arena) -> Iterator[sa.Connection]:
    """A connection that is not taken for a consumer's: it is in another database."""
    other = "postgres" if arena.postgres else "mysql"
    engine = sa.create_engine(sa.make_url(arena.server.url).set(database=other), poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield connection


def _end_others(arena: Arena, connection: sa.Connection) -> None:
    name = sa.make_url(arena.server.url).database
    if arena.postgres:
        asked = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
        connection.execute(sa.text(asked), {"name": name})
        return
    asked = "SELECT id FROM information_schema.processlist WHERE db = :name"
    for session in connection.scalars(sa.text(asked), {"name": name}).all():
        with contextlib.suppress(sa.exc.DBAPIError):
            connection.exec_driver_sql(f"KILL {session}").close()


def hold_row_locks(arena: Arena) -> None:
    """Somebody's long transaction locks what is claimed, and some of what waits, for longer than the lease."""
    with arena.engine.connect() as connection:
        locked = "SELECT id FROM {} WHERE {} ORDER BY id LIMIT 60 FOR UPDATE"
        connection.exec_driver_sql(locked.format("jobs", arena.claimed)).close()
        connection.exec_driver_sql(locked.format(BY_KEY, arena.queue.unclaimed) + " SKIP LOCKED").close()
        arena.pause(arena.formation.settings.lease + 0.5, arena.formation.settings.lease + 1.5)
        connection.rollback()
    arena.hit(arena.consumers(), consumers=0)


def hold_the_head(arena: Arena) -> None:
    """Somebody's long transaction locks more rows at the head than a search reads at once; others come after them."""
    many = (Overfetch.LARGEST + 1) * arena.formation.settings.size
    arena.load.enqueue([PLAIN] * many)
    waiting = f"{arena.queue.unclaimed} AND NOT ({arena.claimed})"
    locked = f"SELECT id FROM {BY_KEY} WHERE {waiting} ORDER BY id LIMIT {many}"
    with arena.engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
        connection.exec_driver_sql(f"{locked} FOR UPDATE SKIP LOCKED").close()
        [[last]] = connection.exec_driver_sql("SELECT max(id) FROM jobs")  # a sort locks all rows that it reads
        arena.load.enqueue([PLAIN] * arena.formation.settings.size)
        left = "SELECT count(*) FROM chaos_jobs WHERE id > :last AND status <> 'done'"
        until(lambda: arena.ask(left, last=last) == [(0,)], "the rest is done")
        connection.rollback()
    arena.hit(arena.consumers(), consumers=0)
