"""`places`: a database on each server, shared by all cases of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends import Servers
from tests.foreign.harness import Places


@pytest.fixture(scope="module")
def places(servers: Servers) -> Iterator[Places]:
    made = Places(servers)
    yield made
    made.close()
