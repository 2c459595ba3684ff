"""Consumers that share a table or a server: each is killed, others do its jobs, and no other is disturbed."""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from claimjobs import make, side_car_tables
from tests.backends import Backend, Servers
from tests.chaos.beside import META, ORDERS, READY, RUNS, SIZE
from tests.chaos.fleet import Group, all_ended
from tests.tenants import neighbour_of

COUNT: Final = 600
KILLS: Final = 6
SEED: Final = os.environ.get("CHAOS_SEED", "1")

pytestmark = [pytest.mark.timeout(400), pytest.mark.thorough("faults under load, some twenty seconds")]


@dataclass(frozen=True)
class Place:
    """Where a consumer works, and how."""

    backend: Backend
    options: dict[str, Any]
    """Of its Queue."""
    left: str
    """What counts the jobs that are not done: a table with a condition."""

    def consumer(self, log: Path) -> Group:
        command = [sys.executable, "-m", "tests.chaos.beside", self.backend.url, json.dumps(self.options)]
        return Group(command, {}, log, None)

    @property
    def all_done(self) -> bool:
        return _count(self.backend, self.left) == 0


def test_nothing_is_lost_or_stuck_beside_a_table_that_must_not_be_altered(database: Backend, tmp_path: Path) -> None:
    META.create_all(database.engine)
    make(database.engine, side_car_tables(database.engine, "orders"))
    with database.engine.begin() as connection:
        connection.execute(sa.insert(ORDERS), [{"id": number} for number in range(1, COUNT + 1)])
    left = "orders WHERE id NOT IN (SELECT id FROM orders_claims WHERE status = 'done')"
    _kill_in_turn([Place(database, {"table": "orders", "side_car": True}, left)] * 3, tmp_path)
    assert sorted(_runs(database)) == list(range(1, COUNT + 1))


def test_nothing_is_lost_or_stuck_where_a_transaction_claims_beside_a_lease(database: Backend, tmp_path: Path) -> None:
    keys = _filled(database)
    options: list[dict[str, Any]] = [{"hold": "transaction"}, {}, {"hold": "transaction"}, {}]
    _kill_in_turn([Place(database, each, "jobs") for each in options], tmp_path)
    assert set(_runs(database)) == keys


def test_tenants_with_a_schema_each_do_their_own_jobs_and_reclaim_their_own(
    database: Backend, servers: Servers, tmp_path: Path
) -> None:
    with neighbour_of(database, servers) as neighbour:
        tenants = {each: _filled(each) for each in (database, neighbour)}
        _kill_in_turn([Place(each, {}, "jobs") for each in tenants] * 2, tmp_path)
        for tenant, keys in tenants.items():
            assert set(_runs(tenant)) == keys


def _filled(backend: Backend) -> set[int]:
    """Make a table of jobs, and enqueue them; their keys."""
    RUNS.create(backend.engine)
    backend.queue().enqueue([{"d": "plain", "e": ""} for _ in range(COUNT)])
    return {row["id"] for row in backend.rows()}


def _kill_in_turn(places: Sequence[Place], folder: Path) -> None:
    """Consume at these places, and kill one consumer after the other while work goes on, until all jobs are done.

    Only jobs that a killed consumer had in hand are executed twice. The others end in order, and leave nothing.
    """
    backends = {place.backend: None for place in places}
    dice, groups = random.Random(f"{SEED} {places[0].backend.name}"), list[Group]()
    with all_ended(groups):
        running = [place.consumer(folder / f"{number}.log") for number, place in enumerate(places)]
        groups += running
        for kill in range(KILLS):
            number = kill % len(places)
            place = places[number]
            until = place.backend.wait_for
            until(partial(_has_worked, place, running[number].pid), "it works, or all is done", 120)
            until(_more(place, _runs(place.backend).total() + dice.randint(1, 3 * SIZE)), "work goes on", 120)
            running[number].doom()
            running[number] = place.consumer(folder / f"{kill}-{number}.log")
            groups.append(running[number])
        for place in places:
            place.backend.wait_for(lambda place=place: place.all_done, "every job is done", 120)  # type: ignore[misc]
        for group in running:
            places[0].backend.wait_for(lambda group=group: READY in group.log.read_text(), "it is ready", 120)  # type: ignore[misc]
            group.stop()
    assert all(group.leader.returncode == 0 for group in running), [log.read_text() for log in folder.glob("*.log")]
    runs = [_runs(backend) for backend in backends]
    assert sum(each.total() - len(each) for each in runs) <= KILLS * SIZE
    for backend in backends:
        assert _count(backend, "claimjobs_owners") == _count(backend, "claimjobs_batches") == 0


def _runs(backend: Backend) -> Counter[int]:
    with backend.engine.connect() as connection:
        return Counter(connection.scalars(sa.select(RUNS.c.id)))


def _has_worked(place: Place, pid: int) -> bool:
    return bool(_count(place.backend, f"runs WHERE pid = {pid}")) or place.all_done


def _more(place: Place, than: int) -> Callable[[], bool]:
    return lambda: _runs(place.backend).total() > than or place.all_done


def _count(backend: Backend, what: str) -> int:
    with backend.engine.connect() as connection:
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM {what}").scalar_one())
