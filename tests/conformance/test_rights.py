"""Accounts that may do less than all: what they may do works, and what they may not do is told."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from claimjobs.errors import AccessDenied
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.owners import OWNERS, owner_of
from tests.conformance.sleepers import Consumer


@contextmanager
def account(backend: Backend, **rights: str) -> Iterator[sa.Engine]:
    """An engine of an account that has these rights on these tables, and no others."""
    name = f"cj_{secrets.token_hex(4)}"
    postgres = backend.family == "postgres"
    backend.run(
        f"CREATE ROLE {name} LOGIN PASSWORD 'secret'" if postgres else f"CREATE USER {name} IDENTIFIED BY 'secret'"
    )
    url = sa.make_url(backend.url).set(username=name, password="secret")
    try:
        for table, right in rights.items():
            backend.run(f"GRANT {right} ON {table if postgres else f'{url.database}.{table}'} TO {name}")
        if postgres:
            backend.run(f"GRANT USAGE ON SCHEMA public TO {name}")
        if postgres and "jobs" in rights:
            backend.run(f"GRANT USAGE ON SEQUENCE jobs_id_seq TO {name}")
        engine = backend.new_engine_to(url.render_as_string(hide_password=False))
        yield engine
        engine.dispose()
    finally:
        if postgres:
            backend.run(f"DROP OWNED BY {name}")
        backend.run(f"DROP {'ROLE' if postgres else 'USER'} {name}")


RIGHTS = pytest.mark.parametrize(
    "rights",
    [{"jobs": "INSERT, SELECT"}, {"jobs": "INSERT, SELECT", "claimjobs_owners": "SELECT"}],
    ids=["not the owners", "the owners to be read"],
)


@RIGHTS
def test_who_may_only_insert_and_select_enqueues(backend: Backend, rights: dict[str, str]) -> None:
    """Alone, and in a transaction of its own; whoever sleeps finds the jobs, called or not."""
    backend.make()
    with account(backend, **rights) as engine, Consumer(backend, poll=0.1) as consumer:
        queue = backend.bare_queue(bind=engine)
        consumer.falls_asleep()
        assert queue.enqueue(jobs(1)) == 1
        consumer.does("0000")
        consumer.falls_asleep()
        with engine.begin() as connection:
            assert queue.enqueue({"d": "theirs", "e": ""}, connection) == 1
            connection.execute(sa.text("SELECT 1"))
        consumer.does("0000", "theirs")
        assert queue.enqueue({"d": "again", "e": ""}) == 1
        consumer.does("0000", "theirs", "again")
        queue.close()


@pytest.mark.parametrize("owners", ["nothing", "SELECT", "SELECT, INSERT", "SELECT, INSERT, UPDATE, DELETE"])
def test_who_claims_by_transaction_polls_without_rights_on_the_owners(backend: Backend, owners: str) -> None:
    """With all of them it still may not read whether the queue is paused, as an owner does with each heartbeat."""
    backend.make()
    rights = {"jobs": "INSERT, SELECT, UPDATE, DELETE", **({} if owners == "nothing" else {"claimjobs_owners": owners})}
    with account(backend, **rights) as engine:
        queue = backend.bare_queue(bind=engine, hold="transaction")
        with Consumer(backend, queue, poll=0.05) as consumer:
            backend.wait_for(lambda: queue.report.empty_claims > 5, "it looks again and again")
            assert queue.enqueue(jobs(1)) == 1
            consumer.does("0000")
        queue.close()


@pytest.mark.parametrize("owners", ["nothing", "SELECT", "SELECT, INSERT"])
def test_who_claims_by_transaction_without_rights_on_the_owners_works_beside_a_lease(
    backend: Backend, owners: str
) -> None:
    """It cannot reclaim what that one held, and claims all the same."""
    by_lease = backend.queue()
    assert by_lease.owner_id
    rights = {"jobs": "INSERT, SELECT, UPDATE, DELETE", "claimjobs_queues": "SELECT"}
    with account(backend, **rights, **({} if owners == "nothing" else {"claimjobs_owners": owners})) as engine:
        queue = backend.bare_queue(bind=engine, hold="transaction")
        queue.enqueue(jobs(1))
        with queue.claim() as batch:
            assert len(batch) == 1
            batch.done()
        assert owner_of(queue) is None
        queue.close()
    assert [row["id"] for row in backend.rows(OWNERS)] == [by_lease.owner_id]


def test_who_may_not_see_the_owners_and_claims_is_told_what_it_takes(backend: Backend) -> None:
    backend.make()
    with account(backend, jobs="INSERT, SELECT, UPDATE, DELETE") as engine:
        queue = backend.bare_queue(bind=engine)
        queue.enqueue(jobs(1))
        if backend.family == "postgres":  # which lets everybody see a table's columns
            pytest.skip(f"{backend.name} lacks a refusal to look at a table's columns")
        with pytest.raises(AccessDenied, match="needs SELECT, INSERT, UPDATE and DELETE on claimjobs_owners"):
            queue.claim()


def test_who_claims_by_transaction_sees_pauses_without_rights_on_the_owners(backend: Backend) -> None:
    backend.make()
    with account(backend, jobs="INSERT, SELECT, UPDATE, DELETE", claimjobs_queues="SELECT") as engine:
        queue = backend.bare_queue(bind=engine, hold="transaction")
        queue.check()
        queue.enqueue(jobs(1))
        with backend.bare_queue() as operator:
            operator.pause()
            assert not queue.claim()
            operator.resume()
        assert queue.stats().unclaimed == 1
        queue.close()


def test_a_check_tells_who_claims_by_lease_that_the_owners_cannot_be_read(backend: Backend) -> None:
    backend.make()
    with account(backend, jobs="INSERT, SELECT, UPDATE, DELETE") as engine:
        queue = backend.bare_queue(bind=engine)
        for check in (queue.check, queue.reclaim_ownerless):
            with pytest.raises((AccessDenied, sa.exc.ProgrammingError), match="claimjobs_owners"):
                check()
        queue.close()


def test_a_pause_that_cannot_be_read_is_told(backend: Backend) -> None:
    backend.make()
    rights = "SELECT, INSERT, UPDATE, DELETE"
    with account(backend, jobs=rights, claimjobs_owners=rights) as engine:
        queue = backend.bare_queue(bind=engine)
        if backend.family != "postgres":
            pytest.skip(f"{backend.name} lacks accounts that see a table which they may not read")
        with pytest.raises(sa.exc.ProgrammingError, match="claimjobs_queues"):
            queue.stats()
        queue.close()
