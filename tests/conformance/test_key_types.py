"""Types of keys around those of the database: what a type of the user's may do, and what it may not."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable
from contextlib import nullcontext
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from claimjobs import Batch, Job, PerKey, job_table, key_tables, make, side_car_tables, tables_for
from claimjobs.errors import KeyUnfit
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.test_per_key import KINDS, mails_with


class Size(enum.Enum):
    """Its names are stored."""

    SMALL = "up to 2 kg"
    LARGE = "up to 20 kg"
    BULKY = "by lorry"


class Lower(sa.TypeDecorator[str]):
    """The database converts its values."""

    impl = sa.String(20)
    cache_ok = True

    def bind_expression(self, bindparam: Any) -> Any:
        return sa.func.lower(bindparam, type_=self)


def test_a_key_whose_type_converts_by_sql_is_refused(backend: Backend) -> None:
    queue = backend.queue(job_table("jobs", sa.MetaData(), sa.Column("code", Lower, primary_key=True)))
    with pytest.raises(KeyUnfit, match=r"column 'code' of table 'jobs'.*Lower.*, whose values are changed by SQL"):
        queue.claim()


KEYS: dict[str, tuple[sa.types.TypeEngine[Any], list[Any]]] = {
    "an enum": (sa.Enum(Size, native_enum=False), list(Size)),
    "a uuid as text": (sa.Uuid(as_uuid=False), [str(uuid.UUID(int=n)) for n in range(3)]),
    "a uuid as characters": (sa.Uuid(native_uuid=False), [uuid.UUID(int=n) for n in range(3)]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_of_a_batch_only_the_job_that_another_one_has_is_lost(backend: Backend, kind: str) -> None:
    """Also where a settle is one statement with the next claim, which returns keys as the driver reads them."""
    type_, values = KEYS[kind]
    queue = backend.queue(
        job_table("jobs", sa.MetaData(), sa.Column("code", type_, primary_key=True)), claims="rows", on_done="delete"
    )
    queue.enqueue([{"code": value} for value in values])
    for batch in queue.batches(3, drain=True):
        with batch:
            batch.done()
            with backend.engine.begin() as connection:
                connection.execute(sa.update(queue.table).values(owner_id=7).where(queue.table.c.code == values[0]))
        assert (len(batch), len(batch.lost)) == (3, 1)
    assert queue.report.done == 2
    assert len(backend.rows()) == 1


def latin(*, primary_key: bool) -> list[sa.Column[Any]]:
    """A text whose character set has one byte for each character, where the database has such, and a number."""
    city = sa.String(40).with_variant(sa.String(40, collation="latin1_german2_ci"), "mysql", "mariadb")
    return [
        sa.Column("city", city, primary_key=primary_key, nullable=False),
        sa.Column("shop", sa.Integer, primary_key=primary_key, nullable=False, autoincrement=False),
    ]


CITIES = ("Bonn", "Köln", "Würzburg", "it's 5 \\% of\n")


SHOPS = job_table("shops", sa.MetaData(), *latin(primary_key=True))
NOT_CONVERTED = pytest.mark.mariadb("it does not convert the texts in a list of rows")


@KINDS
@NOT_CONVERTED
def test_jobs_are_found_by_a_key_of_several_columns_with_a_text_that_is_not_utf8(
    backend: Backend, kind: dict[str, Any]
) -> None:
    backend.make(SHOPS)
    if "side_car" in kind:
        make(backend.engine, side_car_tables(backend.engine, SHOPS))
    queue = backend.bare_queue(SHOPS, **kind)
    keys = sorted((city, shop) for city in CITIES for shop in (1, 2))
    queue.enqueue({"city": city, "shop": shop} for city, shop in keys)
    first = queue.claim(3)
    with queue.claim(9) as batch:
        assert sorted(job.key for job in (*first.jobs, *batch.jobs)) == keys
        batch.done()
    with first:
        first.done()
    assert not queue.claim(9)
    assert queue.report.done == len(keys)


@NOT_CONVERTED
def test_such_rows_are_not_claimed_again_by_a_consumer_that_leaves_them(backend: Backend) -> None:
    queue = backend.queue(SHOPS, on_done="leave", where="shop < 9")
    queue.enqueue({"city": city, "shop": 1} for city in CITIES)
    with queue.claim(9) as batch:
        batch.done()
    assert queue.report.still_due == len(CITIES)
    assert not queue.claim(9)


@NOT_CONVERTED
@pytest.mark.requires("locks what it reads")
def test_such_rows_are_found_through_the_primary_key(backend: Backend) -> None:
    queue = backend.queue(SHOPS)
    queue.enqueue({"city": f"{city} {n}", "shop": n} for city in CITIES for n in range(500))
    key = queue.roles.key
    update = backend.dialect.restrict_to_keys(sa.update(queue.roles.table).values(attempts=1), key, None)
    keys = {"claimjobs_keys": [(f"{city} {n}", n) for city in CITIES for n in (7, 9)]}
    with backend.engine.begin() as connection:
        plan = backend.plan(connection, update, keys)
        assert connection.execute(update, keys).rowcount == 2 * len(CITIES)
    assert plan.indexes == (backend.primary_key_of("shops"),), plan.text
    assert not plan.scans, plan.text


@KINDS
@NOT_CONVERTED
def test_a_limit_counts_the_jobs_of_keys_with_a_text_that_is_not_utf8(backend: Backend, kind: dict[str, Any]) -> None:
    one, cities = PerKey(("city", "shop"), at_most=1), ("Bonn", "Köln", "Würzburg")
    backend.make(table := mails_with(*latin(primary_key=False)))
    made = key_tables(backend.engine, table, one.names, side_car="side_car" in kind)
    make(backend.engine, [*made, *(side_car_tables(backend.engine, table) if "side_car" in kind else ())])
    queue, other = (backend.bare_queue(table, per_key=one, **kind) for _ in range(2))
    queue.enqueue({"city": city, "shop": 1} for city in cities for _ in range(3))
    for claims, left in ((queue, other), (other, queue), (queue, other)):
        with claims.claim(9) as batch:
            assert sorted(job.city for job in batch.jobs) == [*cities]
            assert not left.claim(9)
            batch.done()
    assert not queue.claim(9)
    assert not backend.rows("mails_keys")


class Doubled(sa.TypeDecorator[int]):
    """Its values in Python are twice those of the database."""

    impl = sa.Integer
    cache_ok = True

    def process_bind_param(self, value: int | None, _dialect: sa.Dialect) -> int | None:
        return None if value is None else value // 2

    def process_result_value(self, value: int | None, _dialect: sa.Dialect) -> int | None:
        return None if value is None else value * 2


BIG_UNSIGNED = sa.Numeric(20, 0).with_variant(mysql.BIGINT(unsigned=True), "mysql", "mariadb")
INSTANT = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
DESCRIBED: dict[str, tuple[sa.types.TypeEngine[Any], sa.types.TypeEngine[Any], list[Any]]] = {
    "whole numbers": (sa.Integer(), sa.BigInteger(), [2**31 + n for n in range(4)]),
    "numbers of a decorator": (Doubled(), sa.BigInteger(), [2**33 + 2 * n for n in range(4)]),
    "numbers without a sign": (
        sa.Numeric(20, 0).with_variant(sa.BigInteger(), "mysql", "mariadb"),
        BIG_UNSIGNED,
        [2**63 + n for n in range(4)],
    ),
    "digits": (sa.Numeric(20, 2), sa.Numeric(20, 5), [Decimal(f"0.1000{n}") for n in range(4)]),
    "texts": (sa.String(3), sa.String(40), [f"abcdef{n}" for n in range(4)]),
    "texts without a length": (sa.String(), sa.String(40), [f"abcdef{n}" for n in range(4)]),
    "instants": (sa.DateTime(), INSTANT, [datetime.fromisoformat(f"2026-01-01 00:00:00.00000{n}") for n in range(4)]),
}


@KINDS
@pytest.mark.parametrize("case", DESCRIBED)
def test_a_key_that_is_described_by_a_narrower_type_is_compared_as_it_is_stored(
    backend: Backend, kind: dict[str, Any], case: str
) -> None:
    narrow, wide, keys = DESCRIBED[case]
    stored, described = (
        job_table("jobs", sa.MetaData(), sa.Column("code", type_, primary_key=True, autoincrement=False))
        for type_ in (wide, narrow)
    )
    backend.make(stored)
    with backend.engine.begin() as connection:
        numbers = [key // 2 for key in keys] if isinstance(narrow, Doubled) else keys
        connection.execute(sa.insert(stored), [{"code": key} for key in numbers])
    if "side_car" in kind:
        make(backend.engine, side_car_tables(backend.engine, described))
    queue = backend.bare_queue(described, **{"on_done": "delete", **kind})
    first, second = queue.claim(2), queue.claim(9)
    assert sorted(job.key for job in (*first.jobs, *second.jobs)) == keys
    for batch in (first, second):
        with batch:
            batch.done()
    assert not queue.claim(9)
    assert (queue.report.done, backend.rows()) == (4, [])


DOMAINS = {
    "CHAR(9)": [f"'abcdefgh{n}'" for n in range(4)],
    "VARCHAR(9)": [f"'abcdefgh{n}'" for n in range(4)],
    "BIT(8)": [f"B'110101{n:02b}'" for n in range(4)],
    "NUMERIC(20, 2)": ["1.25", "2.5", "3", "4"],
    "BIGINT": ["1", "2", "3", "4"],
}


@KINDS
@pytest.mark.parametrize("over", DOMAINS)
@pytest.mark.requires("schemas")
def test_a_key_of_a_domain_is_a_key_of_its_type(backend: Backend, kind: dict[str, Any], over: str) -> None:
    """Also where a settle returns the keys that it found."""
    backend.make(
        job_table("jobs", sa.MetaData(), sa.Column("code", sa.Text, primary_key=True), sa.Column("n", sa.Text))
    )
    backend.run(f"CREATE DOMAIN code AS {over}")
    backend.run("ALTER TABLE jobs ALTER COLUMN code TYPE code USING NULL")
    for n, value in enumerate(DOMAINS[over]):
        backend.run(f"INSERT INTO jobs (code, n) VALUES ({value}, '{n}')".replace(":", "\\:"))
    if "side_car" in kind:
        make(backend.engine, side_car_tables(backend.engine, "jobs"))
    queue = backend.bare_queue("jobs", **{"on_done": "delete", **kind})
    lost: list[Job] = []
    for batch in queue.batches(2, drain=True):
        with batch:
            if not kind and not lost:
                backend.run("UPDATE jobs SET owner_id = 7 WHERE n = '0'")
            batch.done()
        lost += batch.lost
    assert len(lost) == (0 if kind else 1)
    assert (queue.report.done, len(backend.rows())) == (4 - len(lost), len(lost))


@pytest.mark.parametrize("claims", ["rows", "batches"])
@pytest.mark.requires("table collation")
def test_a_job_with_a_key_of_a_blob_is_held_once(backend: Backend, claims: str) -> None:
    backend.run(
        "CREATE TABLE jobs (code TINYBLOB NOT NULL, status VARCHAR(16) NOT NULL DEFAULT 'unclaimed', "
        "owner_id INTEGER, PRIMARY KEY (code(20)))"
    )
    make(backend.engine, [table for table in tables_for("jobs") if table.name != "jobs"])
    backend.run("INSERT INTO jobs (code) VALUES (x'00'), (x'ff'), (x'616263')")
    queue = backend.bare_queue("jobs", claims=claims, on_done="delete")
    first, second = queue.claim(2), queue.claim(9)
    assert {job.key for job in (*first.jobs, *second.jobs)} == {b"\0", b"\xff", b"abc"}
    for batch in (first, second):
        with batch:
            batch.done()
    assert (queue.report.done, backend.rows()) == (3, [])


@pytest.mark.requires("schemas")
def test_a_key_of_several_ranges_is_refused(backend: Backend) -> None:
    """Before version 14 the server has no such type."""
    assert not backend.dialect.table_rules.finds_again(postgresql.INT4MULTIRANGE())
    assert backend.dialect.table_rules.finds_again(postgresql.INT4RANGE())


# --- a key that each UPDATE changes ----------------------------------------------------------------------------


def change_keys(backend: Backend) -> None:
    if backend.has("schemas"):
        backend.run(
            "CREATE FUNCTION anew() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.id = NEW.id + 1000; RETURN NEW; END'"
        )
        how = "EXECUTE FUNCTION anew()"
    else:
        how = "SET NEW.id = NEW.id + 1000"
    backend.run(f"CREATE TRIGGER anew BEFORE UPDATE ON jobs FOR EACH ROW {how}")


@pytest.mark.parametrize("loop", [True, False])
def test_a_key_that_each_update_changes_ends_the_queue_or_its_jobs_are_done_once(backend: Backend, loop: bool) -> None:
    """The job is not executed again and again. Where a claim returns what it writes, it has the new key."""
    queue = backend.queue(claims="rows", on_done="keep")
    queue.enqueue(jobs(4))
    change_keys(backend)
    batches = queue.batches(2, drain=True) if loop else iter(partial(queue.claim, 2), None)
    with nullcontext() if backend.has("one statement") else pytest.raises(KeyUnfit, match="each UPDATE changes it"):
        finish(batches)
    if backend.has("one statement"):
        assert (queue.report.done, queue.report.lost) == (4, 0)
    else:
        assert queue.report.lost == 2


def finish(batches: Iterable[Batch]) -> None:
    for batch in batches:
        with batch:
            batch.done()
        if not batch:
            return


def test_a_key_that_the_server_writes_at_each_update_is_refused(backend: Backend) -> None:
    backend.requires("table collation")
    backend.run(
        "CREATE TABLE jobs (at TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6) PRIMARY KEY, "
        "status VARCHAR(16) NOT NULL DEFAULT 'unclaimed', owner_id INTEGER)"
    )
    make(backend.engine, [table for table in tables_for("jobs") if table.name != "jobs"])
    with pytest.raises(KeyUnfit, match=r"column 'at' of table 'jobs'.*written anew by each UPDATE"):
        backend.bare_queue().claim()
