"""Types of keys around those of the database: what a type of the user's may do, and what it may not."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch, job_table, make, tables_for
from claimjobs.errors import KeyUnfit
from tests.backends import Backend
from tests.conformance.jobs import jobs


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
