"""Tables of the user's own: which column plays which role, and how a row says what it is."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from claimjobs import Columns, PerKey, Queue, key_tables, make
from claimjobs.dialects.types import Instant
from claimjobs.errors import BadRow, ColumnMissing, ColumnUnfit, KeyUnfit, StateMissing
from claimjobs.table.columns import STATES, UNCLAIMED
from tests.backends import Backend
from tests.conformance.jobs import counted, dead_jobs, way_of_a_claim
from tests.conformance.owners import declare_dead, still

SMALLINTS = {"unclaimed": 0, "claimed": 1, "done": 2, "dead": 3}
NAMES = {
    "owner_id": "held_by",
    "owner_date": "held_since",
    "priority": "urgency",
    "run_at": "not_before",
    "attempts": "tries",
    "last_error": "trouble",
    "suspect": "company",
}
"""Every optional role under a name of the user's."""


def columns_of_ours() -> list[sa.Column[Any]]:
    return [
        sa.Column("held_by", sa.Integer),
        sa.Column("held_since", Instant),
        sa.Column("urgency", sa.Integer),
        sa.Column("not_before", Instant),
        sa.Column("tries", sa.Integer),
        sa.Column("trouble", sa.Text),
        sa.Column("company", sa.Integer),
    ]


def table_of(name: str, *columns: sa.schema.SchemaItem) -> sa.Table:
    return sa.Table(name, sa.MetaData(), *columns, mysql_engine="InnoDB", mariadb_engine="InnoDB")


def queue_of(backend: Backend, table: sa.Table, columns: Columns, **options: Any) -> Queue:
    """A queue over a table that is known by its name alone, as a user's would be."""
    table.create(backend.engine)
    backend.make()
    return backend.bare_queue(table.name, columns=columns, **{"on_done": "delete", **options})


def states(backend: Backend, table: str, column: str) -> list[Any]:
    return [row[column] for row in backend.rows(table)]


def roundabout(queue: Queue, keys: list[Any]) -> None:
    """Every way a job can go. The six keys are those of the rows, in their order."""
    with queue.claim(4) as batch:
        assert [job.key for job in batch.jobs] == keys[:4]
        done, released, retried, dead = batch.jobs
        assert queue.stats().claimed == 4
        batch.done(done)
        batch.release(released)
        batch.fail(retried, "again", retry_in=0)
        batch.fail(dead, "never", retry=False)
    assert batch.lost == ()
    stats = queue.stats()
    assert (stats.unclaimed, stats.claimed, stats.dead) == (4, 0, 1)
    assert [job.key for job in dead_jobs(queue)] == [keys[3]]
    assert queue.jobs.retry() == 1
    with queue.claim() as batch:
        assert [job.key for job in batch.jobs] == keys[1:]
        batch.done()
    assert queue.stats().left == 0


# --- states ------------------------------------------------------------------------------------------------


def test_every_column_under_a_name_of_its_own(backend: Backend) -> None:
    """Without defaults, and NULL where nobody has said anything."""
    key = sa.Column("number", sa.Integer, primary_key=True)
    table = table_of("parcels", key, sa.Column("phase", sa.SmallInteger), *columns_of_ours())
    queue = queue_of(backend, table, Columns(status="phase", states=SMALLINTS, **NAMES))
    queue.enqueue([{"number": n, "phase": 0} for n in range(1, 7)])
    roundabout(queue, [1, 2, 3, 4, 5, 6])
    assert queue.payload == ()


def test_words_of_another_language(backend: Backend) -> None:
    words = {"unclaimed": "frei", "claimed": "belegt", "done": "fertig", "dead": "tot"}
    kind = sa.Enum(*words.values(), name="zustand")
    table = table_of("pakete", sa.Column("id", sa.Integer, primary_key=True), sa.Column("z", kind), *columns_of_ours())
    queue = queue_of(backend, table, Columns(status="z", states=words, **NAMES), on_done="keep")
    queue.enqueue([{"id": n, "z": "frei"} for n in range(1, 7)])
    roundabout(queue, [1, 2, 3, 4, 5, 6])
    assert set(states(backend, "pakete", "z")) == {"fertig"}
    assert queue.stats().done == 6


