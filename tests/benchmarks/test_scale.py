"""The model of sizes: against what is known without it, and against the files of measured costs."""

from __future__ import annotations

import itertools
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scale import __main__ as command
from benchmarks.scale import held, sizes
from benchmarks.scale.costs import RESULTS, NotMeasured, read
from benchmarks.scale.held import Held
from benchmarks.scale.model import Cores, Curve, Measured, consumers_for, throughput
from benchmarks.scale.sizes import Primary
from docs import make_benchmarks, make_scale

pytestmark = pytest.mark.thorough("that the benchmarks measure what they say")

TURN = 0.002
CONSTANT = Curve([(1, TURN)])


def test_one_consumer_takes_the_sum_of_its_times() -> None:
    assert throughput(1, 0.05, Cores(4, CONSTANT)) == pytest.approx(1 / (0.05 + TURN))


def test_consumers_that_are_never_away_have_all_cores() -> None:
    assert throughput(3, 0, Cores(4, CONSTANT)) == pytest.approx(3 / TURN)
    assert throughput(9, 0, Cores(4, CONSTANT)) == pytest.approx(4 / TURN)


@pytest.mark.parametrize("cores", [1, 2, 8])
@pytest.mark.parametrize("consumers", [1, 7, 40, 400])
def test_no_more_than_the_asymptotic_bounds(cores: int, consumers: int) -> None:
    """No cores carry more than they are, and nobody is faster than alone."""
    away = 0.05
    found = throughput(consumers, away, Cores(cores, CONSTANT))
    assert found <= min(cores / TURN, consumers / (away + TURN)) * (1 + 1e-9)


def test_the_bounds_are_reached_far_from_the_knee() -> None:
    station = Cores(2, CONSTANT)
    assert throughput(3, 5.0, station) == pytest.approx(3 / (5.0 + TURN), rel=1e-3)
    assert throughput(20_000, 5.0, station) == pytest.approx(2 / TURN)


def test_one_core_is_the_erlang_formula_of_the_finite_source_queue() -> None:
    """With the mean of `consumers` being away of load A, the core is busy but for Erlang's B(consumers, A)."""
    consumers, away = 12, 0.03
    load = away / TURN
    terms = [load**n / math.factorial(n) for n in range(consumers + 1)]
    assert throughput(consumers, away, Cores(1, CONSTANT)) == pytest.approx((1 - terms[-1] / sum(terms)) / TURN)


def test_the_recursion_of_mean_value_analysis_finds_as_much() -> None:
    """Reiser and Lavenberg's for one core: a consumer that comes finds those that one consumer less would leave."""
    away, queue = 0.01, 0.0
    for consumers in range(1, 30):
        response = TURN * (1 + queue)
        expected = consumers / (away + response)
        queue = expected * response
        assert throughput(consumers, away, Cores(1, CONSTANT)) == pytest.approx(expected)


def test_competition_makes_a_turn_dearer() -> None:
    demand = Curve([(1, TURN), (10, 2 * TURN)])
    assert throughput(1_000, 0.01, Cores(4, demand)) == pytest.approx(4 / (2 * TURN))
    assert throughput(1, 0.01, Cores(4, demand)) == pytest.approx(1 / (0.01 + TURN))


def test_a_measured_system_gives_back_what_was_measured() -> None:
    assert throughput(3, 0, Measured(Curve([(1, 100), (2, 150), (4, 170)]))) == pytest.approx(160)


def test_a_curve_is_constant_outside() -> None:
    curve = Curve([(1, 10), (3, 20)])
    assert [curve.at(x) for x in (0.5, 1, 2, 3, 9)] == [10, 10, 15, 20, 20]
    assert curve.times(2).at(2) == 30


def test_the_fewest_consumers_that_are_enough() -> None:
    station = Cores(4, CONSTANT)
    enough = consumers_for(0.9 * station.most, 0.1, station)
    assert throughput(enough, 0.1, station) >= 0.9 * station.most > throughput(enough - 1, 0.1, station)
    with pytest.raises(ValueError, match="more than the station carries"):
        consumers_for(station.most, 0.1, station)


