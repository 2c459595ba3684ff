"""A second job of the same unique key stays out, whoever brings it, and whenever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from benchmarks.crew import SPAWN, Worker, gather
from claimjobs import Queue, job_table
from claimjobs.enqueue.enqueuer import Insert
from claimjobs.enqueue.rows import Chunk
from claimjobs.errors import BadArgument, BadRow, ColumnMissing, UnfitTable
from tests.backends import Backend
from tests.conformance.jobs import counted
from tests.conformance.sender import VISITS, send

KEY = ("customer", "day")


def visits(*customers: str, day: int = 1, **more: Any) -> list[dict[str, Any]]:
    return [{"customer": customer, "day": day, **more} for customer in customers]


def there(backend: Backend) -> list[str]:
    return [row["customer"] for row in backend.rows(VISITS)]


# --- what comes in -----------------------------------------------------------------------------------------


def test_a_second_enqueue_of_the_same_key_changes_nothing(backend: Backend) -> None:
    queue = backend.queue(VISITS)
    assert queue.enqueue(visits("ada", note="first"), unique=KEY) == 1
    assert queue.enqueue(visits("ada", note="second"), unique=KEY) == 0
    assert queue.enqueue(visits("ada", day=2), unique=KEY) == 1
    assert [(row["customer"], row["day"], row["note"]) for row in backend.rows(VISITS)] == [
        ("ada", 1, "first"),
        ("ada", 2, ""),
    ]
    assert queue.report.enqueued == 2


def test_only_what_is_new_comes_in_and_in_its_order(backend: Backend) -> None:
    queue = backend.queue(VISITS)
    queue.enqueue(visits("b", "d"), unique=KEY)
    assert queue.enqueue(visits("e", "d", "c", "b", "a"), unique=KEY) == 3
    assert there(backend) == ["b", "d", "e", "c", "a"]


def test_the_first_of_several_in_one_call_counts(backend: Backend) -> None:
    queue = backend.queue(VISITS)
    rows = [*visits("a", "b", note="first"), *visits("b", "a", "c", note="again"), *visits("a", priority=5)]
    assert queue.enqueue(rows, unique=KEY) == 3
    assert [(row["customer"], row["note"], row["priority"]) for row in backend.rows(VISITS)] == [
        ("a", "first", 0),
        ("b", "first", 0),
        ("c", "again", 0),
    ]


@pytest.mark.parametrize("known", [0, 1, 500, 2_499, 2_500])
def test_many_rows_go_in_few_statements_however_many_are_known(backend: Backend, known: int) -> None:
    queue = backend.queue(VISITS)
    rows = visits(*(f"{n:04}" for n in range(2_500)))
    queue.enqueue(rows[:known])
    with counted(backend.engine) as sent:
        assert queue.enqueue((row for row in rows), unique=KEY) == 2_500 - known
    assert there(backend) == [row["customer"] for row in rows]
    assert len([sql for sql in sent if sql.startswith(("INSERT", "SELECT"))]) < 60


def test_many_of_few_keys_go_in_few_statements(backend: Backend) -> None:
    queue = backend.queue(VISITS)
    with counted(backend.engine) as sent:
        assert queue.enqueue(visits(*(f"{n % 7}" for n in range(3_000))), unique=KEY) == 7
    assert len([sql for sql in sent if sql.startswith(("INSERT", "SELECT"))]) < 60


def test_a_single_column_given_by_its_name(backend: Backend) -> None:
    table = job_table("mails", sa.MetaData(), sa.Column("address", sa.String(40)), unique="address")
    queue = backend.queue(table)
    assert queue.enqueue([{"address": "a"}, {"address": "b"}], unique="address") == 2
    assert queue.enqueue([{"address": "c"}, {"address": "b"}], unique=["address"]) == 1
    assert queue.enqueue([{"address": None}, {"address": None}], unique="address") == 2


def test_the_primary_key_is_unique_as_well(backend: Backend) -> None:
    queue = backend.queue()
    assert queue.enqueue({"id": 1, "d": "", "e": ""}, unique="id") == 1
    assert queue.enqueue([{"id": 1, "d": "", "e": ""}, {"id": 2, "d": "", "e": ""}], unique="id") == 1


def test_an_instant_with_a_zone_is_the_same_when_it_is_read_again(backend: Backend) -> None:
    hours = job_table("hours", sa.MetaData(), sa.Column("hour", sa.DateTime(timezone=True)), unique="hour")
    queue = backend.queue(hours)
    rows = [{"hour": datetime(2030, 1, 1, hour, tzinfo=UTC)} for hour in range(20)]
    queue.enqueue(rows[:10], unique="hour")
    with counted(backend.engine) as sent:
        assert queue.enqueue(rows, unique="hour") == 10
    assert len([sql for sql in sent if sql.startswith("INSERT")]) <= 2


@pytest.mark.requires("table collation")
def test_what_only_the_database_takes_for_equal_is_equal(backend: Backend) -> None:
    options: dict[str, Any] = {f"{family}_collate": "utf8mb4_general_ci" for family in ("mysql", "mariadb")}
    table = job_table("mails", sa.MetaData(), sa.Column("name", sa.String(40)), unique="name", **options)
    queue = backend.queue(table)
    assert queue.enqueue([{"name": "Ada"}, {"name": "ADA"}, {"name": "Bob"}, {"name": "ada"}], unique="name") == 2
    assert queue.enqueue([{"name": "aDa"}, {"name": "Eve"}, {"name": "bob"}], unique="name") == 1
    assert [row["name"] for row in backend.rows(table)] == ["Ada", "Bob", "Eve"]


def test_a_job_that_is_done_makes_room_for_the_next_one_of_its_key(backend: Backend) -> None:
    queue = backend.queue(VISITS)
    queue.enqueue(visits("ada"), unique=KEY)
    with queue.claim() as batch:
        assert queue.enqueue(visits("ada"), unique=KEY) == 0
        batch.done()
    assert queue.enqueue(visits("ada"), unique=KEY) == 1


def stored_otherwise(type_: Any) -> sa.Table:
    return job_table("rounded", sa.MetaData(), sa.Column("value", type_, nullable=False, unique=True))


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (sa.Numeric(10, 2), Decimal("1.005")),
        (sa.DateTime, datetime(2024, 5, 1, 12, 0, 0, 600_000)),  # noqa: DTZ001 - without a zone, as the column is
        (sa.CHAR(10), "a "),
    ],
    ids=["DECIMAL", "DATETIME", "CHAR"],
)
def test_a_value_that_the_column_stores_otherwise_is_known_the_second_time(
    backend: Backend, type_: Any, value: object
) -> None:
    queue = backend.queue(stored_otherwise(type_))
    assert queue.enqueue({"value": value}, unique="value") == 1
    assert queue.enqueue({"value": value}, unique="value") == 0
    assert len(backend.rows("rounded")) == 1


def test_a_row_that_is_deleted_right_after_it_refused_another_one_makes_no_bad_row(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a consumer does it, whose job ends between the error of the INSERT and whatever is asked after it."""
    queue = backend.queue(VISITS)
    queue.enqueue(visits("ada"), unique=KEY)

    attempt = Insert._try

    def refused_then_deleted(insert: Insert, chunk: Chunk) -> int | Exception:
        result = attempt(insert, chunk)
        if isinstance(result, Exception):
            backend.run("delete from visits")
        return result

    monkeypatch.setattr(Insert, "_try", refused_then_deleted)
    assert queue.enqueue(visits("ada"), unique=KEY) == 0


