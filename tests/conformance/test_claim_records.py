"""An owner's row says how its claims are recorded: nobody reaps, or works beside, what it cannot read."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Columns, job_table, make, side_car_tables
from claimjobs.cli import exits
from claimjobs.errors import ClaimsDiffer
from claimjobs.table.definitions import BATCHES_TABLE
from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.conformance.jobs import jobs
from tests.conformance.orders import ORDERS, fill
from tests.conformance.owners import declare_dead, end_session, hold_of, owner_row, still

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


RENAMES: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "the table": ("ALTER TABLE jobs RENAME TO emails", "emails", {}, ()),
    "the key, rows": ("ALTER TABLE jobs RENAME COLUMN id TO job_id", "jobs", {"claims": "rows"}, ()),
    "the key, batches": (
        "ALTER TABLE jobs RENAME COLUMN id TO job_id",
        "jobs",
        {"claims": "batches"},
        ("--claims", "batches"),
    ),
}


@pytest.mark.parametrize("renamed", RENAMES)
def test_after_a_rename_a_dead_owner_is_reclaimed_by_force(backend: Backend, renamed: str) -> None:
    """The error, or `status`, names the command."""
    statement, table, options, words = RENAMES[renamed]
    backend.may_leave_owners = True  # it is closed at the end, and cannot release anything under the old names
    dead = still(backend.queue(**options))
    dead.enqueue(jobs(3))
    batch, me = dead.claim(2), dead.owner_id
    assert len(batch) == 2
    end_session(backend, me)
    backend.run(statement)
    command = ("reclaim", "--owner", str(me), "--table", table, *words, "--url", backend.url)
    told = claimjobs("status", "--table", table, *words, "--url", backend.url)
    if table == "jobs":
        assert f"for each dead one ({me}), `claimjobs reclaim --owner ID --force`" in " ".join(told.err.split())
        assert claimjobs(*command).code == exits.TABLE
    else:
        assert f"2 claimed by owner {me}, which claims from another table" in told.out
        assert f"reclaim --owner {me} --force" in told.out
        assert claimjobs(*command).code == exits.USAGE
    ended = claimjobs(*command, "--force")
    assert (ended.code, ended.out) == (exits.OK, "0\n" if "batches" in words else "2\n")
    assert owner_row(backend, me) is None
    with backend.bare_queue(table, on_done="delete", **options) as queue:
        assert queue.stats().claimed == 0
        done = 0
        for each in queue.batches(1, drain=True):
            with each:
                each.done()
            done += len(each)
        assert done == 3


def test_a_side_car_that_was_dropped_keeps_nobody_out(backend: Backend) -> None:
    backend.make()
    make(backend.engine, side_car_tables(backend.engine, "jobs", True))
    dead = still(backend.bare_queue("jobs", side_car=True))
    dead.enqueue(jobs(2))
    batch, me = dead.claim(2), dead.owner_id
    assert len(batch) == 2
    end_session(backend, me)
    backend.run("DROP TABLE jobs_claims")
    queue = backend.bare_queue("jobs", on_done="delete", claims="rows")
    with pytest.raises(ClaimsDiffer, match=str(me)):
        queue.claim()
    assert queue.reclaim_owner(me, force=True) == 0
    assert owner_row(backend, me) is None
    assert len(queue.claim(2)) == 2


def test_by_force_a_living_owner_that_differs_settles_nothing_any_more(backend: Backend) -> None:
    living = backend.queue(claims="rows")
    living.enqueue(jobs(2))
    batch = living.claim(2)
    backend.run("ALTER TABLE jobs RENAME COLUMN id TO job_id")
    queue = backend.bare_queue("jobs", on_done="delete", claims="rows")
    with pytest.raises(ClaimsDiffer) as refusal:
        queue.reclaim_owner(living.owner_id)
    assert "--force" not in str(refusal.value)  # it lives
    assert queue.reclaim_owner(living.owner_id, force=True) == 2
    backend.run("ALTER TABLE jobs RENAME COLUMN job_id TO id")
    batch.done()
    batch.settle()
    assert len(batch.lost) == 2
