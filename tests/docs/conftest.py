"""The guide's shop, on each database (`shop`) and on Postgres alone (`any_shop`)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends import Backend
from tests.docs.shop import Shop


@pytest.fixture
def shop(database: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    before = signal.getsignal(signal.SIGTERM)
    yield Shop(database, tmp_path, monkeypatch)
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def any_shop(anywhere: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(anywhere, tmp_path, monkeypatch)
