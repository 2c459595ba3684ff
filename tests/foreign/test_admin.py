"""What deletes or revives old jobs touches no row of a stranger's table that is in another state, or in none."""

from __future__ import annotations

from typing import Final

import pytest
import sqlalchemy as sa

from claimjobs import Columns, Queue
from claimjobs.table.columns import Ended
from tests.backends import Backend

STATES: Final = {"unclaimed": "new", "claimed": "busy", "done": "sent", "dead": "lost"}
WORDS: Final = (*STATES.values(), *STATES, "paused", "sent back", "", None)
"""The values of the status column: those of the map, the usual words of claimjobs, and others of the user's."""


@pytest.fixture
def orders(database: Backend) -> Queue:
    """A table that claimjobs did not make, with an old row for each of WORDS."""
    database.make()  # the owners
    instant = {"postgres": "TIMESTAMPTZ"}.get(database.family, "DATETIME(6)")
    database.run(
        f"CREATE TABLE orders (id INTEGER PRIMARY KEY, state VARCHAR(16), owner_id INTEGER, attempts INTEGER NOT NULL, "
        f"since {instant}, run_at {instant})"
    )
    for key, word in enumerate(WORDS):
        values = {"key": key, "word": word}
        database.run("INSERT INTO orders VALUES (:key, :word, NULL, 9, '2020-01-01', '2020-01-01')", **values)
    columns = Columns(status="state", states=STATES, owner_date="since")
    return database.bare_queue("orders", columns=columns)


def left(database: Backend) -> list[str | None]:
    with database.engine.connect() as connection:
        return list(connection.scalars(sa.text("SELECT state FROM orders ORDER BY id")))


def without(word: str) -> list[str | None]:
    return [other for other in WORDS if other != word]


@pytest.mark.parametrize("state", ["done", "dead"])
def test_a_purge_deletes_only_what_has_that_state(database: Backend, orders: Queue, state: Ended) -> None:
    assert orders.purge(60, state=state, dry_run=True) == 1
    assert orders.purge(60, state=state) == 1
    assert left(database) == without(STATES[state])


@pytest.mark.parametrize("keys", [None, range(len(WORDS))], ids=["all", "by key"])
def test_only_dead_jobs_are_dropped(database: Backend, orders: Queue, keys: range | None) -> None:
    assert orders.jobs.drop(keys) == 1
    assert left(database) == without("lost")


@pytest.mark.parametrize("keys", [None, range(len(WORDS))], ids=["all", "by key"])
def test_only_dead_jobs_are_retried(database: Backend, orders: Queue, keys: range | None) -> None:
    assert orders.jobs.retry(keys) == 1
    assert left(database) == ["new" if word == "lost" else word for word in WORDS]
    assert database.run("UPDATE orders SET attempts = 0 WHERE attempts = 9") == len(WORDS) - 1
