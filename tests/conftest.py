"""Fixtures for every folder of tests.

`backend`  An empty database of its own for this test, once on each of `postgres`, `mysql` and `mariadb`. For what
           the library does.
`database` The same, for what runs in another process.
`anywhere` The same on Postgres alone: for what does not depend on the database.
`clock`    An instant to inject in place of the database's clock: `backend.queue(now=clock.sql)`; `clock.now += ...`.

A backend has `url` (with the password, for a subprocess), `engine`, `new_engine(...)`, `queue(table="jobs", ...)`
(makes its tables where they are missing), `bare_queue(...)` (makes none), `make(table)`, `rows("jobs")`,
`run("SQL", name=value)`, `dialect`, `requires("a capability")`, `sessions()`, `locked()`, `server` (`kill`, `restart`
stop it for every later test: start your own with `servers.start` for that).

Which tests `make check`, `make test` and `make test-all` run: see tests/suites.py.

At teardown its queues are closed, and the test fails for owners, connections or sessions that are left behind. A test
that kills its consumers sets `backend.may_leave_owners = True`. Servers are started when a first test asks for
one, and named in the summary; each worker of pytest-xdist has its own. Without MySQL or Postgres tests fail; without
MariaDB they are skipped.

`wait_for(condition, "what", seconds)` of tests.backends polls with a deadline.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import coverage
import psutil
import pytest

from benchmarks import crew
from tests import authorities
from tests.backends import DEADLINE, Backend, Clock, Servers, poll
from tests.flavours import FAMILIES, Family

pytest_plugins = ["tests.suites"]

RUN = pytest.StashKey[Servers]()
USED = pytest.StashKey[list[str]]()
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def pytest_configure(config: pytest.Config) -> None:
    # A run in the background of a shell script ignores SIGINT, and so would every command that a test starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    authorities.forget()
    crew.warm()
    gc.disable()
    config.stash[RUN] = Servers()
    config.stash[USED] = []


def pytest_collection_finish() -> None:
    # What is there by now stays to the end of the run: the collector need not look through it again and again.
    gc.collect()
    gc.freeze()
    gc.enable()
    # A full collection looks at all statements that the engines keep compiled, for half a second: with the usual number
    # of them it was a fifth of what the tests of a worker cost.
    young, old, _ = gc.get_threshold()
    gc.set_threshold(young, old, 50)


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    config.stash[USED].extend(config.stash[RUN].lines())
    if hasattr(config, "workeroutput"):  # of pytest-xdist: another process writes the summary
        config.workeroutput["servers"] = config.stash[USED]
        # It ends this process some seconds later, whether or not coverage has written what it measured.
        if (measured := coverage.Coverage.current()) is not None:
            measured.save()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker of pytest-xdist has ended. One that was killed says nothing."""
    node.config.stash[USED].extend(getattr(node, "workeroutput", {}).get("servers", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    used = config.stash[USED]
    for line in sorted(set(used)):
        terminalreporter.write_line(f"server: {line}")


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config) -> Iterator[Servers]:
    """The servers of this run. When it ends, no process may be left of anything that a test started."""
    started = pytestconfig.stash[RUN]
    yield started
    started.close()
    try:
        poll(lambda: not _children(), DEADLINE)
    except TimeoutError:
        pytest.fail(f"processes left behind: {_children()}", pytrace=False)


def _children() -> list[str]:
    """Processes that we started, and theirs; multiprocessing keeps helpers of its own until we end."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            line, ours = " ".join(child.cmdline()), child.ppid() == os.getpid()
        except psutil.NoSuchProcess:
            continue
        if line and not (ours and any(helper in line for helper in HELPERS)):
            found.append(f"{child.pid} {line}")
    return found


@pytest.fixture(params=FAMILIES)
def backend(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Backend]:
    yield from _lent(request.param, servers)


@pytest.fixture(params=FAMILIES)
def database(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Backend]:
    yield from _lent(request.param, servers)


@pytest.fixture
def anywhere(servers: Servers) -> Iterator[Backend]:
    yield from _lent("postgres", servers)


def _lent(family: Family, servers: Servers) -> Iterator[Backend]:
    lent = servers.lend(family)
    yield lent
    lent.close()


@pytest.fixture
def clock() -> Clock:
    return Clock(datetime(2030, 1, 1, 12, tzinfo=UTC))
