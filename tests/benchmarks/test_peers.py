"""Peers: what is told of a run, what makes it void, and what a driver and the race say to each other. No times."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import environments, race, report
from benchmarks.peers.catalogue import (
    CLAIMJOBS,
    CLAIMJOBS_BATCHES,
    CLAIMJOBS_PER_KEY,
    MYSQL,
    PEERS,
    PER_KEY,
    POSTGRES,
    Peer,
    claimjobs_at,
)
from benchmarks.peers.driver import Order
from benchmarks.peers.environments import SYSTEMS, Environment, NotHere
from benchmarks.peers.race import Outcome, RunFailed
from benchmarks.peers.report import Absence
from docs import make_peers
from tests.backends import Backend

pytestmark = pytest.mark.thorough("that the benchmarks measure what they say")

JOBS = 20
HERE = Environment(Path(sys.executable))


# --- the catalogue -------------------------------------------------------------------------------------------


def test_every_system_has_its_file_and_every_file_its_system() -> None:
    files = {file.stem for pattern in ("*.py", "*.mjs") for file in SYSTEMS.glob(pattern) if file.stem[0] != "_"}
    assert files == {peer.module for peer in (CLAIMJOBS, CLAIMJOBS_BATCHES, CLAIMJOBS_PER_KEY, *PEERS, *PER_KEY)}


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.module)
def test_a_systems_file_says_where_its_settings_are_documented(peer: Peer) -> None:
    assert re.search(r"https://\S+", make_peers.settings(peer))


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.module)
def test_every_version_is_pinned(peer: Peer) -> None:
    assert all(re.search(r"==\d", package) for package in peer.packages)
    assert all(re.search(r"@\d", package) for package in peer.npm)


@pytest.mark.parametrize("backend", [POSTGRES, MYSQL])
@pytest.mark.parametrize("claims", [["rows"], ["batches"], ["rows", "batches"]], ids="+".join)
def test_claimjobs_runs_at_the_batch_size_of_every_system(backend: str, claims: list[str]) -> None:
    racing = command.contestants(backend, PEERS, claims)
    for kind in claims:
        ours = {peer.batch for peer in racing if peer.module == command.OURS[kind].module}
        assert ours == {peer.batch for peer in PEERS if backend in peer.jobs}
    assert len({peer.name for peer in racing}) == len(racing)


def test_the_contestants_take_turns() -> None:
    turns = command.turns(PEERS[:2], [1, 4], 2)
    a, b = PEERS[:2]
    assert list(turns) == [(a, 1), (b, 1), (a, 1), (b, 1), (a, 4), (b, 4), (a, 4), (b, 4)]


# --- the report ----------------------------------------------------------------------------------------------


def outcome(contestant: str, seconds: float, batch: int = 100, workers: int = 1) -> Outcome:
    return Outcome(contestant, batch, workers, jobs=1_000, seconds=seconds, client_cores=0.5, busy_cores=1.5)


def test_a_system_stands_beside_claimjobs_at_its_own_batch_size() -> None:
    ours = [outcome("claimjobs, batch 100", seconds) for seconds in (1, 2, 4)]
    others = [outcome("claimjobs, batch 500", 1, batch=500), outcome("claimjobs, batch 100", 1, workers=2)]
    its = [outcome("it, batch 100", seconds) for seconds in (8, 10, 99)]
    found = {(line.contestant, line.workers): line for line in report.medians([*ours, *others, *its])}
    assert found["it, batch 100", 1].rate == 100
    assert found["it, batch 100", 1].ratio == 5
    assert found["claimjobs, batch 500", 1].ratio == 1


def test_without_claimjobs_there_is_no_ratio() -> None:
    [line] = report.medians([outcome("it, batch 7", 2, batch=7)])
    assert line.ratio is None
    assert "it, batch 7" in report.table([outcome("it, batch 7", 2, batch=7)])


def test_what_a_job_costs_the_server_is_a_median_of_the_runs_that_know() -> None:
    runs = [replace(outcome("it", 1), log_bytes=size, dead_rows=2.0) for size in (500.0, None, 700.0)]
    [line] = report.medians(runs)
    assert (line.log_bytes, line.dead_rows) == (600, 2)
    assert report.table(runs).splitlines()[1].endswith("  600                2")
    *_, heading, _, row = make_peers._table([asdict(line)])
    assert heading.endswith("| log bytes a job | dead rows a job |")
    assert row.endswith("| 600 | 2 |")


def test_who_did_not_run_is_told() -> None:
    told = report.table([outcome("claimjobs", 1)], [Absence("it", "no such thing here")])
    assert told.splitlines()[-1] == "NOT RUN: it: no such thing here"


def test_a_system_that_fails_is_told_and_runs_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    tally, calls = command.Tally(), []

    def fails(peer: Peer, *_: Any) -> Outcome:
        calls.append(peer)
        raise RunFailed("3 jobs were done twice or more, 0 not")

    for _ in range(2):
        command._run(tally, PEERS[0], HERE, order("honest", Path("rows")), run=fails)
    assert calls == [PEERS[0]]
    [absence] = tally.told()
    assert absence.title == PEERS[0].name
    assert "3 jobs were done twice" in absence.why
    assert "FAILED" in capsys.readouterr().err


def test_the_page_is_fresh() -> None:
    results = json.loads(make_peers.RESULTS.read_text(encoding="utf-8"))
    assert make_peers.PAGE.read_text(encoding="utf-8") == make_peers.page(results)


@pytest.mark.parametrize("backend", [POSTGRES, MYSQL])
def test_the_page_has_a_figure_or_a_reason_for_every_system(backend: str) -> None:
    found = json.loads(make_peers.RESULTS.read_text(encoding="utf-8"))["servers"][backend]
    told = {line["contestant"] for line in found["medians"]} | {absence["title"] for absence in found["not_run"]}
    for peer in command.contestants(backend, PEERS):
        assert {peer.name, peer.title} & told, peer.title


# --- the environments ----------------------------------------------------------------------------------------


def test_another_version_is_another_environment() -> None:
    peer = next(peer for peer in PEERS if peer.packages)
    other = replace(peer, packages=("other==1", *peer.packages))
    assert environments._name(peer, "python3") != environments._name(other, "python3")


def test_a_system_that_needs_a_newer_python_than_there_is_says_so() -> None:
    with pytest.raises(NotHere, match=r"needs Python 3\.99"):
        environments.environment(replace(PEERS[0], packages=("it==1",), python=(3, 99)))


def test_why_a_package_cannot_be_had_is_told_in_one_line() -> None:
    said = "Looking\nERROR: No matching distribution found for it==1\n\n[notice] A new release of pip\n"
    assert environments._reason(said) == "ERROR: No matching distribution found for it==1"


# --- the race ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([[0, 1], [1, 2]], "1 jobs were done twice or more, 0 not"),
        ([[0, 1], []], "0 jobs were done twice or more, 1 not"),
        ([[0, 1], [2, 3]], "0 jobs were done twice or more, 0 not"),
    ],
)
def test_a_wrong_count_is_found_out(numbers: list[list[int]], message: str) -> None:
    race.verify(3, [[0, 2], [1]])
    with pytest.raises(RunFailed, match=message):
        race.verify(3, numbers)


@dataclass(frozen=True)
class Fake(Environment):
    """Where the system of this folder runs."""

    def command(self, _: Peer, action: str, order: str) -> list[str]:
        return [str(self.python), "-m", "benchmarks.peers.driver", "tests.benchmarks.fake", action, order]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows"
    race.write_rows(path, JOBS)
    return path


def order(how: str, rows: Path, workers: int = 2) -> Order:
    return Order(url=f"fake://here/{how}", rows=str(rows), jobs=JOBS, batch=1, workers=workers, number=0)


def raced(how: str, rows: Path, environment: Environment | None = None, left: int = 0) -> Outcome:
    """What comes of a race of the fake system."""
    peer, given = replace(PEERS[0], title="fake", batch=1), order(how, rows)
    with race.workers(peer, environment or Fake(HERE.python), given, rows.parent) as crew:
        return race.clocked(peer, given, crew, lambda: left)


@pytest.mark.parametrize("how", ["honest", "children"])
def test_what_workers_and_their_children_do_is_counted(how: str, rows: Path) -> None:
    found = raced(how, rows)
    assert (found.contestant, found.workers, found.jobs) == ("fake", 2, JOBS)


def test_a_job_done_twice_in_place_of_another_is_found_out(rows: Path) -> None:
    with pytest.raises(RunFailed, match="2 jobs were done twice or more, 2 not"):
        raced("wrong", rows)


def test_a_worker_that_dies_is_told_with_its_last_words(rows: Path) -> None:
    with pytest.raises(RunFailed, match=r"ended with status 1: .*out of luck"):
        raced("dies", rows)


def test_workers_that_do_nothing_are_not_waited_for(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "SECONDS_TO_WORK", 0.2)
    with pytest.raises(RunFailed, match=f"0 of {JOBS} jobs were handled"):
        raced("idle", rows)


def test_a_queue_that_is_not_empty_afterwards_is_told(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "SECONDS_TO_END", 0.2)
    with pytest.raises(RunFailed, match="3 jobs are not done"):
        raced("honest", rows, left=3)


@dataclass(frozen=True)
class FakeOnNode(Environment):
    """Where the system of the test below runs."""

    def command(self, _: Peer, action: str, order: str) -> list[str]:
        assert self.folder
        return [str(self.python), str(self.folder / "driver.mjs"), "fake", action, order]


def test_the_driver_for_node_says_the_same(rows: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed")
    shutil.copy(SYSTEMS.with_name("driver.mjs"), rows.parent)
    Path(rows.parent, "fake.mjs").write_text(
        """
        export async function work(order, line) {
          console.log("a banner");
          const [stop] = await line.ready();
          let number = 0;
          for await (const chunk of order.chunks(3)) {
            for (const { d } of chunk) if (number++ % order.workers === order.number) line.did(d);
          }
          await stop;
        }
        """
    )
    assert raced("honest", rows, FakeOnNode(Path(node), rows.parent)).jobs == JOBS


@pytest.fixture
def somewhere(anywhere: Backend) -> Iterator[Backend]:
    yield anywhere
    race.drop(anywhere.url)


@pytest.mark.parametrize(
    "peer", [claimjobs_at(7), claimjobs_at(7, CLAIMJOBS_BATCHES), PEERS[0]], ids=lambda peer: peer.module
)
def test_a_run_empties_a_real_queue(somewhere: Backend, peer: Peer, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    race.write_rows(rows, 300)
    given = Order(url=somewhere.url, rows=str(rows), jobs=300, batch=peer.batch, workers=2, number=0)
    found = race.run(peer, HERE, given)
    assert found.jobs == 300
    assert found.log_bytes
    assert found.dead_rows
    assert found.dead_rows >= 1
    assert (found.dead_rows < 2) == (peer.module == CLAIMJOBS_BATCHES.module)