def test_a_truth_and_an_owner(backend: Backend) -> None:
    """False is claimed with an owner, and done without one."""
    table = table_of(
        "items",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("available", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("owner_id", sa.Integer),
    )
    queue = queue_of(backend, table, Columns(status="available"), on_done="keep")
    queue.enqueue([{"id": n} for n in range(1, 4)])
    with queue.claim(2) as batch:
        assert [bool(value) for value in states(backend, "items", "available")] == [False, False, True]
        assert (queue.stats().unclaimed, queue.stats().claimed, queue.stats().done) == (1, 2, 0)
        batch.done(batch[0])
    assert states(backend, "items", "owner_id") == [None, None, None]
    assert (queue.stats().unclaimed, queue.stats().claimed, queue.stats().done) == (2, 0, 1)


def test_a_truth_the_other_way_round(backend: Backend) -> None:
    """`processed` is false until it is done: the owner alone tells what is claimed."""
    table = table_of(
        "orders",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("processed", sa.Boolean, nullable=False),
        sa.Column("worker", sa.Integer),
    )
    columns = Columns(status="processed", owner_id="worker", states={"unclaimed": False, "done": True})
    queue = queue_of(backend, table, columns, on_done="keep")
    queue.enqueue([{"id": n, "processed": False} for n in range(1, 4)])
    with queue.claim(2) as batch:
        assert states(backend, "orders", "worker") == [queue.owner_id, queue.owner_id, None]
        assert [bool(value) for value in states(backend, "orders", "processed")] == [False, False, False]
        assert not backend.bare_queue("orders", columns=columns, where=sa.text("id < 3")).claim()
        batch.done()
    assert [bool(value) for value in states(backend, "orders", "processed")] == [True, True, False]
    assert (queue.stats().unclaimed, queue.stats().done) == (1, 2)


def test_a_date_that_must_be_there(backend: Backend) -> None:
    """As an `updated_at` NOT NULL: what is handed back keeps it."""
    now = sa.Column("updated_at", Instant, nullable=False, server_default=sa.func.now())
    key = sa.Column("id", sa.Integer, primary_key=True)
    table = table_of(
        "orders", key, sa.Column("phase", sa.Integer), now, *(c for c in columns_of_ours() if c.name != "held_since")
    )
    queue = queue_of(backend, table, Columns(status="phase", states=SMALLINTS, **{**NAMES, "owner_date": "updated_at"}))
    queue.enqueue([{"id": n, "phase": 0} for n in range(1, 7)])
    roundabout(queue, [1, 2, 3, 4, 5, 6])


def test_an_owner_is_all_that_tells(backend: Backend) -> None:
    """As `processed_by` in "Pick a task to work on"."""
    table = table_of("tasks", sa.Column("id", sa.Integer, primary_key=True), sa.Column("processed_by", sa.Integer))
    queue = queue_of(backend, table, Columns(status=None, owner_id="processed_by"))
    queue.enqueue([{"id": n} for n in range(1, 5)])
    with queue.claim(3) as batch:
        assert states(backend, "tasks", "processed_by") == [queue.owner_id] * 3 + [None]
        assert (queue.stats().unclaimed, queue.stats().claimed) == (1, 3)
        batch.done(batch[0])
    assert states(backend, "tasks", "processed_by") == [None] * 3
    with queue.claim() as batch:
        with pytest.raises(ColumnMissing, match="no column 'attempts'"):
            batch.fail(batch[0], "broken")
        with pytest.raises(ColumnMissing, match="no column 'status'"):
            batch.fail(batch[0], "broken", retry=False)
        with pytest.raises(ColumnMissing, match="no column 'status'"):
            queue.jobs.retry()
        batch.done()
    assert queue.stats().left == 0


def test_what_a_dead_owner_held_is_handed_back(backend: Backend) -> None:
    table = table_of("tasks", sa.Column("id", sa.Integer, primary_key=True), sa.Column("processed_by", sa.Integer))
    columns = Columns(status=None, owner_id="processed_by")
    queue = still(queue_of(backend, table, columns))
    queue.enqueue([{"id": n} for n in range(1, 4)])
    batch = queue.claim(2)
    declare_dead(backend, queue.owner_id)
    other = still(backend.bare_queue("tasks", columns=columns, on_done="delete"))
    assert other.reclaim() == 2
    with other.claim() as again:
        assert [job.id for job in again] == [1, 2, 3]
    batch.done()
    batch.settle()
    assert [job.id for job in batch.lost] == [1, 2]


# --- keys --------------------------------------------------------------------------------------------------


def test_a_key_that_is_no_primary_key(backend: Backend) -> None:
    """As the queue of "Pick a task to work on": a row is named by its priority and the instant it was added."""
    table = table_of(
        "queue",
        sa.Column("job", sa.String(20)),
        sa.Column("priority", sa.Integer),
        sa.Column("added_on", Instant),
        sa.Column("processed_by", sa.Integer),
        sa.Index("pickup", sa.desc("priority"), "added_on"),
    )
    columns = Columns(key=("priority", "added_on"), status=None, owner_id="processed_by")
    order = (table.c.priority.desc(), table.c.added_on)
    queue = queue_of(backend, table, columns, order_by=order)
    start = datetime(2013, 4, 1, tzinfo=UTC)
    rows = [{"job": f"{n}", "priority": n // 2, "added_on": start + timedelta(milliseconds=n)} for n in range(6)]
    queue.enqueue([*rows, {"job": "nameless", "priority": None, "added_on": None}])
    with queue.claim(4) as batch:
        assert [job.job for job in batch.jobs] == ["4", "5", "2", "3"]
        batch.done(*batch.jobs[:2])
    with queue.claim() as batch:
        assert [job.job for job in batch] == ["2", "3", "0", "1"]
    with backend.engine.connect() as connection:
        assert list(connection.scalars(sa.text("SELECT job FROM queue"))) == ["nameless"]


def test_a_key_that_names_two_rows_is_told(backend: Backend) -> None:
    table = table_of("twins", sa.Column("name", sa.Integer), sa.Column("owner_id", sa.Integer), sa.Index("n", "name"))
    queue = queue_of(backend, table, Columns(key="name", status=None))
    queue.enqueue([{"name": 1}, {"name": 1}, {"name": 2}])
    for size in (1, 2, 10):
        with pytest.raises(KeyUnfit, match="two rows of table 'twins' have the same key"):
            queue.claim(size)
    assert backend.locked("twins") == 0
    with backend.engine.connect() as connection:
        assert list(connection.scalars(sa.text("SELECT owner_id FROM twins"))) == [None] * 3


def test_a_key_without_an_index_is_refused(backend: Backend) -> None:
    table = table_of("heap", sa.Column("name", sa.Integer), sa.Column("owner_id", sa.Integer))
    with pytest.raises(KeyUnfit, match=r"CREATE UNIQUE INDEX heap_name ON heap \(name\)"):
        queue_of(backend, table, Columns(key="name", status=None)).claim()


@pytest.mark.parametrize("hold", ["lease", "transaction"])
def test_a_unique_key_beside_the_primary_one(backend: Backend, hold: Any) -> None:
    table = table_of(
        "orders",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("code", sa.String(36), unique=True, nullable=False),
        sa.Column("owner_id", sa.Integer),
    )
    queue = queue_of(backend, table, Columns(key="code", status=None), hold=hold)
    codes = sorted(str(uuid.UUID(int=n << 64)) for n in range(4))
    queue.enqueue([{"id": n, "code": code} for n, code in enumerate(codes, 1)])
    with queue.claim(3) as batch:
        assert [job.key for job in batch.jobs] == codes[:3]
        batch.done(*batch.jobs[:2])
    assert [row["id"] for row in backend.rows("orders")] == [3, 4]


def test_an_instant_as_key(backend: Backend) -> None:
    """As a driver gives it: without a time zone where the type knows none."""
    kind = sa.DateTime(timezone=True).with_variant(sa.dialects.mysql.DATETIME(fsp=6), "mysql", "mariadb")
    table = table_of("ticks", sa.Column("at", kind, primary_key=True), sa.Column("owner_id", sa.Integer))
    queue = queue_of(backend, table, Columns(status=None))
    zone = UTC if backend.family == "postgres" else None
    ticks = [datetime(2026, 1, 1, microsecond=n, tzinfo=zone) for n in range(4)]
    queue.enqueue([{"at": tick} for tick in ticks])
    with queue.claim(3) as batch:
        assert [job.key for job in batch.jobs] == ticks[:3]
        batch.done(batch[1])
    assert [row["at"] for row in backend.rows("ticks")] == [ticks[0], ticks[2], ticks[3]]


# --- the map -----------------------------------------------------------------------------------------------


def test_a_map_on_a_table(backend: Backend) -> None:
    columns = Columns(status=None, owner_id="worker")
    table = table_of("tasks", sa.Column("id", sa.Integer, primary_key=True), sa.Column("worker", sa.Integer))
    table.info["claimjobs"] = columns
    queue = backend.queue(table)
    queue.enqueue([{"id": 1}])
    with queue.claim() as batch:
        assert batch[0].worker == queue.owner_id
        batch.done()


def test_a_map_on_a_mapped_class(backend: Backend) -> None:
    class Base(DeclarativeBase):
        pass

    class Task(Base):
        __tablename__ = "tasks"
        __table_args__ = {"mysql_engine": "InnoDB"}  # noqa: RUF012
        __claimjobs__ = Columns(status=None, owner_id="worker")
        id: Mapped[int] = mapped_column(primary_key=True)
        worker: Mapped[int | None]

    queue = backend.queue(Task, where=Task.id > 1)
    queue.enqueue([{"id": 1}, {"id": 2}])
    with queue.claim() as batch:
        assert [(job.id, job.worker) for job in batch] == [(2, queue.owner_id)]


def test_a_column_that_is_not_there(backend: Backend) -> None:
    table = table_of("tasks", sa.Column("id", sa.Integer, primary_key=True), sa.Column("worker", sa.Integer))
    table.create(backend.engine)
    backend.make()
    for columns, role in ((Columns(owner_id="wrker"), "owner_id"), (Columns(key=("id", "wrker")), "key")):
        with pytest.raises(
            ColumnMissing, match=f"no column 'wrker', which its column map names as {role}: check the map"
        ):
            backend.bare_queue("tasks", columns=columns).claim()


def test_a_lease_needs_an_owner(backend: Backend) -> None:
    table = table_of("tasks", sa.Column("id", sa.Integer, primary_key=True))
    table.create(backend.engine)
    backend.make()
    with pytest.raises(ColumnMissing, match="ALTER TABLE tasks ADD COLUMN owner_id INTEGER"):
        backend.bare_queue("tasks", columns=Columns()).claim()


def test_states_that_nothing_tells_apart(backend: Backend) -> None:
    table = table_of("t", sa.Column("id", sa.Integer, primary_key=True), sa.Column("phase", sa.Integer))
    table.create(backend.engine)
    with pytest.raises(StateMissing):
        backend.bare_queue("t", columns=Columns(status="phase"), hold="transaction").claim()
    with pytest.raises(StateMissing):
        backend.bare_queue("t", columns=Columns(status="phase", states={"done": 1}), hold="transaction").claim()
    for states, told in (
        ({"unclaimed": 1, "done": 1}, "'unclaimed' and 'done' are both 1 in column 'phase' of table 't'"),
        ({"unclaimed": 0, "done": 1, "dead": 1}, "'done' and 'dead' are both 1 in column 'phase' of table 't'"),
    ):
        with pytest.raises(ColumnUnfit, match=told):
            backend.bare_queue("t", columns=Columns(status="phase", states=states), hold="transaction").claim()
    with pytest.raises(ValueError, match="'finished' is no state: they are unclaimed, claimed, done, dead"):
        Columns(states={"finished": 1})


def test_a_claim_by_map_is_as_short_as_any(backend: Backend) -> None:
    table = table_of("tasks", sa.Column("id", sa.Integer, primary_key=True), sa.Column("worker", sa.Integer))
    queue = still(queue_of(backend, table, Columns(status=None, owner_id="worker")))
    queue.enqueue([{"id": n} for n in range(1, 101)])
    queue.claim(1).settle()
    with counted(backend.engine) as sent, queue.claim() as batch:
        batch.done()
        claim = [sql.split()[0] for sql in sent]
    assert claim == way_of_a_claim(backend)


def test_columns_with_the_names_of_our_parameters(backend: Backend) -> None:
    """A statement of ours that wrote into them, or could not be compiled, would be found here."""
    names = ("keys", "size", "limit", "candidates", "now")
    payload = [sa.Column(name, sa.Integer) for name in names]
    roles = [sa.Column("me", sa.Integer), sa.Column("company", sa.Integer), *columns_of_ours()[3:-1]]
    table = table_of(
        "odd", sa.Column("id", sa.Integer, primary_key=True), sa.Column("phase", sa.Integer), *payload, *roles
    )
    given = {**NAMES, "owner_id": "me", "owner_date": None, "priority": None}
    queue = queue_of(backend, table, Columns(status="phase", states=SMALLINTS, **given))
    queue.enqueue([{"id": n, "phase": 0, **dict.fromkeys(names, n)} for n in range(1, 9)])
    with queue.claim(4) as batch:
        batch.done(batch[0])
        batch.fail(batch[1], "again", retry_in=0)
        batch.blame("which one?")
    with queue.claim(8, where=table.c.size > 4) as batch:
        batch.release()
    rest = backend.rows("odd")
    assert [tuple(row[name] for name in names) for row in rest] == [(n,) * 5 for n in range(2, 9)]
    assert [row["company"] for row in rest[:4]] == [0, 2, 2, None]


def test_a_binary_key_behind_a_decorated_type(backend: Backend) -> None:
    """As many keep a UUID on MySQL."""

    class Id(sa.TypeDecorator[uuid.UUID]):
        impl = sa.LargeBinary(16)
        cache_ok = True

        def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
            return dialect.type_descriptor(mysql.BINARY(16) if dialect.name != "postgresql" else sa.LargeBinary())

        def process_bind_param(self, value: uuid.UUID | None, dialect: sa.Dialect) -> bytes | None:
            return None if value is None else value.bytes

        def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> uuid.UUID | None:
            return None if value is None else uuid.UUID(bytes=value)

    table = table_of("parcels", sa.Column("id", Id, primary_key=True), sa.Column("worker", sa.Integer))
    table.info["claimjobs"] = Columns(status=None, owner_id="worker")
    table.create(backend.engine)
    backend.make()
    queue = backend.bare_queue(table, on_done="delete")
    keys = [uuid.UUID(int=n << 96 | 7) for n in range(4)]
    queue.enqueue([{"id": key} for key in keys])
    with queue.claim(3) as batch:
        assert [job.key for job in batch.jobs] == keys[:3]
        batch.done(*batch.jobs[:2])
    assert queue.stats().left == 2


def test_a_column_with_another_name_in_python_is_named_as_in_the_database(backend: Backend) -> None:
    """In rows, in jobs, and in texts for a Queue. An expression has the columns of the user's description."""
    table = table_of(
        "tasks",
        sa.Column("nr", sa.Integer, primary_key=True, key="number"),
        sa.Column("name", sa.String(9), key="customer", nullable=False, unique=True),
        sa.Column("worker", sa.Integer),
    )
    sa.Index("tasks_claim", table.c.worker, table.c.customer, table.c.number)
    table.info["claimjobs"] = Columns(status=None, owner_id="worker")
    queue = backend.queue(table, on_done="delete")
    make(backend.engine, key_tables(backend.engine, table, ["name"]))
    assert queue.enqueue([{"nr": nr, "name": name} for nr, name in enumerate("abcb")], unique=["name"]) == 3
    with pytest.raises(BadRow, match="has no column 'number': it has nr, name, worker"):
        queue.enqueue({"number": 9})
    where = table.c.customer > "a"
    for order in ("-name", table.c.customer.desc()):
        with backend.bare_queue(table, where=where, order_by=order, on_done="delete") as queue, queue.claim() as batch:
            assert [(job.nr, job["name"]) for job in batch.jobs] == [(2, "c"), (1, "b")]
            batch.release()
    per_key = PerKey("name", at_most=1)
    with backend.bare_queue(table, where=where, per_key=per_key, on_done="delete") as queue, queue.claim() as batch:
        assert {job.nr for job in batch.jobs} == {1, 2}


@pytest.mark.requires("partial indexes")
def test_a_key_that_a_partial_index_keeps_apart_is_no_key(backend: Backend) -> None:
    table = table_of(
        "parts", sa.Column("k", sa.Integer), sa.Column("live", sa.Boolean), sa.Column("owner_id", sa.Integer)
    )
    sa.Index("live_k", table.c.k, unique=True, postgresql_where=table.c.live)
    with pytest.raises(KeyUnfit):
        queue_of(backend, table, Columns(key="k", status=None)).claim()


@pytest.mark.requires("table collation")  # the families that have this type
def test_a_timestamp_of_another_time_zone_is_due_when_it_is(backend: Backend) -> None:
    """The user's sessions may have any; ours have UTC."""
    engine = backend.new_engine(connect_args={"init_command": "SET time_zone = '+02:00'"})
    backend.make()
    backend.run(
        "CREATE TABLE mails (id INT PRIMARY KEY, worker INT, send_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)"
    )
    columns = Columns(status=None, owner_id="worker", run_at="send_at")
    queue = backend.bare_queue("mails", bind=engine, columns=columns, on_done="delete")
    queue.enqueue({"id": 1})
    with queue.claim() as batch:
        assert len(batch) == 1


@pytest.mark.parametrize("columns", [None, Columns(key="id", run_at="run_at")])
def test_a_role_is_found_where_names_have_no_case(backend: Backend, columns: Columns | None) -> None:
    """Else what is dead, done or in the future would be claimed."""
    if backend.dialect.table_rules.names_have_case:
        pytest.skip(f"{backend.family} has two columns for Status and status")
    table = table_of(
        "Loads",
        sa.Column("Id", sa.Integer, primary_key=True),
        sa.Column("Status", sa.String(16), nullable=False),
        sa.Column("Run_At", sa.DateTime),
        sa.Column("Attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("OWNER_ID", sa.Integer),
    )
    queue = queue_of(backend, table, columns or Columns())
    future = datetime(2099, 1, 1)  # noqa: DTZ001 - as it is stored
    backend.insert(table, [{"Id": n, "Status": state} for n, state in enumerate(STATES, 1)])
    backend.insert(table, [{"Id": 9, "Status": UNCLAIMED, "Run_At": future}])
    with queue.claim() as batch:
        assert [(job.Id, job.Status) for job in batch.jobs] == [(1, "claimed")]
        batch.fail(batch[0], "again")
    assert [row["Attempts"] for row in backend.rows("Loads")] == [1, 0, 0, 0, 0]


def test_a_double_is_read_and_written_as_a_float(backend: Backend) -> None:
    """A Decimal with ten digits, as SQLAlchemy reads it from MySQL, is another number."""
    table = table_of("measures", sa.Column("id", sa.Integer, primary_key=True), sa.Column("x", sa.Double))
    table.append_column(sa.Column("owner_id", sa.Integer))
    numbers = [1e-15, 1.5e300, 0.1]
    queue = queue_of(backend, table, Columns(status=None))
    queue.enqueue([{"id": n, "x": x} for n, x in enumerate(numbers, 1)])
    with queue.claim() as batch:
        assert [job.x for job in batch.jobs] == numbers


def test_a_column_plays_one_role() -> None:
    """Claims would write their owner over the status."""
    with pytest.raises(ValueError, match="column 'phase' plays two roles: name another one, or None, for one of them"):
        Columns(status="phase", owner_id="phase")
