"""Dead jobs are looked at, run again and dropped, in chunks, and nothing else is touched."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Columns, Queue, job_table
from claimjobs.admin import stored_jobs
from claimjobs.dialects.types import Instant
from claimjobs.errors import BadArgument, BadPredicate, RowsRefused
from claimjobs.options import Liveness
from claimjobs.table.definitions import article_table
from tests.backends import Backend, Clock
from tests.conformance.jobs import counted, dead_jobs, jobs, names
from tests.conformance.owners import still

JOBS = article_table()

PAIRS = job_table(
    "pairs",
    sa.MetaData(),
    sa.Column("region", sa.String(8), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
)

LEVELS = job_table(
    "levels",
    sa.MetaData(),
    sa.Column("level", sa.Enum("low", "high", name="level"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
)

UUIDS = job_table("uuids", sa.MetaData(), sa.Column("id", sa.Uuid, primary_key=True))


def bury(queue: Queue, count: int, error: str = "no such street") -> None:
    """Let the next `count` jobs die."""
    with queue.claim(count) as batch:
        assert len(batch) == count
        for job in batch.jobs:
            batch.fail(job, error, retry=False)


def states(backend: Backend) -> dict[str, str]:
    return {row["d"]: row["status"] for row in backend.rows()}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(stored_jobs, "JOBS_PER_TRANSACTION", 3)
    return 3


# --- looking -----------------------------------------------------------------------------------------------


def test_only_the_dead_are_listed_by_their_keys(backend: Backend) -> None:
    queue = backend.queue(order_by=JOBS.c.d.desc())
    queue.enqueue(jobs(6))
    bury(queue, 3)
    held = queue.claim(1)
    found = list(dead_jobs(queue))
    assert names(found) == ["0003", "0004", "0005"]
    assert [(job.status, job.owner_id, job.attempts) for job in found] == [("dead", None, 1)] * 3
    assert {job.last_error for job in found} == {"no such street"}
    held.settle()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 7])
def test_a_list_of_any_length_is_read_in_pages(backend: Backend, small_chunks: int, count: int) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(8))
    if count:
        bury(queue, count)
    with counted(backend.engine) as sent:
        assert names(dead_jobs(queue)) == [f"{n:04}" for n in range(count)]
    assert sum("last_error" in sql for sql in sent) == count // small_chunks + 1


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 100])
def test_a_list_ends_at_its_limit(backend: Backend, small_chunks: int, limit: int) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(7))
    bury(queue, 7)
    assert names(dead_jobs(queue, limit=limit)) == [f"{n:04}" for n in range(min(limit, 7))]


def test_a_list_that_is_left_early_leaves_no_connection(backend: Backend, small_chunks: int) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(7))
    bury(queue, 7)
    found = queue.jobs.list(state="dead")
    assert next(found).job.d == "0000"
    del found


def test_a_list_can_be_narrowed(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(6))
    bury(queue, 6)
    assert names(dead_jobs(queue, JOBS.c.d > "0003")) == ["0004", "0005"]
    assert names(dead_jobs(queue, sa.text("d = '0000' OR d = '0002'"))) == ["0000", "0002"]
    assert names(dead_jobs(queue, lambda: JOBS.c.d == "0001")) == ["0001"]
    assert queue.jobs.count(state="dead") == 6
    assert queue.jobs.count(JOBS.c.d > "0003", state="dead") == 2


def test_the_queues_own_predicate_hides_no_dead_job(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(2))
    bury(queue, 2)
    narrow = backend.queue(where=JOBS.c.d == "none")
    assert narrow.jobs.count(state="dead") == 2


def test_chosen_ones_are_shown_in_any_state(backend: Backend) -> None:
    queue = backend.queue(JOBS)
    queue.enqueue(jobs(4))
    bury(queue, 3)
    keys = [row["id"] for row in backend.rows()]
    shown = queue.jobs.show([keys[2], keys[0], keys[3], 999_999, keys[0]])
    assert [(stored.job.d, stored.state) for stored in shown] == [
        ("0000", "dead"),
        ("0002", "dead"),
        ("0003", "unclaimed"),
    ]
    assert queue.jobs.show([]) == ()
    assert dict(shown[0].job) == dict(backend.rows(JOBS)[0])


def test_a_predicate_that_cannot_be_read_is_told_as_such(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(1))
    bury(queue, 1)
    nonsense = sa.text("colour = 'red'")
    for use in (queue.jobs.count, lambda where: list(dead_jobs(queue, where))):
        with pytest.raises(BadPredicate, match="colour"):
            use(nonsense)
    for write in (queue.jobs.retry, queue.jobs.drop):
        with pytest.raises(BadPredicate, match="colour"):
            write(where=nonsense)
        with pytest.raises(BadPredicate, match="colour"):
            write([1], where=nonsense)
    assert states(backend) == {"0000": "dead"}


# --- retry -------------------------------------------------------------------------------------------------


def test_a_retried_job_has_all_its_attempts_again_from_now_on(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(JOBS, now=clock.sql)
    queue.enqueue(jobs(1, run_at=clock.now))
    bury(queue, 1, "no such street")
    backend.run("UPDATE jobs SET suspect = 1, attempts = 5")
    clock.now += timedelta(hours=1)
    [key] = [row["id"] for row in backend.rows()]
    assert queue.jobs.retry([key]) == 1
    [row] = backend.rows(JOBS)
    assert (row["status"], row["owner_id"], row["owner_date"]) == ("unclaimed", None, None)
    assert (row["attempts"], row["suspect"], row["run_at"]) == (0, 0, clock.now)
    assert row["last_error"] == "no such street"
    assert queue.stats().oldest == 0
    with queue.claim() as batch:
        batch.done()
    assert backend.rows() == []


def test_only_what_is_dead_is_touched(backend: Backend) -> None:
    queue = backend.queue(on_done="keep")
    queue.enqueue(jobs(5))
    with queue.claim(1) as batch:
        batch.done()
    bury(queue, 2)
    held = queue.claim(1)
    before = [row for row in backend.rows() if row["d"] not in ("0001", "0002")]
    keys = [row["id"] for row in backend.rows()]
    assert queue.jobs.retry(keys[:2]) == 1
    assert queue.jobs.drop(keys) == 1
    assert queue.jobs.drop(keys) == queue.jobs.retry(keys) == queue.jobs.drop() == queue.jobs.retry() == 0
    assert [row for row in backend.rows() if row["d"] != "0001"] == before
    held.done()
    held.settle()
    assert held.lost == ()


@pytest.mark.parametrize("way", ["retry", "drop"])
def test_all_or_those_of_a_predicate(backend: Backend, small_chunks: int, way: str) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(12))
    bury(queue, 11)
    write = getattr(queue.jobs, way)
    assert write(where=sa.text("d = '0001' OR d = '0003'")) == 2
    assert write(where=JOBS.c.d > "0006") == 4
    assert names(dead_jobs(queue)) == ["0000", "0002", "0004", "0005", "0006"]
    assert write([]) == 0
    assert write() == 5
    gone = [d for d, status in states(backend).items() if status == "unclaimed"]
    assert gone == ([f"{n:04}" for n in range(12)] if way == "retry" else ["0011"])


@pytest.mark.parametrize("way", ["retry", "drop"])
def test_a_chunk_is_one_statement_and_one_commit(backend: Backend, small_chunks: int, way: str) -> None:
    queue = still(backend.queue(JOBS))  # its heart would look around meanwhile
    queue.enqueue(jobs(7))
    bury(queue, 7)
    keys = [row["id"] for row in backend.rows()]
    write = getattr(queue.jobs, way)
    with counted(backend.engine) as sent:
        assert write(keys) == 7
    verb = "UPDATE" if way == "retry" else "DELETE"
    assert [sql.split()[0] for sql in sent if sql.startswith(verb)] == [verb] * 3
    first = next(place for place, sql in enumerate(sent) if sql.startswith(verb))
    assert [sql.split()[0] for sql in sent[first:]] == [verb, "COMMIT"] * 3


def test_a_thousand_and_one_are_two_chunks(backend: Backend) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(1_001))
    bury(queue, 1_001)
    assert sum(1 for _ in dead_jobs(queue)) == 1_001
    with counted(backend.engine) as sent:
        assert queue.jobs.retry() == 1_001
    assert sum(sql.startswith("UPDATE") for sql in sent) == 2


def test_what_was_done_before_an_interruption_stands(backend: Backend, small_chunks: int) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(7))
    bury(queue, 7)
    updates: list[str] = []

    def interrupt(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE"):
            updates.append(statement)
            if len(updates) == 2:
                raise KeyboardInterrupt

    sa.event.listen(backend.engine, "before_cursor_execute", interrupt)
    with pytest.raises(KeyboardInterrupt):
        queue.jobs.retry()
    sa.event.remove(backend.engine, "before_cursor_execute", interrupt)
    assert list(states(backend).values()) == ["unclaimed"] * 3 + ["dead"] * 4
    assert queue.jobs.retry() == 4


def test_each_is_brought_back_once_even_if_it_dies_again_at_once(backend: Backend, small_chunks: int) -> None:
    """A consumer beside it fails whatever comes back: to retry all comes to an end all the same."""
    queue = still(backend.queue())
    queue.enqueue(jobs(9))
    bury(queue, 9)
    died: list[str] = []

    def kill(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE"):
            with other.claim(100) as batch:
                for job in batch.jobs:
                    died.append(job.d)
                    batch.fail(job, "still no such street", retry=False)

    other = backend.queue(bind=backend.new_engine())
    sa.event.listen(backend.engine, "before_cursor_execute", kill)
    assert queue.jobs.retry() == 9
    sa.event.remove(backend.engine, "before_cursor_execute", kill)
    assert died == [f"{n:04}" for n in range(6)]  # the last chunk is not followed by another one
    assert list(states(backend).values()) == ["dead"] * 6 + ["unclaimed"] * 3


# --- any key -----------------------------------------------------------------------------------------------


def test_keys_of_several_columns(backend: Backend, small_chunks: int) -> None:
    queue = backend.queue(PAIRS)
    keys = [(region, number) for region in ("eu", "us") for number in range(5)]
    queue.enqueue([{"region": region, "number": number} for region, number in keys])
    bury(queue, 10)
    assert [job.key for job in dead_jobs(queue)] == keys
    assert [job.key for job in dead_jobs(queue, limit=7)] == keys[:7]
    assert [job.key for job in queue.jobs.show([("us", 1), ("eu", 4), ("us", 9)])] == [("eu", 4), ("us", 1)]
    assert queue.jobs.drop([("us", 1), ("eu", 4), ("us", 9)]) == 2
    assert queue.jobs.retry([("us", 0)]) == 1
    assert queue.jobs.retry(where=PAIRS.c.region == "eu") == 4
    assert queue.jobs.drop() == 3
    left = {(row["region"], row["number"]): row["status"] for row in backend.rows(PAIRS)}
    assert left == dict.fromkeys([*keys[:4], ("us", 0)], "unclaimed")


@pytest.mark.requires("enum keys")
def test_a_key_that_begins_with_an_enum_is_read_in_pages(backend: Backend, small_chunks: int) -> None:
    """MySQL sorts one by the number of its value, and compares it as a text."""
    queue = backend.queue(LEVELS)
    keys = [{"level": level, "number": number} for level in ("low", "high") for number in range(small_chunks + 1)]
    backend.insert(LEVELS, [{**key, "status": "dead"} for key in keys])
    assert len(list(dead_jobs(queue))) == queue.jobs.count(state="dead") == len(keys)
    assert queue.jobs.retry() == len(keys)


def test_rows_without_a_key_are_no_jobs_of_a_list(backend: Backend, small_chunks: int) -> None:
    backend.make()
    backend.run("CREATE TABLE coupons (code VARCHAR(20) UNIQUE, status VARCHAR(16), owner_id INT)")
    rows = ", ".join(f"({code}, 'dead', NULL)" for code in (*["NULL"] * (small_chunks + 1), "'a'", "'b'"))
    backend.run(f"INSERT INTO coupons VALUES {rows}")
    queue = backend.bare_queue("coupons", columns=Columns(key="code"))
    assert [stored.key for stored in queue.jobs.list()] == ["a", "b"]
    assert queue.jobs.count() == queue.jobs.retry() == 2


def test_keys_that_are_uuids(backend: Backend, small_chunks: int) -> None:
    queue = backend.queue(UUIDS)
    keys = [uuid.UUID(int=n << 64 | n) for n in range(7)]
    queue.enqueue([{"id": key} for key in keys])
    bury(queue, 7)
    assert [job.key for job in dead_jobs(queue)] == keys
    assert queue.jobs.retry(keys[:2]) == 2
    assert queue.jobs.drop() == 5


def test_a_table_with_nothing_but_what_is_required(backend: Backend) -> None:
    plain = sa.Table(
        "plain",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("status", sa.String(16), nullable=False, server_default="unclaimed"),
        sa.Column("owner_id", sa.Integer),
        mysql_engine="InnoDB",
    )
    queue = backend.queue(plain)
    backend.insert(plain, [{"id": n, "status": "dead"} for n in range(3)])
    assert queue.jobs.retry([0]) == 1
    assert queue.jobs.drop([1]) == 1
    assert [(row["id"], row["status"]) for row in backend.rows(plain)] == [(0, "unclaimed"), (2, "dead")]


# --- which way it goes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["retry", "drop"])
def test_a_write_locks_only_what_it_names(backend: Backend, way: str) -> None:
    """While another session holds a dead job's row, others are written without waiting for it."""
    queue = backend.queue(JOBS)
    queue.enqueue(jobs(50))
    bury(queue, 50)
    keys = [row["id"] for row in backend.rows()]
    with backend.engine.connect() as other, other.begin():
        other.execute(sa.select(JOBS).where(JOBS.c.id == keys[10]).with_for_update()).all()
        assert getattr(queue.jobs, way)([key for key in keys if key != keys[10]]) == 49
    assert not queue.report.transients


