"""A PgBouncer before Postgres, in each of its modes: consumers and producers go through it, and it is killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from claimjobs.options import Kind
from servers.pgbouncer import Mode, pgbouncer, version
from tests.chaos.arena import Arena, own_server
from tests.chaos.faults.processes import kill_bare
from tests.chaos.fleet import Formation
from tests.cluster.setting import Setting

THROUGH: Final = Formation(bare=3, witnesses=0).but(road="pooler", lease=3.0)
SESSIONS: Final = 10
"""Of the pooler: enough for the consumers and the load, which in mode session have one each."""


@contextmanager
def behind(folder: Path, *, mode: Mode, prepared: int, kind: Kind = "rows") -> Iterator[Arena]:
    """An arena whose consumers and load go through a PgBouncer. `prepared`: its `max_prepared_statements`."""
    with own_server("postgres") as server, pgbouncer(server.url, mode, SESSIONS, prepared=prepared) as pooler:
        print(f"postgres {server.version}, {version()}", flush=True)
        yield Arena(server, random.Random(mode), folder, kind, pooler=pooler)


def restart_pooler(arena: Arena) -> None:
    """SIGKILL of the pooler, which is away for a moment."""
    arena.the_pooler.kill()
    arena.pause(0.3, 0.6)
    arena.hit_everyone()
    arena.the_pooler.start()


STRIKES: Final = (kill_bare, restart_pooler)

# A consumer prepares nothing behind a pooler, so that `max_prepared_statements` must make no difference.
SETTINGS: Final = (
    Setting("PgBouncer by session", partial(behind, mode="session", prepared=0), THROUGH, STRIKES),
    Setting(
        "PgBouncer by session, session lock on, claims per batch",
        partial(behind, mode="session", prepared=200, kind="batches"),
        THROUGH.but(session_lock=True),
        STRIKES,
    ),
    Setting("PgBouncer by transaction", partial(behind, mode="transaction", prepared=0), THROUGH, STRIKES),
    Setting(
        "PgBouncer by transaction, 200 prepared, claims per batch",
        partial(behind, mode="transaction", prepared=200, kind="batches"),
        THROUGH,
        STRIKES,
    ),
    Setting(
        "PgBouncer by transaction, session lock on",
        partial(behind, mode="transaction", prepared=200),
        THROUGH.but(session_lock=True),
        refused="a session lock cannot work here",
    ),
    Setting(
        "PgBouncer by statement",
        partial(behind, mode="statement", prepared=200),
        THROUGH,
        refused="set its pool mode to transaction or session",
    ),
)
