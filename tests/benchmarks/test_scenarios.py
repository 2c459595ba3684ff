"""Each scenario measures what it says, at a size that takes a second. No times."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from benchmarks import order, report, scenario
from benchmarks.contestants import OURS, RAW, of_batches
from benchmarks.delay import DelayingProxy
from benchmarks.report import Sample
from benchmarks.scenario import Record, Scenario, for_server, named, sizes_of
from claimjobs import Queue
from servers import Server
from tests.backends import Backend

TINY: dict[str, dict[str, Any]] = {
    "drain": {"jobs": 300, "consumers": [1]},
    "batch_size": {"jobs": 300, "batch": [10, 500]},
    "order": {"jobs": 300, "consumers": [1]},
    "held_snapshot": {"seconds": 2, "raw_seconds": 1, "without": 1, "begins": 0, "waiting": 1_000, "last": 1},
    "backlog": {"waiting": [1_000], "turns": 3},
    "round_trip": {"jobs": 300, "delay_ms": 1},
    "slow_handlers": {"milliseconds": [1], "batch": [100], "batches": [3]},
    "client": {"jobs": 300, "repeat": 1},
}


def test_each_scenario_has_a_size_for_the_tests() -> None:
    assert set(TINY) == set(scenario.NAMES)


@pytest.mark.parametrize("name", scenario.NAMES)
def test_a_scenario_measures(anywhere: Backend, name: str, tmp_path: Path) -> None:
    samples = _measured(anywhere, name)
    assert all(sample.value > 0 for sample in samples)
    record = Record(name, "postgres", "a server", "a command", {"sizes": TINY[name]}, samples)
    record.write(tmp_path)
    read = scenario.read(tmp_path / f"{name}-postgres.json")
    assert report.aligned(read.lines()) == report.aligned(record.lines())
    assert {sample.contestant for sample in samples} == {figure.contestant for figure in read.figures}


@pytest.mark.parametrize("name", ["held_snapshot", "backlog"])  # which have SQL of their own
def test_it_does_so_on_each_database(database: Backend, name: str) -> None:
    assert all(sample.value > 0 for sample in _measured(database, name))


def _measured(backend: Backend, name: str) -> list[Sample]:
    server = Server(backend.family, backend.url, "a test's")
    server.pid = backend.server.pid
    sizes = {**sizes_of(named(name), small=True), **TINY[name]}
    return list(named(name).measure(server, for_server(sizes, backend.family)))


@pytest.mark.parametrize("name", scenario.NAMES)
def test_sizes_are_options_of_the_same_names(name: str) -> None:
    module: Scenario = named(name)
    assert set(module.SMALL) | set(module.FULL) <= set(module.SIZES)
    for family in ("postgres", "mysql", "mariadb"):
        assert isinstance(for_server(sizes_of(module), family), argparse.Namespace)


# --- order ---------------------------------------------------------------------------------------------------


def test_one_consumer_sees_strict_order(database: Backend) -> None:
    assert [sample.also["at most"] for sample in _measured(database, "order")] == [0, 0]


def test_a_job_is_out_of_place_by_what_others_began_first() -> None:
    assert order.displacements([1, 2, 5, 6, 3, 4], [1, 2, 3, 4, 5, 6]) == [0, 0, 0, 0, 2, 2]


# --- the line that takes longer ------------------------------------------------------------------------------


def test_the_raw_loop_waits_once_a_turn_on_postgres(anywhere: Backend) -> None:
    found = {sample.contestant: sample for sample in _measured(anywhere, "round_trip") if sample.at}
    trips = found[RAW].also["trips a turn"]
    assert isinstance(trips, float)
    assert 0 < trips <= 1  # what ends the line's look is the last settle, the claim that finds nothing comes with it
    assert set(found) == {contestant.name for contestant in of_batches()}


def test_a_line_counts_what_waits_for_an_answer(database: Backend) -> None:
    with DelayingProxy(database.url, 0.0) as proxy:
        database.make("jobs")
        queue = Queue(proxy.url)
        queue.check()
        queue.engine.dispose()
        some = proxy.trips(0, float("inf"))
        assert some > 0
        assert proxy.trips(0, 0) == 0


# --- held snapshot -------------------------------------------------------------------------------------------


def test_a_run_with_a_snapshot_is_followed_second_by_second(anywhere: Backend) -> None:
    without, held = (
        [sample for sample in _measured(anywhere, "held_snapshot") if sample.contestant == OURS and sample.at == at]
        for at in (False, True)
    )
    assert [len(sample.course) for sample in (*without, *held)] == [1, 2]
