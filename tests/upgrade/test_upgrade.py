"""Tables of earlier versions are upgraded: they become as newly made ones, and no row is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from claimjobs.admin.upgrade import plan, upgrade
from claimjobs.errors import OwnersOutdated, QueuesMissing, TablesNewer, UnfitTable, UpgradeRunning, UpgradeStopped
from claimjobs.table.definitions import SCHEMA
from tests.backends import Backend
from tests.upgrade.earlier import NAMES, STATES, adopt, contents, drop_all, execute, install, keeps, newly_made, shapes

pytestmark = pytest.mark.thorough("it upgrades tables under load")

EACH = pytest.mark.parametrize("schema", NAMES)


@EACH
def test_tables_of_an_earlier_schema_become_as_newly_made_with_their_rows(database: Backend, schema: str) -> None:
    database.may_leave_owners = True
    install(database, schema)
    with pytest.raises((OwnersOutdated, QueuesMissing), match="run `claimjobs upgrade-tables`"):
        database.bare_queue().claim()
    adopt(database)
    before = contents(database)
    assert {table.table for table in upgrade(database.engine)} == {*before, "claimjobs_queues", "claimjobs_batches"}
    assert keeps(before, contents(database))
    assert plan(database.engine) == []
    upgraded = shapes(database)
    with database.bare_queue() as queue:
        with queue.claim(10) as batch:
            batch.done()
        assert len(batch) == 2  # both unclaimed jobs
    made = newly_made(database)
    assert upgraded == {name: shape for name, shape in made.items() if name in upgraded}


def test_owners_without_heartbeats_are_dead_and_their_jobs_are_reclaimed(database: Backend) -> None:
    install(database, "before-heartbeats")
    list(upgrade(database.engine))
    assert [(row["lease"], row["died"]) for row in database.rows("claimjobs_owners")] == [(0, None)]
    with database.bare_queue() as queue:
        assert queue.reclaim() <= 1  # the queue's own reaper may have been first
    assert "claimed" not in {row["status"] for row in database.rows()}


def test_a_table_without_our_comment_is_never_altered(database: Backend) -> None:
    database.may_leave_owners = True
    install(database, "before-comments")
    before = shapes(database)["jobs"]
    assert "jobs" not in {table.table for table in upgrade(database.engine)}
    with pytest.raises(UnfitTable, match="'jobs' was not made by claimjobs, which therefore does not alter it"):
        plan(database.engine, ["jobs"])
    assert shapes(database)["jobs"] == before


def test_an_upgrade_that_ended_after_any_of_its_statements_can_run_again(database: Backend) -> None:
    """As after a kill -9: each statement is committed by itself, so the tables are as after some of them."""
    database.may_leave_owners = True
    done, whole = 0, None
    while True:
        drop_all(database)
        install(database, "before-heartbeats")
        adopt(database)
        statements = [change.statement for table in plan(database.engine) for change in table.changes]
        execute(database, ";\n".join(statements[:done]))
        before = contents(database)
        list(upgrade(database.engine))
        assert keeps(before, contents(database))
        whole = whole or shapes(database)
        assert shapes(database) == whole
        assert plan(database.engine) == []
        if done == len(statements):
            return
        done += 1


def test_an_index_that_an_interrupted_build_left_is_built_again(anywhere: Backend) -> None:
    anywhere.may_leave_owners = True
    install(anywhere, "before-heartbeats")
    adopt(anywhere)
    with anywhere.new_engine(isolation_level="REPEATABLE READ").begin() as other:
        other.execute(sa.text("SELECT 1"))  # a build waits for every older snapshot
        upgrading = _Running(lambda: list(upgrade(anywhere.engine)))
        anywhere.wait_for(lambda: _builders(anywhere), "the build has begun")
        anywhere.run("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONC%'")
        upgrading.join()
    assert isinstance(upgrading.error, UpgradeStopped)
    assert not _is_valid(anywhere, "jobs_claim_new")
    assert shapes(anywhere)["jobs"]["comment"] == "made by claimjobs"  # the version is written last
    list(upgrade(anywhere.engine))
    assert _is_valid(anywhere, "jobs_claim")
    assert set(shapes(anywhere)["jobs"]["indexes"]) == {"jobs_claim", "jobs_d"}


def test_a_table_in_use_is_not_waited_for_and_the_upgrade_can_run_again(database: Backend) -> None:
    database.may_leave_owners = True
    install(database, "before-heartbeats")
    adopt(database)
    with database.new_engine().begin() as other:
        other.execute(sa.text("UPDATE jobs SET e = 'in hand' WHERE d = '0'"))
        with pytest.raises(UpgradeStopped, match=r"'jobs' is not upgraded.* was not free within 2 s; run `claimjobs"):
            list(upgrade(database.engine))
    assert "asleep" in {column["name"] for column in shapes(database)["claimjobs_owners"]["columns"]}
    assert [table.table for table in upgrade(database.engine)] == ["jobs"]


def test_what_a_server_cannot_do_online_is_refused_and_can_run_again(database: Backend) -> None:
    if database.family == "postgres":
        pytest.skip("postgres lacks a clause that refuses to copy a table")
    database.may_leave_owners = True
    install(database, "before-heartbeats")
    adopt(database)
    database.run("ALTER TABLE jobs ROW_FORMAT=COMPRESSED")
    with pytest.raises(
        UpgradeStopped, match="run it without ALGORITHM and LOCK when the table may be locked"
    ) as refused:
        list(upgrade(database.engine))
    statement = str(refused.value).partition("`")[2].partition(", ALGORITHM")[0]
    database.run(statement)
    list(upgrade(database.engine))
    assert plan(database.engine) == []


def test_two_upgrades_do_not_work_at_once(database: Backend) -> None:
    database.may_leave_owners = True
    install(database, "schema-1")
    first = upgrade(database.engine)
    next(first)
    with pytest.raises(UpgradeRunning):
        next(upgrade(database.engine))
    assert len(list(first)) == 5


def test_tables_of_a_later_version_are_left_alone(database: Backend) -> None:
    database.make()
    later = f"made by claimjobs, schema {SCHEMA + 1}"
    said = "COMMENT ON TABLE jobs IS" if database.family == "postgres" else "ALTER TABLE jobs COMMENT"
    database.run(f"{said} '{later}'")
    with pytest.raises(TablesNewer, match=f"'jobs' has schema {SCHEMA + 1}"):
        plan(database.engine)


def test_consumers_of_the_version_before_work_beside_an_upgrade(database: Backend) -> None:
    """They know neither `suspect` nor `asleep`. Each job is done once, whatever the upgrade does meanwhile."""
    database.may_leave_owners = True
    install(database, "before-sleep")
    database.run("ALTER TABLE jobs DROP COLUMN suspect")
    database.insert("jobs", [{"d": f"load {place}", "e": ""} for place in range(600)])
    consumers = [_EarlierConsumer(database.new_engine()) for _ in range(3)]
    database.wait_for(lambda: all(consumer.done or consumer.error for consumer in consumers), "all consumers work")
    assert [consumer.error for consumer in consumers] == [None] * 3
    database.wait_for(lambda: _upgraded(database), "the upgrade got its locks")
    seen = [len(consumer.done) for consumer in consumers]
    database.insert("jobs", [{"d": f"after {place}", "e": ""} for place in range(60)])
    database.wait_for(
        lambda: all(len(consumer.done) > before for consumer, before in zip(consumers, seen, strict=True)),
        "all consumers work on the upgraded tables",
    )
    for consumer in consumers:
        consumer.stop()
    assert [consumer.error for consumer in consumers] == [None] * 3
    done = [job for consumer in consumers for job in consumer.done]
    left = {row["id"]: row["status"] for row in database.rows()}
    assert len(done) == len(set(done))
    assert not set(done) & set(left)
    assert len(done) + len(left) == 660 + len(STATES)
    assert sorted(status for status in left.values() if status != "unclaimed") == ["claimed", "dead", "done"]


def _upgraded(database: Backend) -> bool:
    try:
        list(upgrade(database.engine))
    except UpgradeStopped:
        return False
    return not plan(database.engine)


def _builders(backend: Backend) -> list[str]:
    return [session for session in backend.sessions() if "CREATE INDEX CONC" in session]


def _is_valid(backend: Backend, name: str) -> bool:
    with backend.engine.connect() as connection:
        return bool(
            connection.scalar(sa.text(f"SELECT indisvalid FROM pg_index WHERE indexrelid = '{name}'::regclass"))
        )


class _Running(threading.Thread):
    """A thread that keeps the error that ended it."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self.error = error


