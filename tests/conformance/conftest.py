"""Fixtures for what the conformance tests share."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

import pytest

from tests.backends import Backend, Servers
from tests.conformance.owners import hearts
from tests.conformance.sleepers import NEVER
from tests.flavours import FAMILIES


@pytest.fixture
def no_heart_outlives_its_test() -> Iterator[None]:
    yield
    if hearts():  # of a queue that waits for the collector, which looks at all that there is
        gc.collect()


@pytest.fixture
def every_notifier_ends() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name == "claimjobs notifier"]


@pytest.fixture
def only_when_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sleeper does not look for work by itself either, not even when it has just lain down; nor between two sleeps,
    however short they were."""
    monkeypatch.setattr("claimjobs.queue.batch_loop.FIRST_CHECK", NEVER)
    monkeypatch.setattr("claimjobs.queue.batch_loop.SHORT_SLEEP_SECONDS", 0.0)


@pytest.fixture(params=["rows", "batches"])
def each_kind_of_claim(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test runs once with each value of `Queue(claims=...)`; one marked `claims_in_rows` reads claims in the rows."""
    if request.param == "batches" and request.node.get_closest_marker("claims_in_rows"):
        pytest.skip("it reads the claim in the row of its job")
    monkeypatch.setattr("tests.backends.CLAIMS", request.param)


@pytest.fixture(scope="module")
def own_servers() -> Iterator[Servers]:
    """Servers that tests may stop, restart and set as they like."""
    with contextlib.closing(Servers()) as started:
        yield started


@pytest.fixture(params=FAMILIES)
def own(request: pytest.FixtureRequest, own_servers: Servers) -> Iterator[Backend]:
    """As `database`, on a server of this module's own."""
    backend = own_servers.lend(request.param)
    yield backend
    backend.close()
