"""A side-car: which rows its statements lock, and how they find them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.claim.strategy import ClaimRequest
from claimjobs.statements import settle, stored_jobs
from claimjobs.statements import side_car as statements
from claimjobs.statements.find import Selection, find
from claimjobs.statements.job_rows import job_rows
from claimjobs.table.columns import UNCLAIMED
from claimjobs.table.definitions import BATCHES_TABLE
from tests.backends import Backend
from tests.conformance.jobs import by_hand
from tests.conformance.orders import (
    claim_by_hand,
    keys,
    locks_of,
    orders,
)
from tests.conformance.owners import still

SIZE = 100
WAITING = 5_000


@pytest.fixture
def busy(backend: Backend) -> Queue:
    """Many rows: some done, some that wait again, most that nobody has claimed."""
    queue = still(orders(backend, WAITING))
    with queue.claim(1_000) as batch:
        batch.done(*batch.jobs[:800])
    for table in ("orders", "orders_claims"):
        backend.analyze(table)
    return queue


def test_a_claim_locks_what_it_takes_and_not_what_it_looked_at(backend: Backend, busy: Queue) -> None:
    with by_hand(backend) as connection:
        taken = claim_by_hand(busy, connection, SIZE, 800)
        assert taken == list(range(801, 901))
        if backend.has("row lock table"):
            assert Counter(backend.lock_table()) == {("PRIMARY", "X,REC_NOT_GAP"): SIZE}
        assert backend.locked("orders") == SIZE
        assert backend.locked("orders_claims") == 0


def plan_of(backend: Backend, queue: Queue, statement: Any, values: dict[str, Any]) -> Any:
    with by_hand(backend) as connection:
        return backend.plan(connection, statement, values)


def pair_of(queue: Queue) -> statements.SideCarJoin:
    backend = queue._access.backend
    return statements.SideCarJoin(backend.source, backend.roles, backend.dialect, queue.settings.now)


def test_candidates_are_read_in_order_and_their_claims_by_key(backend: Backend, busy: Queue) -> None:
    phase = locks_of(busy).phases(ClaimRequest(SIZE, SIZE), [])[0]
    plan = plan_of(backend, busy, phase.statement, dict(phase.parameters))
    wanted = {backend.primary_key_of("orders"), backend.primary_key_of("orders_claims")}
    assert set(plan.indexes) - {backend.primary_key_of(BATCHES_TABLE)} <= wanted | {""}, plan.text
    assert wanted <= set(plan.indexes), plan.text
    assert not plan.sorts, plan.text


def test_everything_of_a_selection_is_asked_of_the_users_table(backend: Backend) -> None:
    queue = orders(backend, 1)
    pair = pair_of(queue)
    statement = find(pair.source, Selection(pair.group_size >= 0, pair.source.default_order))
    assert [str(table) for table in statement.get_final_froms()] == ["orders"]


def test_whether_a_job_has_failed_is_asked_of_its_entry_alone(backend: Backend) -> None:
    """A claim in order asks it of each job of a key: the user's row, which it has read, is not searched once more."""
    queue = orders(backend, 1)
    rows = job_rows(queue._access.backend, queue.settings.now)
    statement = sa.select(queue._access.backend.source.table.c.id).where(rows.failed)
    assert str(statement.compile(backend.engine)).split().count("orders") == 1


@pytest.mark.parametrize("outcome", ["finish", "remove", "delete", "ended"])
def test_a_settle_finds_rows_by_their_keys_though_nothing_is_known_of_the_table(backend: Backend, outcome: str) -> None:
    """Through the index of states each row would be compared with all keys: 10,000 jobs took 20 s and more."""
    queue = orders(backend, 300)
    batch = queue.claim(300)
    pair = pair_of(queue)
    guard = settle.SettleGuard(pair.side_car, pair.dialect, sa.true())
    of_outcome: dict[str, Any] = {
        "finish": statements.finish(pair),
        "remove": stored_jobs.delete(pair.source, pair.dialect, ()),
        "delete": settle.delete(guard),
        "ended": settle.those(guard, ~pair.side_car.state.row_says(UNCLAIMED)),
    }
    statement = of_outcome[outcome]
    plan = plan_of(backend, queue, getattr(statement, "select", statement), {"claimjobs_keys": keys(batch)})
    assert "orders_claims_state" not in plan.indexes
    assert "cstring" not in plan.text, "the keys are read again for each row"
    batch.settle()
