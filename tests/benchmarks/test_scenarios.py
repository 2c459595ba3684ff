"""Each scenario measures what it says, at a size that takes a second. No times."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import enqueue, idle, order, pickup, scenario, tables
from benchmarks.contestants import CALLED, LOOKS, LOOPS, OURS, RAW
from benchmarks.crew import Worker
from benchmarks.goals import Found
from benchmarks.report import Sample, figures
from benchmarks.scenario import Record, Scenario, for_server, named, sizes_of
from claimjobs import Queue
from servers import Server
from tests.backends import Backend

pytestmark = pytest.mark.thorough("that the benchmarks measure what they say")

TINY: dict[str, dict[str, Any]] = {
    "drain": {"jobs": 300, "consumers": [1]},
    "batch_size": {"jobs": 300, "batch": [10, 500]},
    "order": {"jobs": 300, "consumers": [1]},
    "held_snapshot": {"seconds": 2, "raw_seconds": 1, "without": 1, "begins": 0, "waiting": 1_000, "last": 2},
    "backlog": {"waiting": [1_000], "turns": 3},
    "pickup": {"jobs": 4, "looking": 3},
    "idle": {"consumers": [2], "settle": 0, "seconds": 2, "looks": True},
    "enqueue": {"rows": [1_500], "memory": 2_000},
    "round_trip": {"jobs": 800, "delays_ms": [1]},
    "latency": {"delays_ms": [1.0], "batch": [10], "consumers": [1], "jobs": 100},
    "slow_handlers": {"milliseconds": [1], "batch": [100], "batches": [3]},
    "one_transaction": {"batch": [10], "jobs": 40, "repeat": 1},
    "few_per_key": {"keys": [3], "rows": 600, "consumers": 1, "seconds": 1, "small_jobs": 3},
    "many_at_once": {"at_once": [3], "jobs": 6, "quick_jobs": 60, "mails": 4, "repeat": 1},
    "with_handlers": {"consumers": [2], "handler_ms": [10], "batch": [10], "seconds": 1},
    "client": {"jobs": 300, "repeat": 1},
    "candidates": {"rows": 600, "one_of": [3]},
}
ON_EACH = {"order", "held_snapshot", "backlog", "idle", "enqueue"}  # which have SQL of their own
WITHOUT_THE_LOOP = {
    "pickup",
    "idle",
    "enqueue",
    "client",
    "latency",
    "one_transaction",
    "few_per_key",
    "with_handlers",
    "many_at_once",
    "candidates",
}


def test_each_scenario_has_a_size_for_the_tests() -> None:
    assert set(TINY) == set(scenario.NAMES)


@pytest.mark.parametrize("name", sorted(set(scenario.NAMES) - ON_EACH))
def test_a_scenario_measures(anywhere: Backend, name: str) -> None:
    _check(name, _measured(anywhere, name))


@pytest.mark.parametrize("name", sorted(ON_EACH))
def test_a_scenario_measures_on_each_database(database: Backend, name: str) -> None:
    _check(name, _measured(database, name))


def _check(name: str, samples: list[Sample]) -> None:
    assert all(sample.value > 0 for sample in samples)
    assert RAW in {sample.contestant for sample in samples} or name in WITHOUT_THE_LOOP
    CHECKS.get(name, lambda _: None)(samples)


def _strict_order(samples: list[Sample]) -> None:
    """One consumer sees it."""
    assert [sample.also["at most"] for sample in samples] == [0, 0]


def _one_trip_a_turn(samples: list[Sample]) -> None:
    """The raw loop on Postgres."""
    delayed = {sample.contestant: sample.also["trips a turn"] for sample in samples if sample.at}
    assert set(delayed) == set(LOOPS)
    assert delayed[RAW] == 1


def _followed(samples: list[Sample]) -> None:
    """Second by second, without the snapshot and with it."""
    assert [len(sample.course) for sample in samples if sample.contestant == OURS] == [1, 2]


def _beside_two_of_the_driver(samples: list[Sample]) -> None:
    """And alone with the most rows."""
    assert [sample.at for sample in samples] == [1_500, 1_500, 1_500, 2_000]
    assert [sample.contestant for sample in samples[2:]] == [OURS, OURS]
    assert not {sample.contestant for sample in samples[:2]} - {*enqueue.ON_POSTGRES, *enqueue.ON_MYSQL}


def _by_percentile(samples: list[Sample]) -> None:
    """Never less at a higher one, of both ways to wait."""
    for name, jobs in ((CALLED, 4), (LOOKS, 3)):
        mine = [sample for sample in samples if sample.contestant == name]
        assert [sample.at for sample in mine] == list(pickup.PERCENTILES)
        assert [sample.value for sample in mine] == sorted(sample.value for sample in mine)
        assert {sample.also["jobs"] for sample in mine} == {jobs}


def _cost_of_nothing(samples: list[Sample]) -> None:
    """Of both ways to wait; all of them have just lain down, for which something is sent."""
    assert [sample.contestant for sample in samples] == [CALLED, LOOKS]
    assert all(cast("float", sample.also[name]) > 0 for sample in samples for name in (idle.SENT, idle.COUNTED))


def _no_faster_than_its_handlers(samples: list[Sample]) -> None:
    """Two consumers with batches of 10 that take 10 ms each."""
    assert [(sample.also["batch"], sample.also["handler ms"]) for sample in samples] == [(10, 10)]
    assert samples[0].value < 2 * 10 / 0.010


def _far_away(samples: list[Sample]) -> None:
    """Claims in rows and per batch; each turn waits for a round trip at least, which is as long as it says."""
    assert [sample.also["claims"] for sample in samples] == ["rows", "batches"]
    assert all(
        cast("float", sample.also["ms a turn"]) > cast("float", sample.also["added ms"]) > 1 for sample in samples
    )


CHECKS = {
    "latency": _far_away,
    "pickup": _by_percentile,
    "idle": _cost_of_nothing,
    "order": _strict_order,
    "round_trip": _one_trip_a_turn,
    "held_snapshot": _followed,
    "with_handlers": _no_faster_than_its_handlers,
    "enqueue": _beside_two_of_the_driver,
}


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


def test_a_job_passes_over_what_nobody_has_begun_with() -> None:
    assert order.passed_over([1, 2, 5, 6, 3, 4], [1, 2, 3, 4, 5, 6]) == [0, 0, 2, 2, 0, 0]
    assert order.passed_over([3, 2, 1], [1, 2, 3]) == [2, 1, 0]


def test_the_peak_of_a_process_is_its_own() -> None:
    ours = b"x" * 300_000_000
    assert enqueue.peak_of_this_process() > len(ours) / 2**20
    assert 10 < Worker(enqueue.peak_of_this_process).result() < 200


def _found(at: dict[tuple[str, float], float], **also: float) -> Found:
    return Found(figures(Sample(name, place, value, also) for (name, place), value in at.items()))


def test_raw_inserts_are_the_faster_ones_of_the_driver() -> None:
    rates = dict(zip(enqueue.ON_MYSQL, (50_000.0, 80_000.0), strict=True)) | {OURS: 60_000.0}
    found = _found({(name, enqueue.HELD_TO): rate for name, rate in rates.items()}, **{enqueue.PEAK: 100})
    assert [goal.figure for goal in enqueue.goals(found, "mysql")] == [0.75, 100]
    assert [goal.figure for goal in enqueue.goals(found, "postgres")] == [60_000, 100]


def test_an_idle_consumer_is_held_to_the_worst_of_few_and_many() -> None:
    sent = [Sample(CALLED, 1, 0.1, {idle.SENT: 0.7}), Sample(CALLED, idle.MANY, 1.5, {idle.SENT: 0.5})]
    assert [goal.figure for goal in idle.goals(Found(figures(sent)), "postgres")] == [0.7, 1.5]


@pytest.mark.parametrize("family", ["postgres", "mysql", "mariadb"])
def test_a_pick_up_is_held_to_two_percentiles(family: str) -> None:
    found = _found({(CALLED, at): float(at) for at in pickup.PERCENTILES})
    assert [goal.figure for goal in pickup.goals(found, family)] == [50, 99]


def test_idle_consumers_must_stay(anywhere: Backend) -> None:
    anywhere.make("jobs")
    with Queue(anywhere.url) as queue:
        queue.stop()
        with pytest.raises(tables.WrongCount, match="1 of 1"), idle.waiting([queue]):
            _join(idle.THREAD)
    queue.engine.dispose()


def _join(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(120)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    samples = [Sample("a", 1, 2.5, {"limit": "fsync", "cost": None}, [1, 2]), Sample("b", 1, 3.0, {}, [3])]
    record = Record("drain", "postgres", "a server", "a command", {"sizes": {}}, samples)
    record.write(tmp_path)
    assert scenario.read(tmp_path / "drain-postgres.json") == record