class _EarlierConsumer(_Running):
    """The statements of a consumer of an earlier version, in plain SQL: register, claim, beat, settle, leave."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._stopping = threading.Event()
        self.done: list[int] = []
        super().__init__(self._consume)

    def stop(self) -> None:
        self._stopping.set()
        self.join(120)

    def _consume(self) -> None:
        with self._engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
            owner = self._register(connection)
            while not self._stopping.is_set():
                self._batch(connection, owner)
            connection.execute(sa.text("DELETE FROM claimjobs_owners WHERE id = :me"), {"me": owner})
            connection.commit()

    def _register(self, connection: sa.Connection) -> int:
        owners = sa.table("claimjobs_owners", *map(sa.column, ("id", "host", "pid", "claims", "lease")))
        name = f"consumer {id(self)}"
        connection.execute(sa.insert(owners).values(host=name, pid=1, claims="jobs", lease=3600.0))
        owner: int = connection.execute(sa.select(owners.c.id).where(owners.c.host == name)).scalar_one()
        connection.commit()
        return owner

    def _batch(self, connection: sa.Connection, owner: int) -> None:
        find = "SELECT id FROM jobs WHERE status = 'unclaimed' ORDER BY priority, id LIMIT 2 FOR UPDATE SKIP LOCKED"
        jobs = list(connection.scalars(sa.text(find)))
        mark = "UPDATE jobs SET status = 'claimed', owner_id = :me WHERE id = :id"
        for job in jobs:
            connection.execute(sa.text(mark), {"me": owner, "id": job})
        connection.commit()
        connection.execute(sa.text("UPDATE claimjobs_owners SET died = NULL WHERE id = :me"), {"me": owner})
        settle = "DELETE FROM jobs WHERE id = :id AND status = 'claimed' AND owner_id = :me"
        reached = [connection.execute(sa.text(settle), {"me": owner, "id": job}).rowcount for job in jobs]
        connection.commit()
        self.done += jobs
        assert reached == [1] * len(jobs)
        self._stopping.wait(0.01)
