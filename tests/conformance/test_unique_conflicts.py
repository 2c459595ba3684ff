"""A unique enqueue that another producer's transaction gets in the way of: it comes in all the same, and once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

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


def test_a_row_that_the_index_of_another_table_refuses_is_no_duplicate(backend: Backend) -> None:
    """The two indexes may have one name, because a trigger writes into a table of another schema."""
    backend.requires("schemas")
    queue = backend.queue(VISITS)
    [index] = [index["name"] for index in sa.inspect(backend.engine).get_indexes("visits") if index["unique"]]
    for statement in (
        "CREATE SCHEMA beside",
        "CREATE TABLE beside.guests (name text)",
        f"CREATE UNIQUE INDEX {index} ON beside.guests (name)",
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN INSERT INTO beside.guests VALUES (''one''); RETURN new; END'",
        "CREATE TRIGGER noted BEFORE INSERT ON visits FOR EACH ROW EXECUTE FUNCTION note()",
    ):
        backend.run(statement)
    assert queue.enqueue(visits("ada"), unique=KEY) == 1
    with pytest.raises(BadRow, match="visits"):
        queue.enqueue(visits("bob"), unique=KEY)
    assert there(backend) == ["ada"]


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
