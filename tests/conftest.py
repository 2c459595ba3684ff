"""Fixtures for every folder of tests.

`backend`  An empty database of its own for this test, once on each backend: `postgres` (claims in one statement),
           `postgres-portable` (the portable statements), `mysql`, `mariadb`. For the library's behaviour.
`database` The same on `postgres`, `mysql` and `mariadb`: for what runs in another process, where no dialect can be
           passed in.
`anywhere` The same on Postgres alone: for what does not depend on the database.
`clock`    An instant to inject in place of the database's clock: `backend.queue(now=clock.sql)`; `clock.now += ...`.

A backend has `url` (with the password, for a subprocess), `engine`, `new_engine(...)`, `queue(table="jobs", ...)`
(makes its tables where they are missing), `bare_queue(...)` (makes none), `make(table)`, `rows("jobs")`,
`run("SQL", name=value)`, `dialect`, `requires("a capability")`, `sessions()`, `locked()`, `server` (`kill`, `restart`
stop it for every later test: start your own with `servers.start` for that).

At teardown its queues are closed, and the test fails for owners, connections or sessions that are left behind. A test
that kills its consumers sets `backend.may_leave_owners = True`. Servers are started when a first test asks for
one, and named in the summary. Without MySQL or Postgres tests fail; without MariaDB they are skipped.

`wait_for(condition, "what", seconds)` of tests.backends polls with a deadline.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime

import psutil
import pytest

from tests.backends import FAMILIES, FLAVOURS, Backend, Clock, Servers, poll

RUN = pytest.StashKey[Servers]()


def pytest_configure(config: pytest.Config) -> None:
    # A run in the background of a shell script ignores SIGINT, and so would every command that a test starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[RUN] = Servers()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash[RUN].lines():
        terminalreporter.write_line(f"server: {line}")


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config) -> Iterator[Servers]:
    """The servers of this run. When it ends, no process may be left of anything that a test started."""
    started = pytestconfig.stash[RUN]
    yield started
    started.close()
    try:
        poll(lambda: not _children(), 10)
    except TimeoutError:
        pytest.fail(f"processes left behind: {_children()}", pytrace=False)


def _children() -> list[str]:
    """Processes that we started; multiprocessing keeps one helper of its own until we end."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            line = " ".join(child.cmdline())
        except psutil.NoSuchProcess:
            continue
        if line and "multiprocessing.resource_tracker" not in line:
            found.append(f"{child.pid} {line}")
    return found


@pytest.fixture(params=FLAVOURS)
def backend(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Backend]:
    yield from _lent(request.param, servers)


@pytest.fixture(params=FAMILIES)
def database(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Backend]:
    yield from _lent(request.param, servers)


@pytest.fixture
def anywhere(servers: Servers) -> Iterator[Backend]:
    yield from _lent("postgres", servers)


def _lent(name: str, servers: Servers) -> Iterator[Backend]:
    lent = servers.lend(name)
    yield lent
    lent.close()


@pytest.fixture
def clock() -> Clock:
    return Clock(datetime(2030, 1, 1, 12, tzinfo=UTC))