# --- with measured costs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["postgres", "mysql"])
@pytest.mark.parametrize("claims", ["rows", "batches"])
def test_more_cores_and_larger_batches_carry_more(backend: str, claims: str) -> None:
    results = read(backend)
    small, large = (
        [Primary(cores, 0.0005).most(results.costs(claims, batch)) for cores in (2, 4)] for batch in (10, 100)
    )
    assert small[1] == pytest.approx(2 * small[0])
    assert large[0] > small[0]


def test_a_primary_is_as_busy_as_its_consumers_make_it() -> None:
    costs, primary = read("postgres").costs("rows", 100), Primary(4, 0.0005)
    found = sizes.size(read("postgres"), "rows", 100, primary)
    assert list(found.consumers.values()) == sorted(found.consumers.values())
    for milliseconds, consumers in found.consumers.items():
        assert primary.rate(costs, consumers, milliseconds / 1000) == pytest.approx(found.jobs, rel=0.02)


@pytest.mark.parametrize("handler", [0.001, 0.01, 0.04, 1.0])
def test_a_step_has_a_reserve_and_no_batch_that_takes_too_long(handler: float) -> None:
    results = read("postgres")
    found = sizes.step_for(results, 20_000, 0.0005, handler)
    assert found is not None
    most = Primary(found.cores, 0.0005).most(results.costs(found.claims, found.batch))
    assert most >= 2 * 20_000
    assert found.batch * handler <= sizes.LONGEST or found.batch == 10
    assert found.consumers >= 20_000 * handler


@pytest.mark.parametrize("backend", ["postgres", "mysql"])
def test_what_is_held_has_a_sign(backend: str) -> None:
    """Above 0 the model promises too much; the runs are those of the files."""
    runs = [*held.drains(read(backend)), *held.alone(read(backend)), *held.with_handlers(read(backend))]
    assert {run.claims for run in runs} == {"rows", "batches"}
    assert Held("rows", 100, 0, 0, 1, measured=100, predicted=110).error == pytest.approx(0.1)


def test_costs_that_were_not_measured_name_the_command(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "drain-mysql.json", tmp_path)
    with pytest.raises(NotMeasured, match="--only batch_size round_trip slow_handlers --backend mysql --json"):
        read("mysql", tmp_path)


def test_a_batch_that_was_not_measured_names_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scale", "--batch", "77"])
    with pytest.raises(SystemExit):
        command.main()
    assert (
        "batches of 77 were not measured on postgres: run `python -m benchmarks.batch_size" in capsys.readouterr().err
    )


def test_the_command_shows_sizes_and_what_they_are_held_against(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scale", "--cores", "4", "--batch", "100"])
    command.main()
    shown = capsys.readouterr().out
    assert shown.count("a primary that is 90% busy, 0.5 ms from its consumers") == 2
    monkeypatch.setattr(sys, "argv", ["scale", "--rate", "1000", "900000", "--handler-ms", "0.1", "200"])
    command.main()
    shown = capsys.readouterr().out
    assert shown.count("a primary that carries 2 times the rate") == 2
    assert shown.count("more than 8") == 4
    for wrong in (["--rate", "0"], ["--rate", "9", "--batch", "10"]):
        monkeypatch.setattr(sys, "argv", ["scale", *wrong])
        with pytest.raises(SystemExit):
            command.main()
    monkeypatch.setattr(sys, "argv", ["scale", "--held", "--backend", "mysql"])
    command.main()
    assert "drains, predicted from CPU costs" in capsys.readouterr().out


def test_the_page_and_its_pictures_are_those_of_the_results() -> None:
    text = make_scale.PAGE.read_text(encoding="utf-8")
    drawn = make_scale.pictures()
    there = {name: (make_benchmarks.IMAGES / name).read_text(encoding="utf-8") for name in drawn}
    assert (make_scale.page(text), drawn) == (text, there), "run `python -m docs.make_scale`"


def test_the_command_measures_runs_to_be_held_against(tmp_path: Path) -> None:
    for name in ("drain", "batch_size", "round_trip", "slow_handlers"):
        shutil.copy(RESULTS / f"{name}-postgres.json", tmp_path)
    arguments = ["--backend", "postgres", "--measure", "--small", "--results", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale", *arguments], check=True, capture_output=True, text=True, timeout=120
    )
    *_, runs = done.stdout.partition("drains with a handler, predicted from those without")
    assert len(list(itertools.takewhile(str.strip, runs.splitlines()[1:]))) == 1 + 2
    assert (tmp_path / "with_handlers-postgres.json").exists()
