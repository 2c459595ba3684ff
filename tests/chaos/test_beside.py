"""Consumers of one side-car: each is killed, and others do its jobs."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa

from claimjobs import make, side_car_tables
from tests.backends import Backend
from tests.chaos.beside import META, ORDERS, RUNS, SIZE
from tests.chaos.fleet import Group, all_ended

COUNT: Final = 600
KILLS: Final = 6
SEED: Final = os.environ.get("CHAOS_SEED", "1")
CONSUMERS: Final = 3

pytestmark = [pytest.mark.timeout(400), pytest.mark.thorough("faults under load, some twenty seconds")]


def consumer(backend: Backend, log: Path) -> Group:
    return Group([sys.executable, "-m", "tests.chaos.beside", backend.url], {}, log, None)


def test_nothing_is_lost_or_stuck_beside_a_table_that_must_not_be_altered(database: Backend, tmp_path: Path) -> None:
    META.create_all(database.engine)
    make(database.engine, side_car_tables(database.engine, "orders"))
    with database.engine.begin() as connection:
        connection.execute(sa.insert(ORDERS), [{"id": number} for number in range(1, COUNT + 1)])
    dice, groups = random.Random(f"{SEED} {database.name}"), list[Group]()
    with all_ended(groups):
        running = [consumer(database, tmp_path / f"{place}.log") for place in range(CONSUMERS)]
        groups += running
        for number in range(KILLS):
            place = number % CONSUMERS
            mine = partial(_has_worked, database, running[place].pid)
            database.wait_for(mine, "it works, or all is done", 120)
            enough = _runs(database).total() + dice.randint(1, 3 * SIZE)
            database.wait_for(partial(_are_more, database, enough), "work goes on", 120)
            running[place].doom()
            running[place] = consumer(database, tmp_path / f"{number}-{place}.log")
            groups.append(running[place])
        database.wait_for(partial(_all_done, database), "every order is done", 120)
        for group in running:
            group.stop()
    runs = _runs(database)
    assert sorted(runs) == list(range(1, COUNT + 1))
    assert sum(runs.values()) - COUNT <= KILLS * SIZE
    assert all(group.leader.returncode == 0 for group in running), [log.read_text() for log in tmp_path.glob("*.log")]
    assert _left(database, "claimjobs_owners") == _left(database, "claimjobs_batches") == 0


def _runs(backend: Backend) -> Counter[int]:
    with backend.engine.connect() as connection:
        return Counter(connection.scalars(sa.select(RUNS.c.id)))


def _has_worked(backend: Backend, pid: int) -> bool:
    with backend.engine.connect() as connection:
        found = connection.scalar(sa.select(sa.func.count()).select_from(RUNS).where(RUNS.c.pid == pid))
    return bool(found) or _all_done(backend)


def _are_more(backend: Backend, count: int) -> bool:
    return _runs(backend).total() > count or _all_done(backend)


def _all_done(backend: Backend) -> bool:
    return _left(backend, "orders_claims WHERE status = 'done'") == COUNT


def _left(backend: Backend, what: str) -> int:
    with backend.engine.connect() as connection:
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM {what}").scalar_one())
