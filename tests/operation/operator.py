"""Operator: what a person does to a queue at work, by the commands that a person has."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import sqlalchemy as sa

import servers
from servers.programs import free_port
from tests.chaos import audit, work
from tests.chaos.fleet import HANDLER, ROOT, Group, until

CONSUMERS = 3
BATCH = 20
BACKLOG = 300
"""Jobs that wait at any time."""
BETWEEN = (1.0, 6.0)
"""Seconds of undisturbed work between two actions."""
NOTICED = 2.5
"""Seconds after which a consumer has noticed a pause: a fifth of its lease, and some more."""
STOP_TIMEOUT = 0.02
"""Seconds until a stop by deadline releases batches: less than the handler's 0.05 s."""


@dataclass
class Supervisor:
    """A deployed run, and the port on which it serves its health and metrics."""

    group: Group
    port: int


@dataclass
class Operator:
    """A server, a load, two supervisors, and what was done to them."""

    server: servers.Server
    folder: Path
    random: random.Random
    done: Counter[str] = field(default_factory=Counter)
    """How often each action was done."""
    supervisors: list[Supervisor] = field(default_factory=list)
    _logs: int = 0
    _line: str = ""

    def __post_init__(self) -> None:
        self._engine = sa.create_engine(self.server.url, poolclass=sa.NullPool)
        self._ended = threading.Event()
        self._load = threading.Thread(target=self._enqueue_always, name="load", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._load.is_alive():
            self._load.join()
        for supervisor in self.supervisors:
            supervisor.group.kill()

    # --- actions ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The tables, a load, and two supervisors at work. The tables have the schema of this version."""
        self._claimjobs("setup-tables")
        audit.install(self._engine)
        self._load.start()
        self.supervisors = [self._deployed() for _ in range(2)]
        self._claimjobs("upgrade-tables", "--check")

    def act(self) -> None:
        """Let it work for some seconds, then do one thing, by lot."""
        time.sleep(self.random.uniform(*BETWEEN))
        actions: list[Callable[[], None]] = [self.deploy, self.stop_by_deadline, self.scrape, self.pause, self.explain]
        self.random.choice(actions)()

    def deploy(self) -> None:
        """Start a supervisor, then stop the oldest one: it finishes its batches."""
        self.supervisors.append(self._deployed())
        self._stop(self.supervisors.pop(0))
        self.done["deployed"] += 1

    def stop_by_deadline(self) -> None:
        """Replace a supervisor whose deadline ends before its batches do."""
        self.supervisors.append(self._deployed("--stop-timeout", str(STOP_TIMEOUT)))
        time.sleep(self.random.uniform(0.5, 1.5))
        self._stop(self.supervisors.pop())
        self.done["stopped by deadline"] += 1

    def scrape(self) -> None:
        """Read the metrics, and ask whether it lives and is ready."""
        for supervisor in self.supervisors:
            for page in ("livez", "readyz", "metrics"):
                address = f"http://127.0.0.1:{supervisor.port}/{page}"
                with urllib.request.urlopen(address, timeout=20) as answer:
                    text = answer.read().decode()
                assert page != "metrics" or "claimjobs_settled_jobs_total" in text, text
        self.done["scraped"] += 1

    def pause(self) -> None:
        """Pause the queue, see that nothing is claimed, and resume it."""
        self._claimjobs("pause", "--reason", "a drill")
        claims = "SELECT count(*) FROM chaos_moves WHERE new_status = 'claimed'"
        until(lambda: self._stays(claims, NOTICED), "every consumer has noticed the pause")
        assert self._stays(claims, 1.0), "a paused queue was claimed from"
        assert self._number("SELECT count(*) FROM jobs WHERE status = 'claimed'") == 0, "a batch was not settled"
        before = self._number(claims)
        self._claimjobs("resume")
        until(lambda: self._number(claims) > before, "work goes on after the resume")
        self.done["paused and resumed"] += 1

    def explain(self) -> None:
        """Ask what the claims do, and how the queue is."""
        found = json.loads(self._claimjobs("explain", "--json", expected=None))
        assert found["verdict"] in ("ok", "warning"), found
        self._claimjobs("status", "--check", "--max-dead", "0", "--min-owners", "1")
        self.done["explained"] += 1

    # --- the end ---------------------------------------------------------------------------------------

    def finish(self) -> list[str]:
        """Drain, stop, and say which promises were broken."""
        self._ended.set()
        self._load.join()
        until(lambda: self._number("SELECT count(*) FROM jobs WHERE status <> 'dead'") == 0, "all jobs are done", 120)
        charged = self._number("SELECT count(*) FROM jobs")
        for supervisor in self.supervisors:
            self._stop(supervisor)
        story = audit.read(self._engine)
        lost, twice = story.lost(frozenset()), story.settled_twice
        actions = ", ".join(f"{name} {times}" for name, times in sorted(self.done.items()))
        self._line = (
            f"{self.server.backend}: jobs {len(story.enqueued):,}, lost {len(lost)}, settled twice {len(twice)}, "
            f"executed again {story.executed_twice}, dead {charged}; {actions}"
        )
        return [
            *(f"lost: {lost[:5]}" for _ in lost[:1]),
            *(f"settled twice: {twice[:3]}" for _ in twice[:1]),
            *(f"{charged} jobs are dead, and no handler failed" for _ in range(charged and 1)),
        ]

    def line(self) -> str:
        """What became of it."""
        return self._line

    # --- how -------------------------------------------------------------------------------------------

    def _deployed(self, *words: str) -> Supervisor:
        self._logs += 1
        port = free_port()
        ports = ("--metrics-port", str(port), "--health-port", str(port))
        command = [sys.executable, "-m", "claimjobs", "start-processing", HANDLER, "--consumers", str(CONSUMERS)]
        environment = {work.AUDIT_URL: self.server.url, work.SECONDS: "0.05", "PYTHONPATH": str(ROOT)}
        group = Group(
            [*command, "--batch-size", str(BATCH), "--url", self.server.url, "--json", *ports, *words],
            environment,
            self.folder / f"{self._logs}.log",
            CONSUMERS,
        )
        ids = "SELECT pid FROM claimjobs_owners WHERE died IS NULL"
        until(lambda: len({row[0] for row in self._rows(ids)} & set(group.consumers())) == CONSUMERS, "it is deployed")
        return Supervisor(group, port)

    def _stop(self, supervisor: Supervisor) -> None:
        os.kill(supervisor.group.pid, signal.SIGTERM)
        until(lambda: not supervisor.group.processes(), f"the end of a stopped run, log {supervisor.group.log}", 30)
        code = supervisor.group.leader.wait()
        assert code == 0, f"{code}: {supervisor.group.log.read_text()[-2000:]}"

    def _claimjobs(self, *words: str, expected: int | None = 0) -> str:
        command = [sys.executable, "-m", "claimjobs", *words, "--url", self.server.url]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        run = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert expected in (None, run.returncode), f"{words}: {run.returncode}\n{run.stdout}{run.stderr}"
        return run.stdout

    def _rows(self, statement: str) -> list[sa.Row[tuple[object, ...]]]:
        with self._engine.connect() as connection:
            return list(connection.execute(sa.text(statement)))

    def _stays(self, statement: str, seconds: float) -> bool:
        before = self._number(statement)
        time.sleep(seconds)
        return self._number(statement) == before

    def _number(self, statement: str) -> int:
        return int(str(self._rows(statement)[0][0]))

    def _enqueue_always(self) -> None:
        """Insert rows by SQL, as a program does that does not know claimjobs."""
        rows = ", ".join([f"('{work.PLAIN}', '')"] * 50)
        while not self._ended.wait(0.05):
            if self._number("SELECT count(*) FROM jobs WHERE status = 'unclaimed'") < BACKLOG:
                with self._engine.begin() as connection:
                    connection.exec_driver_sql(f"INSERT INTO jobs (d, e) VALUES {rows}").close()
