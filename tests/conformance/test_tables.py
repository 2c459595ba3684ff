"""Tables of the user's own: other keys, other names, other payloads."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from claimjobs import Queue, job_table, make, tables_for
from claimjobs.dialects.types import Instant, database_now
from claimjobs.errors import UnfitTable
from claimjobs.explain.adoption import additions
from claimjobs.table.create import alter
from claimjobs.table.ddl import ddl_statements, has_wake_trigger, make_statement
from tests.backends import Backend


def roundabout(queue: Queue, rows: list[dict[str, Any]]) -> None:
    """Every way a job can go, with every statement that names a key. The rows come in the order of their keys."""
    assert len(rows) == 6
    assert queue.enqueue(rows) == 6
    names = [column.name for column in queue.table.primary_key]
    keys = [tuple(row[name] for name in names) if len(names) > 1 else row[names[0]] for row in rows]
    with queue.claim(4) as batch:
        assert [job.key for job in batch.jobs] == keys[:4]
        done, released, retried, dead = batch.jobs
        batch.done(done)
        batch.release(released)
        batch.fail(retried, "again", retry_in=0)
        batch.fail(dead, "never", retry=False)
    assert batch.lost == ()
    with queue.claim() as batch:
        assert [job.key for job in batch.jobs] == [keys[1], keys[2], keys[4], keys[5]]
        assert [job.attempts for job in batch.jobs] == [0, 1, 0, 0]
        with queue.engine.begin() as connection:
            connection.execute(sa.delete(queue.table).where(queue.table.c.status == "claimed", _is(queue, keys[4])))
        batch.done()
    assert [job.key for job in batch.lost] == [keys[4]]
    assert (queue.stats().left, queue.stats().dead) == (0, 1)


def _is(queue: Queue, key: Any) -> sa.ColumnElement[bool]:
    parts = key if isinstance(key, tuple) else (key,)
    return sa.and_(*(column == part for column, part in zip(queue.table.primary_key, parts, strict=True)))


def test_a_big_integer(backend: Backend) -> None:
    table = job_table("big", sa.MetaData(), sa.Column("body", sa.Text))
    roundabout(backend.queue(table), [{"id": 2**62 + n, "body": "x"} for n in range(6)])


def test_a_key_of_several_integers(backend: Backend) -> None:
    table = job_table(
        "parts",
        sa.MetaData(),
        sa.Column("customer", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
    )
    roundabout(backend.queue(table), [{"customer": n // 2, "part": n % 2} for n in range(6)])


def test_a_key_of_several_types(backend: Backend) -> None:
    table = job_table(
        "mixed",
        sa.MetaData(),
        sa.Column("shop", sa.String(20), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    )
    roundabout(backend.queue(table), [{"shop": "a'b\"c\\d"[: n // 2 + 3], "number": n} for n in range(6)])


def test_a_text_key(backend: Backend) -> None:
    table = job_table("texts", sa.MetaData(), sa.Column("name", sa.String(40), primary_key=True))
    texts = ['a"quoted"', "b'quoted'", "c\\back", "d%s :name", "eé☃𝄞", "f, [x]"]
    roundabout(backend.queue(table), [{"name": text} for text in texts])


def test_a_uuid_key(backend: Backend) -> None:
    table = job_table("uuids", sa.MetaData(), sa.Column("id", sa.Uuid, primary_key=True))
    roundabout(backend.queue(table), [{"id": uuid.UUID(int=n << 96 | 0xABC)} for n in range(6)])


@pytest.mark.requires("native uuid")
def test_a_uuid_key_of_the_databases_own_type(backend: Backend) -> None:
    table = job_table("native", sa.MetaData(), sa.Column("id", sa.UUID, primary_key=True))
    roundabout(backend.queue(table), [{"id": uuid.UUID(int=n << 96 | 0xABC)} for n in range(6)])


def test_a_uuid_key_that_is_text_in_python(backend: Backend) -> None:
    table = job_table("uuids", sa.MetaData(), sa.Column("id", sa.Uuid(as_uuid=False), primary_key=True))
    roundabout(backend.queue(table), [{"id": str(uuid.UUID(int=n << 96 | 0xABC))} for n in range(6)])


def test_a_uuid_key_of_a_table_known_by_its_name(backend: Backend) -> None:
    table = job_table("uuids", sa.MetaData(), sa.Column("id", sa.Uuid, primary_key=True))
    backend.make(table)
    rows = [{"id": uuid.UUID(int=n << 96 | 0xABC)} for n in range(6)]
    reflected_as_text = backend.family != "postgres" and not backend.has("native uuid")
    roundabout(backend.bare_queue("uuids"), [{"id": row["id"].hex} for row in rows] if reflected_as_text else rows)


def test_a_key_of_bytes(backend: Backend) -> None:
    binary = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")
    table = job_table("bytes", sa.MetaData(), sa.Column("id", binary, primary_key=True))
    roundabout(backend.queue(table), [{"id": bytes([n, 0, 255, 128]) + b"\\'\"%s" + bytes(7)} for n in range(6)])


def test_a_key_of_a_date_and_a_decimal(backend: Backend) -> None:
    table = job_table(
        "dated",
        sa.MetaData(),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("amount", sa.Numeric(10, 2), primary_key=True),
    )
    rows = [{"day": date(2024, 1, 1 + n // 2), "amount": Decimal(n) / 4} for n in range(6)]
    roundabout(backend.queue(table), rows)


@pytest.mark.parametrize("collation", ["utf8mb4_bin", "utf8mb4_unicode_ci", "latin1_swedish_ci"])
@pytest.mark.requires("table collation")
def test_a_text_key_with_a_collation_of_its_own(backend: Backend, collation: str) -> None:
    table = job_table(
        "texts",
        sa.MetaData(),
        sa.Column("name", sa.String(40), primary_key=True),
        mysql_collate=collation,
        mariadb_collate=collation,
        mysql_charset=collation.partition("_")[0],
        mariadb_charset=collation.partition("_")[0],
    )
    rows = [{"name": text} for text in "abcdef"]
    roundabout(backend.queue(table), rows)
    backend.run("DELETE FROM texts")
    roundabout(backend.queue("texts"), rows)


def test_names_that_must_be_quoted(backend: Backend) -> None:
    table = job_table("Order", sa.MetaData(), sa.Column("key", sa.Integer, primary_key=True), sa.Column("a b", sa.Text))
    roundabout(backend.queue(table), [{"key": n, "a b": "x"} for n in range(1, 7)])


def test_names_that_must_be_quoted_given_as_text(backend: Backend) -> None:
    table = job_table("Order", sa.MetaData(), sa.Column("key", sa.Integer, primary_key=True), sa.Column("a b", sa.Text))
    backend.make(table)
    roundabout(backend.bare_queue("Order"), [{"key": n, "a b": "x"} for n in range(1, 7)])


def test_a_table_known_by_its_name_alone(backend: Backend) -> None:
    """Its columns are read from the database, with instants that come back aware."""
    table = job_table("emails", sa.MetaData(), sa.Column("address", sa.String(100)))
    backend.make(table)
    queue = backend.bare_queue("emails")
    roundabout(queue, [{"id": n, "address": "a@b"} for n in range(1, 7)])
    queue.enqueue({"address": "c@d"})
    with queue.claim() as batch:
        assert batch[0].run_at.tzinfo


def test_a_mapped_class(backend: Backend) -> None:
    class Base(DeclarativeBase):
        pass

    class Email(Base):
        __table__ = job_table("emails", Base.metadata, sa.Column("address", sa.String(100)))

    roundabout(backend.queue(Email), [{"id": n, "address": "a@b"} for n in range(1, 7)])
    queue = backend.queue(Email, where=Email.__table__.c.address == "x@y")
    queue.enqueue([{"address": "x@y"}, {"address": "y@z"}])
    with queue.claim() as batch:
        assert [job.address for job in batch.jobs] == ["x@y"]


def test_a_declared_class_with_the_columns_written_out(backend: Backend) -> None:
    class Base(DeclarativeBase):
        pass

    class Task(Base):
        __tablename__ = "tasks"
        __table_args__ = {"mysql_engine": "InnoDB"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[str] = mapped_column(sa.String(16), server_default="unclaimed")
        owner_id: Mapped[int | None]
        attempts: Mapped[int] = mapped_column(server_default="0")
        run_at: Mapped[Any] = mapped_column(sa.DateTime(timezone=True), server_default=sa.func.now())
        title: Mapped[str] = mapped_column(sa.String(20))

    queue = backend.queue(Task, where=Task.title != "b")
    queue.enqueue([{"title": title} for title in "abc"])
    with queue.claim() as batch:
        assert [job.title for job in batch] == ["a", "c"]
    assert (queue.stats().left, queue.stats().not_in_queue) == (0, 1)


def test_a_payload_of_any_type(backend: Backend) -> None:
    table = job_table(
        "payloads",
        sa.MetaData(),
        sa.Column("document", sa.JSON),
        sa.Column("body", sa.Text),
        sa.Column("image", sa.LargeBinary),
        sa.Column("price", sa.Numeric(10, 2)),
        sa.Column("paid", sa.Boolean),
    )
    queue = backend.queue(table)
    document = {"a": [1, None, {"é": "☃"}], "b": "'\"\\"}
    queue.enqueue({"document": document, "body": "x" * 20_000, "image": bytes(range(256)), "price": 12, "paid": True})
    with queue.claim() as batch:
        [job] = batch
        assert job.document == document
        assert (job.body, job.image) == ("x" * 20_000, bytes(range(256)))
        assert (str(job.price), job.paid) == ("12.00", True)


ODD = sa.Table(
    "odd",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("big", sa.BigInteger),
    sa.Column("status", sa.String(16), nullable=False, server_default="unclaimed"),
    sa.Column("owner_id", sa.Integer),
    sa.Column("owner_date", sa.DateTime(timezone=True)),
    sa.Column("small", sa.SmallInteger, nullable=False, server_default="-3"),
    sa.Column("note", sa.String(64)),
    sa.Column("day", sa.DateTime),
    sa.Column("moment", sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")),
    sa.Column("run_at", Instant, nullable=False, server_default=database_now()),
    sa.Column("suspect", sa.Integer),
    mysql_engine="InnoDB",
)
"""Columns that a driver may be spared: in any order, with NULLs among them."""
at = datetime.fromisoformat
ODDITIES: list[dict[str, Any]] = [
    {"id": 1, "big": -(2**62), "small": -32_768, "note": "a,b", "day": at("1999-12-31 23:59:58")},
    {"id": 2, "big": None, "small": 0, "note": "", "moment": at("2024-02-29 01:02:03.000040")},
    {"id": 3, "big": 0, "small": 7, "note": None, "suspect": 0, "moment": at("2024-02-29")},
    {"id": 4, "small": 1, "note": ",", "run_at": at("2001-01-01 01:01:01.0001+00:00")},
]
STATE = ("status", "owner_id", "owner_date")


@pytest.mark.parametrize("known", ["as described", "by its name"])
@pytest.mark.parametrize("hold", ["lease", "transaction"])
def test_every_column_holds_what_a_select_finds(backend: Backend, hold: Any, known: str) -> None:
    """In a claim by itself, and in one along with a settle."""
    backend.make(ODD)
    queue = backend.bare_queue(ODD if known == "as described" else "odd", hold=hold)
    for row in ODDITIES:
        queue.enqueue(row)
    with backend.engine.connect() as connection:
        found = {row["id"]: without_state(row) for row in connection.execute(sa.select(queue.table)).mappings()}
    claimed = {}
    for batch in queue.batches(2, drain=True):
        with batch:
            claimed.update({job.key: without_state(job) for job in batch})
    assert claimed == found
    assert len(found) == len(ODDITIES)


def test_instants_are_read_in_whatever_zone_a_session_is(backend: Backend) -> None:
    zone = {"options": "-c timezone=Asia/Kathmandu"}
    if backend.family != "postgres":
        zone = {"init_command": "SET time_zone = '+05:45'"}
    engine = backend.new_engine(connect_args=zone)
    queue = backend.queue(bind=engine)
    queue.enqueue({"d": "", "e": ""})
    with queue.claim() as batch, backend.engine.connect() as elsewhere:
        assert [job.run_at for job in batch.jobs] == elsewhere.scalars(sa.select(queue.table.c.run_at)).all()


def without_state(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in STATE}


def test_a_job_is_the_row_as_it_is_now_that_it_is_claimed(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue({"d": "", "e": ""})
    with queue.claim() as batch:
        [job] = batch.jobs
        assert (job.status, job.owner_id) == ("claimed", queue.owner_id)


def test_the_least_a_table_needs(backend: Backend) -> None:
    """A key, a status and an owner."""
    least = sa.Table(
        "least",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("status", sa.String(16), nullable=False, server_default="unclaimed"),
        sa.Column("owner_id", sa.Integer),
        mysql_engine="InnoDB",
    )
    backend.make(least)
    queue = backend.bare_queue("least")
    queue.enqueue([{"id": n} for n in range(1, 5)])
    with queue.claim(3) as batch:
        batch.done(batch[0])
        assert queue.stats().claimed == 3
        assert queue.stats().oldest is None
    assert [row["id"] for row in backend.rows(least)] == [2, 3, 4]


@pytest.mark.parametrize("given", ["table", "name"])
def test_a_table_in_another_schema(backend: Backend, given: str) -> None:
    schema = "public" if backend.family == "postgres" else sa.make_url(backend.url).database
    if backend.family == "postgres":
        schema = "elsewhere"
        backend.run("CREATE SCHEMA elsewhere")
    table = job_table("jobs", sa.MetaData(schema=schema), sa.Column("body", sa.Text))
    backend.make(table)
    queue = backend.bare_queue(table if given == "table" else f"{schema}.jobs")
    roundabout(queue, [{"id": n, "body": "x"} for n in range(1, 7)])
    assert queue.stats().owners[0].id == queue.owner_id


def test_a_table_in_a_schema_that_is_missing_is_not_made(anywhere: Backend) -> None:
    jobs = job_table("jobs", sa.MetaData(schema="nowhere"), sa.Column("d", sa.String(9)))
    with pytest.raises(UnfitTable, match=r"'nowhere.jobs' cannot be made .*: choose another name"):
        make(anywhere.engine, tables_for(jobs))


PERCENT = job_table(
    "top 10%",
    sa.MetaData(),
    sa.Column("rate %", sa.String(10), nullable=False, server_default="5%", comment="50% or %s"),
)


def described(backend: Backend) -> list[Any]:
    with backend.engine.connect() as connection:
        found = sa.inspect(connection).get_columns(PERCENT.name)
    return [(column["name"], column["default"], column["comment"]) for column in found]


def test_the_text_of_ddl_makes_what_make_makes(backend: Backend) -> None:
    """Also with percent signs, which SQLAlchemy doubles for drivers that replace parameters."""
    make(backend.engine, tables_for(PERCENT))
    made = described(backend)
    PERCENT.metadata.drop_all(backend.engine)
    alter(backend.engine, PERCENT, ddl_statements(backend.engine, [PERCENT]))
    assert described(backend) == made
    assert [column for column in made if column[0] == "rate %" and "5%" in column[1] and column[2] == "50% or %s"]


def test_what_is_missing_is_added_to_a_table_with_a_percent_sign(backend: Backend) -> None:
    bare = sa.Table(PERCENT.name, sa.MetaData(), sa.Column("id %", sa.Integer, primary_key=True))
    bare.append_column(sa.Column("status", sa.String(16), nullable=False))
    bare.append_column(sa.Column("owner_id", sa.Integer))
    bare.create(backend.engine)
    settings = Queue(backend.engine, PERCENT.name, on_done="delete").settings
    alter(backend.engine, bare, additions(backend.engine, settings, ["attempts", "claim-index"]))
    assert additions(backend.engine, settings, ["attempts", "claim-index"]) == []
    if backend.dialect.no_wake_trigger is None:
        alter(backend.engine, bare, [make_statement(backend.engine, bare, bare)])
        with backend.engine.connect() as connection:
            assert has_wake_trigger(connection, bare)


def test_a_table_that_cannot_be_made_anew_is_not_dropped(backend: Backend) -> None:
    """On MySQL no DDL is undone: a name is refused before the first statement."""
    make(backend.engine, tables_for(job_table("kept", sa.MetaData(), sa.Column("d", sa.String(9)))))
    backend.run("INSERT INTO kept (d) VALUES ('here')")
    unfit = job_table("kept", sa.MetaData(), sa.Column("d", sa.String(9)), sa.Index("x" * 70, "d"))
    with pytest.raises(UnfitTable, match="table 'kept' cannot be made"):
        make(backend.engine, tables_for(unfit), recreate=True)
    with backend.engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT d FROM kept")) == "here"
