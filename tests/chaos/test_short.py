"""Each fault once, with small figures. `make chaos` has the long form, and the figures of docs/guarantees.md."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

import servers
from claimjobs.options import Kind
from tests.chaos import audit, open_transactions
from tests.chaos.arena import Arena, own_server
from tests.chaos.claim_rows import Move, as_in_rows
from tests.chaos.faults import Fault, disk, network, processes, server, work
from tests.chaos.faults.fault import Ticket
from tests.chaos.fleet import ROOT, Formation, until
from tests.chaos.verdict import run
from tests.chaos.work import KILLS, RAISES

ALL_SORTS = Formation(supervised=2, bare=1, witnesses=1).but(lease=3.0)
MACHINES_AND_SERVERS = (
    processes.kill_supervised,
    processes.kill_bare,
    processes.freeze,
    server.restart,
    server.end_sessions,
    network.cut,
    network.stall,
    server.hold_row_locks,
    server.hold_the_head,
    server.exhaust_connections,
    processes.kill_group,
    processes.kill_supervisor,
)

OWNER, OTHER = 10_000_001, 10_000_002
"""Ids of two owners."""

DEADLINE = 30
"""Seconds until work must go on: how fast it does is for `make chaos` to say, on a quiet machine."""

SEED = os.environ.get("CHAOS_SEED", "1")
"""Of the random times and choices: the same in every run."""

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def _seed_is_told() -> None:
    """pytest shows it where a test fails."""
    print(f"seed {SEED}: CHAOS_SEED={SEED} does the same again")


@pytest.fixture(scope="module", params=["postgres", "mysql"])
def arena(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    backend, _, kind = request.param.partition(" ")
    per_key = 2 if kind == "per key" else 0
    yield from _arena(backend, tmp_path_factory.mktemp("chaos"), "rows" if per_key else kind or "rows", per_key)


def _arena(backend: servers.Backend, folder: Path, kind: Kind, per_key: int) -> Iterator[Arena]:
    try:
        started = own_server(backend)
    except servers.Unavailable as error:
        pytest.fail(f"no {backend} server: {error}", pytrace=False)
    with started:
        yield Arena(started, random.Random(f"{SEED} {backend}"), folder, kind, per_key=per_key, hang_seconds=4.0)


def _in_turn(arena: Arena, strikes: tuple[Callable[[Arena], None], ...]) -> None:
    for strike in strikes:
        arena.pause(0.1, 0.3)
        strike(arena)
        arena.restore()


def _kept(arena: Arena, fault: Fault) -> None:
    verdict = run(arena, fault, 1)
    if verdict.skipped:
        pytest.skip(verdict.skipped)
    logs = "\n".join(f"{path.name}: {path.read_text()[-1000:]}" for path in sorted(arena.folder.glob("*.log"))[-6:])
    assert not verdict.broken, "\n".join([*verdict.broken, logs])


def _fault(
    formation: Formation,
    *strikes: Callable[[Arena], None],
    place: Ticket = nullcontext,
    poison: frozenset[str] = frozenset(),
) -> Fault:
    return Fault("short", partial(_in_turn, strikes=strikes), formation, 1, DEADLINE, poison=poison, place=place)


@pytest.mark.thorough("one kind of fault of `make chaos`, some twenty seconds")
def test_processes_servers_and_connections_die(arena: Arena) -> None:
    formation = ALL_SORTS.but(road="proxy", clock=5.0)
    _kept(arena, _fault(formation, *MACHINES_AND_SERVERS, place=network.behind_a_proxy))


@pytest.mark.parametrize("arena", ["postgres batches", "mysql batches"], indirect=True)
def test_processes_and_servers_die_with_claims_per_batch(arena: Arena) -> None:
    strikes = (processes.kill_bare, processes.freeze, server.end_sessions, server.restart, server.hold_row_locks)
    _kept(arena, _fault(ALL_SORTS, *strikes))


@pytest.mark.parametrize("arena", ["postgres transaction", "mysql transaction"], indirect=True)
@pytest.mark.thorough("one kind of fault of `make chaos`, some twenty seconds")
def test_processes_and_servers_die_where_a_transaction_holds_the_jobs(arena: Arena) -> None:
    strikes = (processes.kill_bare, processes.kill_supervised, server.end_sessions, server.restart)
    _kept(arena, _fault(ALL_SORTS, *strikes))


@pytest.mark.parametrize("arena", ["postgres side-car", "mysql side-car"], indirect=True)
@pytest.mark.thorough("one kind of fault of `make chaos`, some twenty seconds")
def test_processes_and_servers_die_beside_a_table_that_must_not_be_altered(arena: Arena) -> None:
    strikes = (processes.kill_bare, work.plant_raising, server.end_sessions, server.restart, processes.freeze)
    _kept(arena, _fault(ALL_SORTS.but(attempts=2), *strikes, poison=frozenset({RAISES})))


@pytest.mark.parametrize("arena", ["postgres per key", "mysql per key"], indirect=True)
@pytest.mark.one_server("a kill is a kill; what a claim counts is tested on each database")
def test_limits_per_key_are_kept_when_processes_die(arena: Arena) -> None:
    strikes = (processes.kill_bare, processes.freeze, server.end_sessions, server.restart)
    _kept(arena, _fault(ALL_SORTS, *strikes))


def test_the_audit_counts_the_jobs_of_a_key_that_are_claimed_at_once() -> None:
    moves = [_move(job, "unclaimed", "claimed", new=OWNER) for job in (1, 2, 3)]
    freed = [*moves[:2], _move(1, "claimed", "unclaimed", old=OWNER), moves[2]]
    keys = dict.fromkeys((1, 2, 3), "a")
    assert replace(_story(*moves), keys=keys).most_in_hand == 3
    assert replace(_story(*freed), keys=keys).most_in_hand == 2
    assert replace(_story(*moves), keys={1: "a", 2: "b", 3: "c"}).most_in_hand == 1


@pytest.mark.parametrize("arena", ["postgres"], indirect=True)
@pytest.mark.thorough("one kind of fault of `make chaos`, some twenty seconds")
def test_jobs_spoil_their_batch(arena: Arena) -> None:
    """How suspects are found is tested on every database (tests/conformance); here it is processes that end."""
    formation = Formation(supervised=3, witnesses=0).but(lease=2.0, max_batch_time=1.0, attempts=2)
    strikes = (work.plant_raising, work.hang, work.plant_killing)
    _kept(arena, _fault(formation, *strikes, poison=frozenset({RAISES, KILLS})))


@pytest.mark.parametrize("arena", ["mysql"], indirect=True)
@pytest.mark.thorough("one kind of fault of `make chaos`, some twenty seconds")
def test_the_network_of_a_machine_is_away(arena: Arena) -> None:
    formation = Formation(bare=1).but(lease=2.0, road="namespace")
    _kept(arena, _fault(formation, network.take_down, place=network.in_a_namespace))


@pytest.mark.parametrize("arena", ["postgres"], indirect=True)
@pytest.mark.thorough("one kind of fault of `make chaos`, some twenty seconds")
def test_the_disk_is_full(arena: Arena) -> None:
    """A MySQL that met a full disk looks once a minute whether there is space again: see `make chaos`."""
    _kept(arena, _fault(Formation(bare=1).but(lease=2.0), disk.fill, place=disk.on_a_small_disk))


@pytest.mark.thorough("one kind of fault of `make chaos`, some twenty seconds")
def test_the_audit_sees_what_a_stranger_settles(arena: Arena) -> None:
    with arena.fleet(Formation(bare=1, witnesses=0)):
        arena.busy([arena.bares[0].pid])
        until(partial(_settle_as_a_stranger, arena), "a stranger settles a job that another has in hand")
        arena.load.stop()
        arena.stop()
    assert "to done in session" in audit.read(arena.engine).settled_twice[0]


def _settle_as_a_stranger(arena: Arena) -> bool:
    chosen = arena.ask("SELECT id FROM jobs WHERE status = 'claimed' LIMIT 1")
    if not chosen:
        return False
    with arena.engine.begin() as connection:
        statement = sa.text("DELETE FROM jobs WHERE status = 'claimed' AND id = :id")
        return connection.execute(statement, {"id": chosen[0][0]}).rowcount == 1


@pytest.mark.parametrize("arena", ["postgres side-car", "mysql side-car"], indirect=True)
@pytest.mark.thorough("one kind of fault of `make chaos`, some twenty seconds")
def test_the_audit_sees_what_a_stranger_writes_beside_a_side_car_or_in_it(arena: Arena) -> None:
    audit.forget(arena.engine, "side-car")
    for job in (1, 2, 3):
        assert arena.do(f"INSERT INTO jobs (id, d, e) VALUES ({job}, 'plain', '')")
    assert arena.do("INSERT INTO jobs_claims (id, status) VALUES (1, 'done')")
    assert not audit.read(arena.engine, "side-car").writes
    assert arena.do("UPDATE jobs SET e = '1' WHERE id = 2")
    assert arena.do("DELETE FROM jobs WHERE id = 3")
    story = audit.read(arena.engine, "side-car")
    assert story.lost(frozenset()) == [2, 3]
    assert [write.job for write in story.writes] == [2, 3]
    assert [told.partition(" in ")[0] for told in story.settled_twice] == ["job 1 went from unclaimed (None) to done"]


@pytest.mark.parametrize("arena", ["postgres transaction", "mysql transaction"], indirect=True)
@pytest.mark.thorough("one kind of fault of `make chaos`, some twenty seconds")
def test_the_audit_sees_a_job_that_is_done_without_its_effect(arena: Arena) -> None:
    audit.forget(arena.engine, "transaction")
    assert arena.do("INSERT INTO jobs (id, d, e) VALUES (1, 'plain', ''), (2, 'plain', '')")
    assert arena.do("INSERT INTO chaos_effects (job, session) VALUES (2, 1)")
    assert arena.do("DELETE FROM jobs WHERE id = 1")
    story = audit.read(arena.engine, "transaction")
    [settled] = story.settled_twice
    assert settled.startswith("job 1 went from unclaimed (None) to done")
    assert [told.partition(" was ")[0] for told in story.not_exactly_once] == ["job 1", "job 2"]


def test_the_audit_counts_the_effects_of_each_job() -> None:
    settled = [move for job in (1, 2) for move in (_move(job, None, "unclaimed"), _move(job, "claimed", None))]
    story = _story(*settled, _move(3, None, "unclaimed"))
    assert not replace(story, effects=[(1, 1), (2, 1)]).not_exactly_once
    for wrong in ([(1, 1)], [(1, 1), (2, 1), (2, 1)], [(1, 1), (2, 1), (3, 1)], [(1, 1), (2, 7)]):
        assert len(replace(story, effects=wrong).not_exactly_once) == 1


def test_an_execution_is_the_claim_of_a_transaction_until_another_one_or_its_settle() -> None:
    enqueued, done = _move(1, None, "unclaimed"), _move(1, "unclaimed", None, session=2)._replace(at=3.0)
    claimed, again = _move(1, "unclaimed", "claimed", new=1), _move(1, "unclaimed", "claimed", new=2, session=2)
    first, second, late = _run(1, 1.0), _run(2, 2.0), _run(1, 4.0)
    found = open_transactions.as_in_rows([enqueued, done], [first, second, late])
    assert found == [
        enqueued,
        claimed._replace(at=1.0),
        _move(1, "claimed", "unclaimed", old=1)._replace(at=2.0),
        again._replace(at=2.0),
        done._replace(old_status="claimed", old_owner=2),
    ]
    assert open_transactions.as_in_rows([enqueued, done], [first])[-1] == done


def _run(pid: int, at: float) -> Any:
    return SimpleNamespace(job=1, pid=pid, session=pid, at=at)


def test_the_audit_misses_a_job_that_is_gone() -> None:
    story = _story(_move(1, None, "unclaimed"), _move(2, None, "unclaimed"), left={2: ("dead", "plain")})
    assert story.lost(frozenset({"plain"})) == [1]
    assert story.lost(frozenset()) == [1, 2]


def test_the_audit_sees_a_job_in_two_claim_rows() -> None:
    story = _story(
        _move(1, None, "unclaimed"),
        _move(1, "unclaimed", "claimed", new=OWNER),
        _move(1, "unclaimed", "claimed", new=OTHER),
        _move(1, "claimed", None, old=OWNER),
    )
    [claimed] = story.settled_twice
    assert claimed.startswith("job 1 went from unclaimed (None) to claimed")


def test_the_audit_joins_the_parts_of_a_settle_of_one_session_only() -> None:
    claimed, left = _move(1, "unclaimed", "claimed", new=OWNER), _move(1, "claimed", "unclaimed", old=OWNER)
    done, by_another = _move(1, "unclaimed", None), _move(1, "unclaimed", None, session=2)
    assert as_in_rows([claimed, left, done]) == [claimed, _move(1, "claimed", None, old=OWNER)]
    assert as_in_rows([claimed, left, by_another]) == [claimed, left, by_another]
    assert as_in_rows([claimed, left, claimed, left, done])[1:3] == [left, claimed]


def test_the_audit_leaves_out_a_claim_that_its_own_transaction_undid() -> None:
    other = _move(1, "unclaimed", "claimed", new=OTHER)._replace(undoable=7)
    undone = _move(1, "claimed", "unclaimed", old=OTHER)._replace(undoable=7)
    mine, done = _move(1, "unclaimed", "claimed", new=OWNER)._replace(undoable=6), _move(1, "claimed", None, old=OWNER)
    assert as_in_rows([mine, other, undone, done]) == [mine, done]
    later = undone._replace(undoable=8)
    assert as_in_rows([mine, other, later, done]) == [mine, other, later, done]


def test_the_audit_finds_a_job_that_was_claimed_before_an_earlier_one_of_its_key() -> None:
    inserted = [_move(job, None, "unclaimed") for job in (1, 2, 3)]
    first, last = _move(1, "unclaimed", "claimed", new=OWNER), _move(3, "unclaimed", "claimed", new=OTHER)
    done = _move(1, "claimed", None, old=OWNER)
    keys = {1: "a", 2: "b", 3: "a"}
    assert not replace(_story(*inserted, first, done, last), keys=keys).out_of_order
    [wrong] = replace(_story(*inserted, first, last, done), keys=keys).out_of_order
    assert wrong.startswith("job 3 was claimed")


def _story(*moves: Move, left: dict[int, tuple[str, str]] | None = None) -> audit.Story:
    pids = {OWNER: 1, OTHER: 2}
    return audit.Story(runs=[], moves=list(moves), sessions={(OWNER, 1)}, pids=pids, deaths={}, left=left or {})


def _move(
    job: int, before: str | None, after: str | None, *, old: int | None = None, new: int | None = None, session: int = 1
) -> Move:
    return Move(job, old, new, before, after, session, 0.0)


@pytest.mark.thorough("one kind of fault of `make chaos`, some twenty seconds")
def test_a_clock_can_be_put_off() -> None:
    asked = "import time, datetime; print(time.time(), datetime.datetime.now(datetime.UTC).timestamp())"
    skewed = {"PYTHONPATH": str(ROOT / "tests/chaos/skewed"), "CHAOS_CLOCK_OFF": "7200"}
    said = subprocess.run([sys.executable, "-c", asked], env=skewed, capture_output=True, text=True, check=True).stdout
    assert [float(word) - time.time() for word in said.split()] == pytest.approx([7200, 7200], abs=60)


@pytest.mark.thorough("one kind of fault of `make chaos`, some twenty seconds")
def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--backend", "postgres", "--only", "group", "--keep", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        until(lambda: len(list(tmp_path.glob("*.log"))) > 1, "consumers are started")
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=120)
    assert running.returncode != 0
