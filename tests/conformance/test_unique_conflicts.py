"""A unique enqueue that another producer's transaction gets in the way of: it comes in all the same, and once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from claimjobs.errors import BadRow
from tests.backends import Backend
from tests.conformance.refusals import refusal, refused_after
from tests.conformance.sender import VISITS
from tests.conformance.test_unique import KEY, there, visits


@pytest.mark.parametrize("kind", ["deadlock", "lock timeout", "serialization"])
def test_a_conflict_is_tried_again(backend: Backend, kind: str) -> None:
    engine = backend.new_engine()
    queue = backend.queue(VISITS, bind=engine)
    rows = iter(visits("ada", "bob"))  # which cannot be gone through a second time
    with refused_after(engine, "INSERT INTO visits", refusal(backend, kind)):
        assert queue.enqueue(rows, unique=KEY) == 2
    assert sorted(there(backend)) == ["ada", "bob"]
    assert queue.report.transients == {kind: 1}


def test_a_bad_row_is_told_of_once_however_often_its_transaction_is_tried(backend: Backend) -> None:
    engine = backend.new_engine()
    queue = backend.queue(VISITS, bind=engine)
    told: list[int] = []

    def rows() -> Iterator[dict[str, Any]]:
        yield {"day": 1}
        yield from visits("ada")
        yield {"day": 2}

    def on_bad(bad: BadRow) -> None:
        told.append(bad.line)

    with refused_after(engine, "INSERT INTO visits", refusal(backend, "deadlock")):
        assert queue.enqueue(rows(), unique=KEY, on_bad=on_bad) == 1
    assert told == [1, 3]
    assert there(backend) == ["ada"]
    assert queue.report.transients == {"deadlock": 1}
