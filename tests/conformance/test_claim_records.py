"""An owner's row says how its claims are recorded: nobody reaps, or works beside, what it cannot read."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Columns, job_table, make, side_car_tables
from claimjobs.errors import ClaimsDiffer
from claimjobs.table.definitions import BATCHES_TABLE
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.orders import ORDERS, fill
from tests.conformance.owners import declare_dead, hold_of, owner_row, still

TWO_KEYS = job_table(
    "jobs", sa.MetaData(), sa.Column("nr", sa.BigInteger, nullable=False), sa.UniqueConstraint("nr", name="jobs_nr")
)


def test_who_cannot_read_an_owners_claims_leaves_it_to_others(backend: Backend) -> None:
    """Neither its row nor its jobs are touched, by whatever way they are reclaimed."""
    queue = still(backend.queue())
    queue.enqueue(jobs(2))
    batch, me = queue.claim(2), queue.owner_id
    other = hold_of(still(backend.queue()))._reaper
    odd = sa.text("UPDATE claimjobs_owners SET sees = :sees WHERE id = :me")
    with backend.engine.begin() as connection:
        sees = connection.scalar(sa.text("SELECT sees FROM claimjobs_owners WHERE id = :me"), {"me": me})
        connection.execute(odd, {"me": me, "sees": '["{\\"rows\\": [\\"other\\"]}"]'})
    declare_dead(backend, me)
    assert other.dead() == []
    assert other.reclaim_by_id(me) == other.release_by_id(me) == other.reclaim_or_log(me) == 0
    assert owner_row(backend, me) is not None
    with backend.engine.begin() as connection:
        connection.execute(odd, {"me": me, "sees": sees})
    assert other.reclaim_dead() == 2
    batch.settle()


@pytest.mark.parametrize("options", [{"claims": "batches"}, {"claims": "rows"}], ids=str)
def test_consumers_with_two_keys_of_one_table_refuse_each_other(backend: Backend, options: dict[str, Any]) -> None:
    backend.make(TWO_KEYS)
    one, other = backend.bare_queue("jobs", **options), backend.bare_queue("jobs", columns=Columns(key="nr"), **options)
    one.enqueue({"nr": 1_000 + n} for n in range(5))
    with one.claim(2) as batch:
        for use in (other.claim, other.reclaim, other.stats):
            with pytest.raises(ClaimsDiffer, match=r'jobs\' has 1 owner with claims=.*"id".* with claims=.*"nr"'):
                use()
        assert [seen.id for seen in one.stats().owners] == [one.owner_id]
        batch.done()
    one.close()
    assert len(other.claim(5)) == 3


def test_owners_are_not_taken_for_others_when_all_batches_are_deleted(backend: Backend) -> None:
    first = backend.queue(claims="batches")
    assert first.owner_id
    backend.run(f"DELETE FROM {BATCHES_TABLE}")
    second = backend.queue(claims="batches")
    assert second.owner_id > first.owner_id
    with pytest.raises(ClaimsDiffer):
        backend.queue(claims="rows").claim()


def test_a_claim_by_transaction_with_another_map_is_refused_beside_claims_in_rows(backend: Backend) -> None:
    """It would take rows that are claimed for free ones, and the owners' jobs for none."""
    by_row = backend.queue()
    assert by_row.owner_id
    other = backend.bare_queue(
        "jobs", columns=Columns(status=None, owner_id=None), hold="transaction", on_done="delete"
    )
    with pytest.raises(ClaimsDiffer):
        other.claim(1)


def test_consumers_with_two_side_cars_of_one_table_or_one_and_none_refuse_each_other(backend: Backend) -> None:
    """Neither would see the jobs that the other one holds."""
    ORDERS.create(backend.engine)
    fill(backend, 6)
    kinds: dict[str, dict[str, Any]] = {
        "orders_claims": {"side_car": True},
        "ours": {"side_car": "ours"},
        "": {"claims": "batches", "columns": Columns(status=None), "on_done": "delete"},
        "by transaction": {"hold": "transaction", "columns": Columns(status=None), "on_done": "delete"},
    }
    for name in ("orders_claims", "ours"):
        make(backend.engine, side_car_tables(backend.engine, "orders", kinds[name]["side_car"]))
    for first in list(kinds)[:3]:
        one = backend.bare_queue("orders", **kinds[first])
        assert len(one.claim(2)) == 2
        for second in kinds.keys() - {first}:
            with pytest.raises(ClaimsDiffer, match="1 owner with") as refusal:
                backend.bare_queue("orders", **kinds[second]).claim(2)
            assert "the same hold, claims, locking, side_car" in str(refusal.value)
        one.close()
    assert len(backend.bare_queue("orders", **kinds["ours"]).claim(6)) == 6
