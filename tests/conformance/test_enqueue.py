"""Jobs come into the table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from claimjobs import job_table
from claimjobs.errors import BadRow
from claimjobs.table.definitions import article_table
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs, names

JOBS = article_table()


def there(backend: Backend) -> list[str]:
    return [row["d"] for row in backend.rows()]


def test_one_mapping_is_one_job(backend: Backend) -> None:
    queue = backend.queue()
    assert queue.enqueue({"d": "one", "e": "é☃𝄞"}) == 1
    with queue.claim() as batch:
        assert (batch[0].d, batch[0].e, batch[0].attempts, batch[0].priority) == ("one", "é☃𝄞", 0, 0)


def test_a_list_is_one_job_each(backend: Backend) -> None:
    queue = backend.queue()
    assert queue.enqueue(jobs(3)) == 3
    assert there(backend) == ["0000", "0001", "0002"]


def test_nothing_is_no_jobs(backend: Backend) -> None:
    assert backend.queue().enqueue([]) == 0
    assert there(backend) == []


def test_a_generator_of_any_length_goes_in_few_statements(backend: Backend) -> None:
    queue = backend.queue()
    with counted(backend.engine) as inserts:
        assert queue.enqueue(job for job in jobs(3_500)) == 3_500
    assert len(there(backend)) == 3_500
    assert len([sql for sql in inserts if sql.startswith("INSERT")]) <= 8
    assert queue.report.enqueued == 3_500


def test_rows_of_several_shapes_keep_their_order_and_their_defaults(backend: Backend) -> None:
    queue = backend.queue()
    rows: list[dict[str, Any]] = [
        {"d": "0", "e": ""},
        {"e": "", "d": "1"},
        {"d": "2", "e": "", "priority": 7},
        {"d": "3", "e": "", "priority": 8},
        {"d": "4", "e": ""},
    ]
    assert queue.enqueue(rows) == 5
    assert [(row["d"], row["priority"]) for row in backend.rows()] == [("0", 0), ("1", 0), ("2", 7), ("3", 8), ("4", 0)]


def test_an_aware_instant_is_the_same_instant_when_it_comes_back(backend: Backend) -> None:
    queue = backend.queue()
    run_at = datetime(2024, 5, 6, 7, 8, 9, 123_456, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    queue.enqueue({"d": "", "e": "", "run_at": run_at})
    with queue.claim() as batch:
        assert batch[0].run_at == run_at
        assert batch[0].run_at.tzinfo == UTC


# --- inside the caller's transaction -----------------------------------------------------------------------


def test_a_rollback_of_the_callers_leaves_nothing(backend: Backend) -> None:
    queue = backend.queue()
    with backend.engine.connect() as connection:
        assert queue.enqueue(jobs(2), connection) == 2
        connection.rollback()
    assert there(backend) == []


def test_a_commit_of_the_callers_makes_them_jobs_and_not_before(backend: Backend) -> None:
    queue = backend.queue()
    with backend.engine.connect() as connection:
        queue.enqueue(jobs(2), connection)
        assert not queue.claim()
        connection.commit()
    with queue.claim() as batch:
        assert len(batch) == 2


def test_a_session_may_be_the_caller(backend: Backend) -> None:
    queue = backend.queue()
    with Session(backend.engine) as session:
        queue.enqueue(jobs(2), session)
        session.rollback()
        queue.enqueue({"d": "kept", "e": ""}, session)
        assert there(backend) == []
        session.commit()
    assert there(backend) == ["kept"]


# --- rows that do not fit ----------------------------------------------------------------------------------


def refusal(connection: sa.Connection, queue: Any, rows: Any) -> BadRow:
    with pytest.raises(BadRow) as refused:
        queue.enqueue(rows, connection)
    return refused.value


BAD_ROWS: dict[str, tuple[Any, str]] = {
    "a string too long": ({"d": "x" * 65, "e": ""}, "(?i)too long"),
    "null where none may be": ({"d": None, "e": ""}, "(?i)null"),
    "a column left out": ({"d": "x"}, "(?i)null|default"),
    "no number": ({"d": "x", "e": "", "priority": "urgent"}, "(?i)integer"),
    "a number too large": ({"d": "x", "e": "", "priority": 2**40}, "(?i)out of (its )?range"),
    "a key that is there": ({"id": 1, "d": "x", "e": ""}, "(?i)duplicate"),
    "a date without a zone": ({"d": "x", "e": "", "run_at": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001
}


@pytest.mark.parametrize("why", BAD_ROWS)
def test_a_row_that_does_not_fit_is_named_and_the_rest_of_the_transaction_stands(backend: Backend, why: str) -> None:
    bad, reason = BAD_ROWS[why]
    queue = backend.queue()
    queue.enqueue({"id": 1, "d": "before", "e": ""})
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(JOBS).values(id=10, d="caller's", e=""))
        rows = [{"id": 20 + n, **job} for n, job in enumerate(jobs(6))]
        refused = refusal(connection, queue, [*rows, bad, {"id": 30, "d": "after", "e": ""}])
        connection.execute(sa.insert(JOBS).values(id=11, d="usable", e=""))
    assert refused.line == 7
    assert str(refused).startswith("row 7: ")
    assert refused.reason == str(refused).removeprefix("row 7: ")
    assert there(backend)[:3] == ["before", "caller's", "usable"]
    assert "after" not in there(backend)
    assert re.search(reason, refused.reason), refused.reason


@pytest.mark.parametrize("place", [1, 2, 999, 1_000, 1_001, 1_500])
def test_the_number_of_a_bad_row_is_exact_wherever_it_stands(backend: Backend, place: int) -> None:
    queue = backend.queue()
    rows = jobs(1_500)
    rows[place - 1]["d"] = "x" * 65
    with backend.engine.begin() as connection:
        assert refusal(connection, queue, rows).line == place
    assert there(backend) == [job["d"] for job in rows[: place - 1]]


def test_the_first_of_several_bad_rows_is_named(backend: Backend) -> None:
    queue = backend.queue()
    rows = jobs(40)
    for place in (17, 18, 33):
        rows[place - 1]["d"] = None
    with pytest.raises(BadRow, match=r"^row 17: "):
        queue.enqueue(rows)


def test_without_a_connection_a_bad_row_leaves_nothing_behind(backend: Backend) -> None:
    queue = backend.queue()
    with pytest.raises(BadRow, match=r"^row 3: "):
        queue.enqueue([*jobs(2), {"d": None, "e": ""}])
    assert there(backend) == []
    assert queue.report.enqueued == 0


def test_an_unknown_column_is_named_with_those_there_are(backend: Backend) -> None:
    with pytest.raises(BadRow, match=r"row 2: table 'jobs' has no column 'colour': it has id, d, e, status"):
        backend.queue().enqueue([*jobs(1), {"d": "", "e": "", "colour": "red"}])


@pytest.mark.parametrize("row", ["text", 7, ("d", "e"), None])
def test_what_is_no_mapping_is_shown(anywhere: Backend, row: Any) -> None:
    with pytest.raises(BadRow, match=r"row 2: .* is no mapping of column names to values"):
        anywhere.queue().enqueue([*jobs(1), row])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"d": sa.func.upper("x")}, "row 2: column 'd' is given SQL: give it a value"),
        pytest.param(
            {1: "x"},
            "row 2: table 'jobs' has no column 1: it has id",
            marks=pytest.mark.pair("SQLAlchemy looks a text up"),
        ),
    ],
    ids=["an expression", "a name that is no text"],
)
@pytest.mark.parametrize("count", [1, 300])
def test_what_only_sqlalchemy_could_read_is_a_bad_row(backend: Backend, row: Any, said: str, count: int) -> None:
    queue, bad = backend.queue(), list[BadRow]()
    several = [*jobs(1), *[{"d": "", "e": "", **row}] * count]
    with pytest.raises(BadRow, match=said):
        queue.enqueue(several)
    assert queue.enqueue(several, on_bad=bad.append) == 1
    assert len(bad) == count
    assert there(backend) == ["0000"]


def test_a_document_may_be_null(backend: Backend) -> None:
    table = job_table("documents", sa.MetaData(), sa.Column("doc", sa.JSON))
    backend.make(table)
    backend.queue(table).enqueue([{"doc": sa.null()}, {"doc": {}}])
    assert [row["doc"] for row in backend.rows(table)] == [None, {}]


def test_an_error_of_the_callers_generator_is_the_callers(backend: Backend) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield from jobs(3)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        backend.queue().enqueue(rows())
    assert there(backend) == []


@pytest.mark.parametrize("unique", [(), ("d",)])
def test_what_only_the_commit_refuses_is_told_as_a_bad_row_without_its_number(
    backend: Backend, unique: tuple[str, ...]
) -> None:
    """All foreign keys that Django makes on Postgres are checked at the commit."""
    backend.requires("deferred constraints")
    queue, bad = backend.queue(), list[BadRow]()
    backend.run("CREATE UNIQUE INDEX once ON jobs (d)")
    backend.run("CREATE TABLE known (e VARCHAR(64) PRIMARY KEY)")
    backend.run("INSERT INTO known VALUES ('somebody')")
    backend.run("ALTER TABLE jobs ADD FOREIGN KEY (e) REFERENCES known DEFERRABLE INITIALLY DEFERRED")
    rows: list[dict[str, Any]] = [{"d": "a", "e": "somebody"}, {"d": "b", "e": "nobody"}]
    with pytest.raises(BadRow, match=r"one of the rows, refused at the commit: .*foreign key") as raised:
        queue.enqueue(rows, unique=unique, on_bad=bad.append)
    assert (raised.value.line, raised.value.row, bad, there(backend)) == (0, None, [], [])
    assert queue.report.enqueued == 0
    backend.run("INSERT INTO known VALUES ('nobody')")
    assert queue.enqueue(rows, unique=unique) == 2


def test_what_a_server_cannot_do_at_the_commit_is_no_bad_row(backend: Backend) -> None:
    backend.requires("deferred constraints")
    queue = backend.queue()
    full = "BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '58030'; END"
    backend.run(f"CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $${full}$$")
    backend.run(
        "CREATE CONSTRAINT TRIGGER later AFTER INSERT ON jobs DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION full_disk()"
    )
    with pytest.raises(sa.exc.DBAPIError, match="no room"):
        queue.enqueue([{"d": "a", "e": "b"}] * 2)
    assert there(backend) == []


def test_jobs_that_came_before_a_claim_and_after_it_are_both_found(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue({"d": "a", "e": ""})
    with queue.claim() as first:
        queue.enqueue({"d": "b", "e": ""})
        with queue.claim() as second:
            assert names(first) + names(second) == ["a", "b"]
