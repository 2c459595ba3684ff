"""A side-car: which rows its statements lock, and how they find them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.statements import settle
from claimjobs.statements import side_car as statements
from claimjobs.statements.find import Selection
from claimjobs.table.definitions import BATCHES_TABLE
from tests.backends import Backend
from tests.conformance.jobs import by_hand
from tests.conformance.orders import (
    BY_LOCKS,
    claim_by_hand,
    keys,
    orders,
    phases_of,
)
from tests.conformance.owners import hold_of, still

SIZE = 100
WAITING = 5_000


@pytest.fixture
def busy(backend: Backend, way: str) -> Queue:
    """Many rows: some done, some that wait again, most that nobody has claimed."""
    queue = still(orders(backend, WAITING, way=way))
    with queue.claim(1_000) as batch:
        batch.done(*batch.jobs[:800])
    for table in ("orders", "orders_claims"):
        backend.analyze(table)
    return queue


@BY_LOCKS
def test_a_claim_locks_what_it_takes_and_not_what_it_looked_at(backend: Backend, busy: Queue, way: str) -> None:
    beside = SIZE if way == "rows" else 0
    with by_hand(backend) as connection:
        taken = claim_by_hand(busy, connection, SIZE, 800)
        assert taken == list(range(801, 901))
        if backend.has("row lock table"):
            assert Counter(backend.lock_table()) == {("PRIMARY", "X,REC_NOT_GAP"): SIZE + beside}
        assert backend.locked("orders") == SIZE
        assert backend.locked("orders_claims") == beside


@pytest.mark.parametrize("way", ["rows"])
def test_new_keys_lock_no_more_than_themselves(backend: Backend, busy: Queue) -> None:
    busy.claim(200)
    with by_hand(backend) as connection:
        assert claim_by_hand(busy, connection, SIZE, 800) == list(range(1_001, 1_101))
        if backend.has("row lock table"):  # what is inserted is locked by being there
            assert Counter(backend.lock_table()) == {("PRIMARY", "X,REC_NOT_GAP"): SIZE}
        assert backend.locked("orders") == SIZE


def plan_of(backend: Backend, queue: Queue, statement: Any, values: dict[str, Any]) -> Any:
    with by_hand(backend) as connection:
        return backend.plan(connection, statement, values)


def pair_of(queue: Queue) -> statements.SideCarJoin:
    backend = queue._parts.backend
    return statements.SideCarJoin(backend.source, backend.roles, backend.dialect, queue._chosen.now)


@BY_LOCKS
def test_candidates_are_read_in_order_and_their_claims_by_key(backend: Backend, busy: Queue, way: str) -> None:
    algorithm: Any = busy._parts.plan(None).strategy
    in_one = way == "batches" and backend.dialect.locks_in_order
    find = (algorithm._lock._statement if in_one else phases_of(busy).finder)._from_head
    plan = plan_of(backend, busy, find, {"claimjobs_limit": SIZE, **({"claimjobs_size": SIZE} if in_one else {})})
    wanted = {backend.primary_key_of("orders"), backend.primary_key_of("orders_claims")}
    assert set(plan.indexes) - {backend.primary_key_of(BATCHES_TABLE)} <= wanted | {""}, plan.text
    assert wanted <= set(plan.indexes), plan.text
    assert not plan.sorts, plan.text
    assert way == "batches" or not plan.scans, plan.text  # a few open batches may be read from their beginning


@pytest.mark.parametrize("way", ["rows"])
def test_the_rest_of_a_claim_goes_through_the_primary_keys(backend: Backend, busy: Queue) -> None:
    algorithm: Any = busy._parts.plan(None).strategy
    chosen = list(range(801, 801 + SIZE))
    me = busy.owner_id
    each = {
        "lock": (algorithm._phases._lock, {"claimjobs_candidates": chosen, "claimjobs_size": SIZE}),
        "claim": (algorithm._claim.select, {"claimjobs_keys": chosen, "claimjobs_me": me}),
        "claimed": (algorithm._claimed.statement, {"claimjobs_keys": chosen, "claimjobs_me": me}),
    }
    fit = {backend.primary_key_of(table) for table in ("orders", "orders_claims", "claimjobs_owners")} | {""}
    for name, (statement, values) in each.items():
        plan = plan_of(backend, busy, statement, values)
        assert set(plan.indexes) <= fit, (name, plan.text)
        assert not plan.scans, (name, plan.text)


@pytest.mark.parametrize("way", ["rows"])
def test_what_an_owner_holds_is_found_without_reading_what_is_done(backend: Backend, busy: Queue) -> None:
    hold_of(busy)
    plan = plan_of(backend, busy, sa.select(sa.text("id")).select_from(sa.text("orders_claims")).where(held()), {})
    assert "orders_claims_state" in plan.indexes, plan.text


def held() -> Any:
    return sa.text("status = 'claimed' AND owner_id = 10000001")


def test_everything_of_a_selection_is_asked_of_the_users_table(backend: Backend) -> None:
    queue = orders(backend, 1)
    pair = pair_of(queue)
    statement = statements.find(pair, Selection(sa.true(), pair.source.default_order))
    assert [str(table) for table in statement.get_final_froms()] == ["orders"]


@pytest.mark.parametrize("outcome", ["keep", "release", "delete", "still_mine"])
def test_a_settle_finds_claims_by_their_keys_though_nothing_is_known_of_the_table(
    backend: Backend, outcome: str
) -> None:
    """Through the index of owners each claim would be compared with all keys: 10,000 jobs took 20 s and more."""
    queue = orders(backend, 300, way="rows")
    batch = queue.claim(300)
    pair = pair_of(queue)
    reach = settle.SettleGuard(pair.claims, pair.dialect, pair.claims.mine)
    statement = settle.keep(reach, pair.now) if outcome == "keep" else getattr(settle, outcome)(reach)
    plan = plan_of(backend, queue, statement, {"claimjobs_keys": keys(batch), "claimjobs_me": queue.owner_id})
    assert "orders_claims_state" not in plan.indexes
    assert "cstring" not in plan.text, "the keys are read again for each row"
    batch.settle()
