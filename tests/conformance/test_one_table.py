"""One table with several names, and programs with several default schemas: one queue, with one table of owners."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Liveness, Retry, make, tables_for
from claimjobs.dialects.types import database_now
from claimjobs.errors import TableMissing, UnfitTable
from claimjobs.table.definitions import OWNER_TABLE
from tests.backends import Backend, Servers
from tests.cli.command import claimjobs
from tests.conformance.jobs import dead_jobs, jobs
from tests.conformance.orders import ORDERS, beside, fill
from tests.conformance.owners import OWNERS, declare_dead, still


def home(backend: Backend) -> str:
    """The schema of the tables of a test."""
    return "public" if backend.has("schemas") else str(backend.engine.url.database)


@pytest.fixture
def abroad(backend: Backend, servers: Servers) -> Iterator[sa.Engine]:
    """An engine with another default schema, in which there is nothing yet. Other schemas are found after it."""
    if backend.has("schemas"):
        backend.run("CREATE SCHEMA abroad")
        url = sa.make_url(backend.url).update_query_dict({"options": "-csearch_path=abroad,public"})
        yield backend.new_engine_to(url.render_as_string(hide_password=False))
        return
    lent = servers.lend(backend.family)
    yield lent.engine
    for queue in backend._queues:  # some have connections with the default schema that is removed now
        queue.close()
    lent.close()


@pytest.mark.parametrize("claims", ["batches", "rows"])
def test_two_names_of_a_table_are_one_queue(backend: Backend, claims: str) -> None:
    one, other = (still(backend.queue(name, claims=claims)) for name in ("jobs", f"{home(backend)}.jobs"))
    one.enqueue(jobs(3))
    batch = one.claim(2)
    with other.claim(3) as rest:
        assert len(rest) == 1
        rest.done()
    assert [seen.id for seen in other.stats().owners] == [one.owner_id, other.owner_id]
    declare_dead(backend, one.owner_id)
    assert other.reclaim() == 2
    other.pause("a deploy")
    assert one.stats().pause_reason == "a deploy"
    assert one.resume()
    assert len(other.claim(3)) == 1  # they are suspects
    batch.settle()
    assert len(batch.lost) == 2


def test_two_names_of_a_table_have_one_side_car(backend: Backend, abroad: sa.Engine) -> None:
    ORDERS.create(backend.engine)
    fill(backend, 3)
    one, other = (
        still(beside(backend, "orders", liveness=Liveness(lease=600))),
        backend.bare_queue(f"{home(backend)}.orders", side_car=True),
    )
    away = backend.bare_queue(f"{home(backend)}.orders", bind=abroad, side_car=True)
    assert len(one.claim(2)) == 2
    assert len(other.claim(3)) == 1
    assert len(away.claim(3)) == 0


def test_a_table_has_the_owners_of_its_own_schema_whatever_the_default_schema_is(
    backend: Backend, abroad: sa.Engine
) -> None:
    here = still(backend.queue())
    make(abroad, tables_for("mails")[1:])  # another table of owners, for other tables of jobs
    there = still(backend.bare_queue(f"{home(backend)}.jobs", bind=abroad, claims="rows"))
    here.enqueue(jobs(3))
    batch = here.claim(3)
    assert there.owner_id > here.owner_id
    assert [seen.id for seen in here.stats().owners] == [here.owner_id, there.owner_id]
    assert there.reclaim() == 0
    batch.done()
    batch.settle()
    assert batch.lost == ()


def test_what_all_share_is_made_in_the_schema_of_the_table(backend: Backend, abroad: sa.Engine) -> None:
    """A consumer that finds it only in another schema is told what to run."""
    backend.make()
    backend.run(f"DROP TABLE {OWNER_TABLE}")
    make(abroad, tables_for("mails")[1:])
    name = f"{home(backend)}.jobs"
    with pytest.raises(TableMissing, match=rf"'{home(backend)}.{OWNER_TABLE}' is not .* setup-tables --table {name}"):
        backend.bare_queue(name, bind=abroad).check()
    assert f"{home(backend)}.{OWNER_TABLE}" in make(abroad, tables_for(name)).created
    backend.bare_queue(name, bind=abroad).check()
    backend.bare_queue("jobs").check()


def test_a_table_that_is_found_in_a_later_schema_has_its_owners_there(backend: Backend, abroad: sa.Engine) -> None:
    backend.requires("schemas")
    backend.make()
    backend.run(f"DROP TABLE {OWNER_TABLE}")
    assert f"public.{OWNER_TABLE}" in make(abroad, tables_for("jobs")).created
    assert not sa.inspect(abroad).has_table(OWNER_TABLE, schema="abroad")
    one, other = still(backend.bare_queue("jobs", bind=abroad)), still(backend.bare_queue("jobs"))
    assert [seen.id for seen in one.stats().owners] == [one.owner_id, other.owner_id]


def test_what_all_share_is_made_beside_new_jobs_though_another_schema_has_some(
    backend: Backend, abroad: sa.Engine
) -> None:
    backend.make()
    assert OWNER_TABLE in {name.rpartition(".")[2] for name in make(abroad, tables_for("mails")).created}
    queue = still(backend.bare_queue("mails", bind=abroad))
    assert [seen.id for seen in queue.stats().owners] == [queue.owner_id]


def test_without_a_default_schema_the_setting_is_blamed_and_not_the_name(backend: Backend) -> None:
    backend.requires("schemas")
    url = sa.make_url(backend.url).update_query_dict({"options": "-csearch_path="})
    engine = backend.new_engine_to(url.render_as_string(hide_password=False))
    with pytest.raises(UnfitTable, match=r"'jobs' cannot be made, because .*search_path is empty.* set it, or name"):
        make(engine, tables_for("jobs"))
    assert "public.jobs" in make(engine, tables_for("public.jobs")).created
    backend.bare_queue("public.jobs", bind=engine).check()


def test_a_side_car_in_another_schema_has_its_owners_there_and_all_that_a_queue_does_works(
    backend: Backend, abroad: sa.Engine, tmp_path: Path
) -> None:
    """On MySQL and MariaDB: in another database. A program whose default schema that is has the same queue."""
    ORDERS.create(backend.engine)
    fill(backend, 8)
    schema = "abroad" if backend.has("schemas") else str(abroad.url.database)
    named = f"{schema}.orders_claims"
    described = tmp_path / "orders.toml"
    described.write_text(f'table = "orders"\nside_car = "{named}"\n')
    with pytest.raises(TableMissing, match=rf"{named}' is not .* setup-tables --map FILE"):
        backend.bare_queue("orders", side_car=named).check()
    made = claimjobs("setup-tables", "--url", backend.url, "--map", str(described)).out
    assert made.count(f"{schema}.") == made.count(": made") == 4
    assert not sa.inspect(backend.engine).has_table(OWNER_TABLE)
    lives = Liveness(lease=300)  # without a heartbeat
    here: dict[str, Any] = {"side_car": named, "retry": Retry(attempts=1), "liveness": lives}
    queue, other = (still(backend.bare_queue("orders", **here)) for _ in range(2))
    away = still(backend.bare_queue(f"{home(backend)}.orders", bind=abroad, side_car="orders_claims", liveness=lives))
    assert [seen.id for seen in away.stats().owners] == [queue.owner_id, other.owner_id, away.owner_id]
    queue.check()
    with queue.claim(3) as batch:
        assert [len(each.claim(3)) for each in (other, away)] == [3, 2]
        batch.done(batch[0])
        batch.fail(batch[1], "broken")
        batch.release(batch[2])
    assert [(dead.key, dead.last_error) for dead in dead_jobs(away)] == [(2, "broken")]
    assert away.jobs.retry() == 1
    with abroad.begin() as connection:
        connection.execute(sa.update(OWNERS).where(OWNERS.c.id == other.owner_id).values(died=database_now()))
    assert queue.reclaim() == 3
    stats, backlog = queue.stats(), away.backlog()
    assert (stats.unclaimed, stats.claimed, stats.done) == (backlog.unclaimed, backlog.claimed, 1) == (5, 2, 1)
    assert not [finding for finding in queue.explain().findings if finding.verdict == "will not work"]
    away.pause("a deploy")
    assert queue.stats().pause_reason == "a deploy"
    assert queue.resume()
    assert "held" in claimjobs("status", "--url", backend.url, "--map", str(described)).out
    with away.claim(8) as rest:
        assert rest
