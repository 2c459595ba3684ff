"""What a host that vanishes held is free again after a lease, whatever it was doing. No packet says that it is gone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from claimjobs import Liveness, Queue, make, tables_for
from servers import Backend, Unavailable
from servers.machine import HostServer
from servers.network import Host, network
from tests.chaos.fleet import ROOT
from tests.cluster.row import run
from tests.cluster.settings.hosts import SETTINGS, part
from tests.cluster.victim import SIZE

pytestmark = pytest.mark.thorough("it starts several servers, poolers or hosts")

LEASE = 2.0
SECONDS = 15.0
"""Until the jobs of the host must be free, on a busy machine."""
LEASES: dict[str, Any] = {"lease": LEASE}
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lease": ({}, LEASES),
    "claims per batch": ({"claims": "batches"}, LEASES),
    "lease alone": ({}, {**LEASES, "session_lock": False}),
    "transaction": ({"hold": "transaction"}, LEASES),
}
"""Options of a Queue, and of its Liveness."""
KERNEL = {"tcp_keepalive_time": 1, "tcp_keepalive_intvl": 1, "tcp_keepalive_probes": 2, "tcp_retries2": 3}
"""What a DBA sets on the server's machine for open transactions on MySQL, which has no variable for it. The last one
counts where the server's last answer was not received."""


@dataclass
class Machine:
    """A server on one host, and a host that vanishes."""

    server: HostServer
    database: Host
    other: Host

    @contextmanager
    def victim(self, way: str, moment: str) -> Iterator[subprocess.Popen[str]]:
        """A consumer on the other host that has reached this moment."""
        settings = (json.dumps(settings) for settings in WAYS[way])
        program = [sys.executable, "-m", "tests.cluster.victim", self.server.network_url, moment, *settings]
        with subprocess.Popen([*self.other.prefix, *program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "here\n"
                yield process
            finally:
                process.kill()


@pytest.fixture(scope="module", params=["postgres", "mysql"])
def place(request: pytest.FixtureRequest) -> Iterator[Machine]:
    backend = cast("Backend", request.param)
    try:
        with network("database", "other") as hosts, hosts["database"].serve(backend) as server:
            yield Machine(server, hosts["database"], hosts["other"])
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("way", "moment"),
    [
        ("lease", "claim"),
        ("lease", "settle"),
        ("claims per batch", "settle"),
        ("lease alone", "settle"),
        ("transaction", "work"),
    ],
)
def test_what_a_host_held_that_vanished_is_free_after_its_lease(place: Machine, way: str, moment: str) -> None:
    if way == "transaction" and place.server.backend == "mysql":
        for name, value in KERNEL.items():
            _set(place.database, name, value)
    options, liveness = WAYS[way]
    engine = sa.create_engine(place.server.url, poolclass=sa.NullPool)
    make(engine, tables_for("jobs"), recreate=True)
    with Queue(engine, liveness=Liveness(**liveness), **options) as queue:
        queue.enqueue({"d": f"{number:04}", "e": ""} for number in range(SIZE * 2))
        with place.victim(way, moment):
            place.other.vanish()
            vanished = time.monotonic()
            done: list[str] = []
            while len(done) < SIZE * 2 and time.monotonic() < vanished + SECONDS:
                with queue.claim(SIZE) as batch:
                    done += [job.d for job in batch.jobs]
                    batch.done()
            print(f"{place.server.backend}, {way}, {moment}: after {time.monotonic() - vanished:.1f} s")
        place.other.heal()
    assert sorted(done) == [f"{number:04}" for number in range(SIZE * 2)]


def _set(host: Host, name: str, value: int) -> None:
    command = [*host.prefix, "tee", f"/proc/sys/net/ipv4/{name}"]
    subprocess.run(command, input=str(value), text=True, check=True, capture_output=True)


@pytest.mark.timeout(120)
def test_a_host_that_was_cut_off_works_again_and_settles_nothing_twice(tmp_path: Path) -> None:
    [setting] = [one for one in SETTINGS if one.strikes[:1] == (part,) and one.name.startswith("MySQL")]
    row = run(replace(setting, strikes=(part,)), tmp_path, 0.5)
    if row.said.startswith("left out"):
        pytest.skip(row.said)
    logs = "\n".join(f"{path.name}: {path.read_text()[-1000:]}" for path in sorted(tmp_path.glob("*.log"))[-6:])
    assert not row.broken, "\n".join([*row.broken, logs])
    assert (row.lost, row.settled_twice) == (0, 0)
    assert row.jobs