# --- rows that do not fit ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"customer": "x" * 41, "day": 1}, "too long"),
        ({"customer": None, "day": 1}, "null"),
        ({"customer": "new", "day": 1, "id": 1}, "duplicate"),
        ({"customer": "new", "day": 1, "note": "x" * 9}, "too long"),
        ({"customer": "new"}, "column 'day' of the unique key is missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_errors_of_a_row_are_not_swallowed(backend: Backend, bad: dict[str, Any], reason: str) -> None:
    queue = backend.queue(VISITS)
    queue.enqueue({"id": 1, "customer": "old", "day": 1}, unique=KEY)
    rows = [*visits("old", "a"), bad, *visits("b", "old")]
    with pytest.raises(BadRow, match=rf"(?i)row 3: .*{reason}"):
        queue.enqueue(rows, unique=KEY)
    assert there(backend) == ["old"]
    told: list[BadRow] = []
    assert queue.enqueue(rows, unique=KEY, on_bad=told.append) == 2
    assert [row.line for row in told] == [3]
    assert sorted(there(backend)) == ["a", "b", "old"]


# --- which keys --------------------------------------------------------------------------------------------


def test_without_a_unique_index_the_statement_that_adds_it_is_told(backend: Backend) -> None:
    queue = backend.queue()
    with pytest.raises(UnfitTable, match="has no unique index over d, e, ") as error:
        queue.enqueue({"d": "a", "e": "b"}, unique=("d", "e"))
    assert backend.rows() == []
    backend.run(str(error.value).rpartition(": ")[2])
    assert [queue.enqueue({"d": "a", "e": "b"}, unique=("e", "d")) for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("how", ["skip", "replace"])
@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_an_index_that_is_dropped_under_a_producer_is_named_where_an_insert_names_its_key(
    backend: Backend, how: Any, in_a_transaction: bool
) -> None:
    """Else nothing tells it. It is replaced in one statement there."""
    queue = backend.queue(VISITS)
    given: dict[str, Any] = {"unique": KEY, "on_duplicate": how}
    queue.enqueue(visits("ada"), **given)
    if not backend.dialect.skips_duplicates:
        backend.run("ALTER TABLE visits DROP INDEX visits_unique, ADD UNIQUE INDEX visits_unique (customer, day)")
        queue.enqueue(visits("ada"), **given)
        assert there(backend) == ["ada"]
        return
    backend.run("ALTER TABLE visits DROP CONSTRAINT visits_unique")
    for bad in (None, lambda _row: None):
        with (
            backend.engine.connect() if in_a_transaction else nullcontext() as connection,
            pytest.raises(UnfitTable, match="has no unique index over customer, day, ") as error,
        ):
            queue.enqueue(visits("ada", "bob"), **given, on_bad=bad, connection=connection)
    backend.run(str(error.value).rpartition(": ")[2])
    assert queue.enqueue(visits("ada", "bob"), **given) == (1 if how == "skip" else 2)
    assert there(backend) == ["ada", "bob"]


def test_an_index_over_other_columns_is_not_enough(backend: Backend) -> None:
    queue = backend.queue(VISITS)
    for columns in ("customer", ("customer", "day", "note")):
        with pytest.raises(UnfitTable):
            queue.enqueue(visits("ada"), unique=columns)


@pytest.mark.requires("partial indexes")
def test_an_index_that_holds_some_rows_only_is_not_enough(backend: Backend) -> None:
    backend.make()
    backend.run("CREATE UNIQUE INDEX waiting ON jobs (d) WHERE status = 'unclaimed'")
    with pytest.raises(UnfitTable):
        backend.queue().enqueue({"d": "a", "e": "b"}, unique="d")


def test_an_index_that_does_not_compare_whole_values_or_only_at_the_commit_is_not_enough(backend: Backend) -> None:
    backend.make()
    can_defer = backend.family == "postgres"
    backend.run("ALTER TABLE jobs ADD UNIQUE (d) DEFERRABLE" if can_defer else "CREATE UNIQUE INDEX d ON jobs (d(3))")
    with pytest.raises(UnfitTable, match=r"whole values at once \(drop .*CREATE UNIQUE INDEX"):
        backend.queue().enqueue([{"d": "one", "e": ""}, {"d": "one more", "e": ""}], unique="d")
    assert backend.rows() == []


def test_a_column_that_is_not_there(backend: Backend) -> None:
    with pytest.raises(ColumnMissing, match="no column 'colour'"):
        backend.queue().enqueue({"d": "a", "e": "b"}, unique="colour")


@pytest.mark.parametrize("column", ["run_at", "status"])
def test_a_column_that_changes_on_the_way_is_refused(backend: Backend, column: str) -> None:
    """Two jobs of a customer that are retried at the same instant would be in each other's way for ever."""
    with pytest.raises(BadArgument, match=f"'{column}', which claimjobs changes"):
        backend.queue(VISITS).enqueue(visits("ada"), unique=("customer", column))
    with pytest.raises(BadArgument, match=f"'{column}', which claimjobs changes"):
        job_table("others", sa.MetaData(), sa.Column("customer", sa.Integer), unique=("customer", column))


# --- side by side ------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_processes_that_enqueue_the_same_keys_at_once_all_succeed_and_each_key_is_there_once(backend: Backend) -> None:
    backend.make(VISITS)
    count, sizes = 4, [1] * 10 + [80] * 10
    rounds = [visits(*(f"{n:03}" for n in range(size)), day=day) for day, size in enumerate(sizes)]
    everyone = SPAWN.Barrier(count, timeout=120)
    came = gather([Worker(send, backend.url, rounds, everyone) for _ in range(count)])
    wanted = sorted((row["day"], row["customer"]) for rows in rounds for row in rows)
    assert sorted((row["day"], row["customer"]) for row in backend.rows(VISITS)) == wanted
    assert sum(came) == len(wanted)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_key_that_another_transaction_is_about_to_commit_is_waited_for(backend: Backend, ends: str) -> None:
    queue = backend.queue(VISITS)
    came: list[int] = []
    second = threading.Thread(target=lambda: came.append(queue.enqueue(visits("a", "ada", "b"), unique=KEY)))
    with backend.engine.connect() as first:
        assert queue.enqueue(visits("ada"), first, unique=KEY) == 1
        second.start()
        backend.wait_for(backend.someone_waits_for_a_lock, "the second enqueue waits")
        assert came == []
        getattr(first, ends)()
    second.join(120)
    assert came == [2 if ends == "commit" else 3]
    assert sorted(there(backend)) == ["a", "ada", "b"]


def test_producers_in_each_others_way_are_tried_again(backend: Backend) -> None:
    """Each waits for what the other has inserted: one is undone by the database, and comes in all the same."""
    queue, other = (backend.queue(VISITS) for _ in range(2))
    both_have_one = threading.Barrier(2, timeout=120)
    come: dict[str, int] = {}

    def wait_for_the_other(_bad: BadRow) -> None:
        both_have_one.wait()

    def run(mine: Queue, first: str, second: str) -> None:
        nobody = visits("nobody else" + first, priority=1)  # another shape: the first is inserted before this
        rows = [*visits(first), *nobody, {"no such column": 1}, *visits(second)]
        come[first] = mine.enqueue(rows, unique=KEY, on_bad=wait_for_the_other)

    ways = ((queue, "a", "b"), (other, "b", "a"))
    threads = [threading.Thread(target=run, args=way) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(there(backend)) == ["a", "b", "nobody elsea", "nobody elseb"]
    assert sum(come.values()) == 4
    # Who is undone begins again with the row for which the other one waits, and may be in its way once more.
    assert queue.report.transients["deadlock"] + other.report.transients["deadlock"] >= 1


def test_a_source_that_fails_as_a_database_does_is_not_taken_for_a_conflict(backend: Backend) -> None:
    queue = backend.queue(VISITS)

    def rows() -> Iterator[dict[str, Any]]:
        yield from visits("ada")
        raise sa.exc.OperationalError("SELECT 1", {}, _deadlock(backend))

    with pytest.raises(sa.exc.OperationalError):
        queue.enqueue(rows(), unique=KEY)
    assert there(backend) == []
    assert not queue.report.transients


def _deadlock(backend: Backend) -> Exception:
    [code] = [code for code, kind in backend.dialect.errors.transient.items() if kind == "deadlock"]
    error = Exception(code, "deadlock")
    error.sqlstate = code  # type: ignore[attr-defined]
    assert backend.dialect.errors.transient_kind(error) == "deadlock"
    return error


# --- inside the caller's transaction -----------------------------------------------------------------------


def test_within_a_transaction_that_is_rolled_back_nothing_comes_in(backend: Backend) -> None:
    queue = backend.queue(VISITS)
    queue.enqueue(visits("ada"))
    with Session(backend.engine) as session:
        assert queue.enqueue(visits("ada", "bob"), session, unique=KEY) == 1
        assert queue.enqueue(visits("ada", "bob", "eve"), session, unique=KEY) == 1
        session.rollback()
    assert there(backend) == ["ada"]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_what_came_after_the_callers_snapshot_is_seen_or_refused(backend: Backend, level: str) -> None:
    if level == "REPEATABLE READ" and not backend.has("current reads"):
        backend.requires("skips duplicates")  # without it a row that cannot be seen is taken for one that does not fit
    queue = backend.queue(VISITS)
    with backend.engine.connect().execution_options(isolation_level=level) as mine, mine.begin():
        assert mine.execute(sa.select(VISITS)).all() == []
        queue.enqueue(visits("ada", "bob"))
        if level == "REPEATABLE READ" and not backend.has("current reads"):
            with pytest.raises(sa.exc.DBAPIError) as error:
                queue.enqueue(visits("eve", "bob", "ada"), mine, unique=KEY)
            assert backend.dialect.errors.transient_kind(error.value) == "serialization"
        else:
            assert queue.enqueue(visits("eve", "bob", "ada"), mine, unique=KEY) == 1
    assert sorted(there(backend)) in (["ada", "bob"], ["ada", "bob", "eve"])


def test_what_went_after_the_callers_snapshot_is_not_missed(backend: Backend) -> None:
    """A stale look would say that the job is there, and nobody would ever do the new one."""
    if not backend.has("current reads"):
        backend.requires("skips duplicates")
    queue = backend.queue(VISITS)
    queue.enqueue(visits("ada", "bob"))
    with backend.engine.connect().execution_options(isolation_level="REPEATABLE READ") as mine, mine.begin():
        assert len(mine.execute(sa.select(VISITS)).all()) == 2
        with queue.claim(1) as batch:
            batch.done()
        assert queue.enqueue(visits("bob", "ada", "eve"), mine, unique=KEY) == 2
    assert sorted(there(backend)) == ["ada", "bob", "eve"]


def test_the_name_of_an_index_may_have_a_dot(backend: Backend) -> None:
    """And a value may be as a server's words are."""
    once, name = sa.Index("once.only", "d", unique=True), " for key 'once'"
    queue = backend.queue(job_table("notes", sa.MetaData(), sa.Column("d", sa.String(20)), once))
    assert [queue.enqueue({"d": name}, unique="d") for _ in range(2)] == [1, 0]