def test_what_is_no_key_is_refused_before_anything_is_written(backend: Backend) -> None:
    backend.make(PAIRS)
    queue = backend.queue(PAIRS)
    queue.enqueue([{"region": "eu", "number": 1}, {"region": "eu", "number": 2}])
    bury(queue, 2)
    [job, _] = dead_jobs(queue)
    for keys in ([("eu", 2), 1], [["eu", 1]], [("eu",)], ["eu"], [job]):
        for operation in (queue.jobs.retry, queue.jobs.drop, queue.jobs.show):
            with pytest.raises(BadArgument, match="region, number"):
                operation(keys)
    assert queue.jobs.count(state="dead") == 2


def test_a_job_is_no_key(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(1))
    bury(queue, 1)
    [job] = dead_jobs(queue)
    for keys in ([job], [(job.key,) * 2]):
        with pytest.raises(BadArgument, match="whose key is id"):
            queue.jobs.retry(keys)
    assert queue.jobs.retry([job.key]) == 1


@pytest.mark.parametrize(
    ("type_", "key", "taken", "refused"),
    [
        (
            sa.BigInteger,
            2,
            ["2", 2.0, Decimal(2)],
            ["abc", "", None, True, 1.5, b"2", 2**70, [2], uuid.UUID(int=2)],
        ),
        pytest.param(
            sa.Uuid,
            uuid.UUID(int=2),
            [str(uuid.UUID(int=2)), uuid.UUID(int=2).hex],
            ["abc", 2],
            marks=pytest.mark.pair("SQLAlchemy writes it on MySQL, and the driver on Postgres"),
        ),
        (sa.Numeric(10, 2), Decimal("2.50"), ["2.5", 2.5], ["abc", float("nan")]),
        (sa.String(20), "2", [2], [None, {"id": "2"}, sa.text("'2'")]),
        (Instant, datetime(2026, 1, 2, tzinfo=UTC), ["2026-01-02", datetime(2026, 1, 2)], ["2", 2]),  # noqa: DTZ001
        (sa.Enum("low", "high", name="level"), "low", ["low"], ["lowest", 1]),
    ],
    ids=["number", "uuid", "numeric", "text", "instant", "enum"],
)
def test_a_key_is_a_value_of_its_type_or_a_text_of_one(
    backend: Backend, *, type_: Any, key: Any, taken: list[Any], refused: list[Any]
) -> None:
    if isinstance(type_, sa.Enum):
        backend.requires("enum keys")
    table = job_table("typed", sa.MetaData(), sa.Column("id", type_, primary_key=True, autoincrement=False))
    backend.make(table)
    queue = backend.queue(table)
    queue.enqueue({"id": key})
    for one in (key, *taken):
        assert queue.cancel([one]) == [key]
        assert queue.jobs.retry([one]) == 1
    for one in refused:
        for operation in (queue.cancel, queue.jobs.retry, queue.jobs.drop, queue.jobs.show):
            with pytest.raises(BadArgument, match="whose key is id"):
                operation([one])
    assert queue.jobs.count(state="unclaimed") == 1


def test_a_key_with_a_nul_is_found_where_a_text_can_hold_one(backend: Backend) -> None:
    table = job_table("typed", sa.MetaData(), sa.Column("id", sa.String(20), primary_key=True))
    backend.make(table)
    queue = backend.queue(table)
    if backend.dialect.holds_nul:
        queue.enqueue([{"id": "\0"}, {"id": "a"}])
        assert queue.cancel(["\0"]) == ["\0"]
    else:
        with pytest.raises(BadArgument, match="cannot hold a NUL"):
            queue.cancel(["\0"])


def test_a_row_that_another_session_has_locked_keeps_no_other_waiting(database: Backend) -> None:
    queue = database.queue(liveness=Liveness(lease=2, patience=1))
    queue.enqueue(jobs(5))
    with queue.claim() as batch:
        for job in batch:
            batch.fail(job, "wrong", retry=False)
    with database.engine.connect() as stranger:
        stranger.execute(sa.text("SELECT id FROM jobs WHERE id = :id FOR UPDATE"), {"id": batch[2].key}).all()
        with pytest.raises(RowsRefused, match="is refused for 1 of 5 rows"):
            queue.jobs.drop()
    assert [row["d"] for row in database.rows()] == ["0002"]
