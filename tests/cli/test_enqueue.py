"""`claimjobs enqueue`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from claimjobs import job_table, tracing
from claimjobs.cli import exits
from claimjobs.dialects.types import Instant
from claimjobs.enqueue.notifier import Notifier
from tests.backends import Backend, wait_for
from tests.cli.command import Ended, claimjobs, mapped

JSON = sa.JSON().with_variant(JSONB, "postgresql")


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def good(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"d": f"{number:04}", "e": "x"} for number in range(first, first + count)]


def there(backend: Backend) -> list[str]:
    return [row["d"] for row in backend.rows()]


@pytest.fixture
def jobs(database: Backend) -> Backend:
    database.make()
    return database


@pytest.fixture
def one(anywhere: Backend) -> Backend:
    anywhere.make()
    return anywhere


def enqueued(backend: Backend, *words: str | Path, stdin: bytes = b"") -> Ended:
    return claimjobs("enqueue", *words, "--url", backend.url, stdin=stdin)


# --- what comes in -------------------------------------------------------------------------------------------


def test_json_lines(jobs: Backend, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(lines({"d": "é☃𝄞", "e": "", "run_at": "2030-01-01T00:00:00Z"}, *good(3)))
    ended = enqueued(jobs, file)
    assert (ended.code, ended.out) == (exits.OK, "4\n")
    assert "4 rows enqueued in " in ended.err
    assert there(jobs) == ["é☃𝄞", "0000", "0001", "0002"]


def test_csv_becomes_the_columns_types(jobs: Backend, tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text('d,e,priority,run_at\na,"x\ny",-3,2030-01-01T00:00:00+00:00\nb,,,\n')
    assert enqueued(jobs, file).out == "2\n"
    first, second = jobs.rows()
    assert (first["d"], first["e"], first["priority"], first["run_at"].year) == ("a", "x\ny", -3, 2030)
    assert (second["d"], second["e"], second["priority"]) == ("b", "", 0)


def test_standard_input_is_json_lines_unless_said_otherwise(one: Backend) -> None:
    assert enqueued(one, "-", stdin=lines(*good(2))).out == "2\n"
    assert enqueued(one, "-", "--format", "csv", stdin=b"d,e\na,b\n").out == "1\n"
    assert len(one.rows()) == 3


def test_an_empty_field_of_json_is_null(database: Backend) -> None:
    table = job_table("events", sa.MetaData(), sa.Column("doc", JSON), sa.Column("n", sa.Integer), unique="n")
    database.make(table)
    for how in ((), ("--unique", "n"), ("--unique", "n", "--on-duplicate", "replace")):
        content = b"n,doc\n" + b"".join(b"%d,%s\n" % (n, b"%d" % n if n % 2 else b"") for n in range(150))
        assert enqueued(database, "-", "--table", "events", "--format", "csv", *how, stdin=content).code == exits.OK
    with database.engine.connect() as connection:
        found = connection.scalars(sa.select(table.c.n).where(table.c.doc.is_(sa.null())).order_by(table.c.n)).all()
    assert found == list(range(0, 150, 2))
    if database.family == "postgres":
        database.run("CREATE UNIQUE INDEX docs ON events (doc)")
        by_doc = ("--table", "events", "--format", "csv", "--unique", "doc")
        assert enqueued(database, "-", *by_doc, stdin=b"n,doc\n200,\n201,\n202,1\n").out == "2\n", "NULL equals nothing"


def test_the_name_tells_that_a_file_is_csv(one: Backend, tmp_path: Path) -> None:
    for name, content in (("a.jsonl", lines(*good(1))), ("a.txt", lines(*good(1))), ("A.CSV", b"d,e\na,b\n")):
        (tmp_path / name).write_bytes(content)
        assert enqueued(one, tmp_path / name).out == "1\n"


def test_nothing_is_no_rows(one: Backend) -> None:
    ended = enqueued(one, "-")
    assert (ended.code, ended.out) == (exits.OK, "0\n")


def test_a_file_that_is_not_there() -> None:
    ended = claimjobs("enqueue", "nowhere.jsonl")
    assert ended.code == exits.USAGE
    assert "nowhere.jsonl" in ended.err


def test_a_table_that_is_not_there(anywhere: Backend) -> None:
    ended = enqueued(anywhere, "-", stdin=lines(*good(1)))
    assert ended.code == exits.TABLE
    assert "claimjobs setup-tables" in ended.err


def test_a_number_is_stored_as_it_is_written_or_not_at_all(database: Backend) -> None:
    documents = job_table(
        "documents",
        sa.MetaData(),
        sa.Column("amount", sa.Numeric(40, 12), nullable=False),
        sa.Column("document", sa.JSON),
    )
    database.make(documents)
    number = "12345678901234567890.123456789000"
    assert enqueued(database, "-", "--table", "documents", stdin=f'{{"amount": {number}}}'.encode()).code == exits.OK
    assert [str(row["amount"]) for row in database.rows(documents)] == [number]
    if database.family == "mariadb":
        return  # its type JSON is a text, which goes in as it is
    given = b'{"amount": 1, "document": [0.1, 1.5e300, 12345678901234567]}'
    assert enqueued(database, "-", "--table", "documents", stdin=given).code == exits.OK
    assert database.rows(documents)[1]["document"] == [0.1, 1.5e300, 12345678901234567]
    for changed in ("1e400", number, "123456789012345678901"):
        ended = enqueued(
            database, "-", "--table", "documents", stdin=f'{{"amount": 1, "document": [{changed}]}}'.encode()
        )
        assert (ended.code, "would change" in ended.err) == (exits.INPUT, True)
    assert len(database.rows(documents)) == 2


# --- a row that does not fit ------------------------------------------------------------------------------------


BAD_LINES = [
    (b'{"d": "a", "e": ', "is no JSON"),
    (b'{"d": "a", "e": "b", "f": 1}', "has no column 'f'"),
    (b'{"d": 5, "e": "b"}', "column 'd': '5' is no text"),
    (b'{"d": "a", "e": "%s"}' % (b"x" * 65), "too long"),
    (b'{"d": null, "e": "b"}', "null"),
    (b'{"d": "a"}', "e"),
    (b'{"d": "a", "e": "b", "priority": 1e99}', "column 'priority'"),
    (b'{"d": "a", "e": "b", "priority": 99999999999}', "range"),
    (b'{"d": "a", "e": "b", "id": 1}', "uplicate"),
]


def test_bad_lines_are_told_and_all_others_enqueued(jobs: Backend) -> None:
    jobs.bare_queue().enqueue({"id": 1, "d": "was there", "e": ""})
    rows = [{**row, "id": number} for number, row in enumerate(good(len(BAD_LINES)), 2)]
    content = b"".join(lines(row) + line + b"\n" for row, (line, _) in zip(rows, BAD_LINES, strict=True))
    ended = enqueued(jobs, "-", stdin=content)
    assert (ended.code, ended.out) == (exits.INPUT, f"{len(rows)}\n")
    assert there(jobs) == ["was there", *(row["d"] for row in rows)]
    for number, (_, reason) in enumerate(BAD_LINES, 1):
        [told] = [line for line in ended.err.splitlines() if f" line {2 * number}: " in line]
        assert reason.lower() in told.lower()
    assert f"; {len(BAD_LINES)} rows did not fit: correct these lines, and enqueue them\n" in ended.err


def test_bad_lines_are_told_when_rows_get_the_trace_context(
    anywhere: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anywhere.make(job_table("jobs", sa.MetaData(), sa.Column("d", sa.String(64)), sa.Column("trace", sa.String(60))))
    monkeypatch.setattr(tracing, "traceparent", lambda: "00-" + "1" * 32 + "-" + "2" * 16 + "-01")
    content = b"\n" + lines({"d": "x" * 65}, {"d": "good"}, {"nobody": 1})
    ended = enqueued(anywhere, "-", *mapped(tmp_path, "[columns]\ntraceparent = 'trace'\n"), stdin=content)
    assert (ended.code, ended.out) == (exits.INPUT, "1\n")
    assert "line 2: " in ended.err
    assert "line 4: " in ended.err


def test_text_that_a_database_cannot_hold(one: Backend) -> None:
    ended = enqueued(one, "-", stdin=lines(*good(1)) + b'{"d": "\\u0000", "e": ""}\n{"d": "\\ud800", "e": ""}\n')
    assert (ended.code, ended.out) == (exits.INPUT, "1\n")
    assert "line 2: " in ended.err
    assert "line 3: " in ended.err


def test_csv_tells_the_line_where_the_row_begins(one: Backend, tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text('d,e,priority\n"a\nb",x,1\n"c\nd",x,many\n')
    ended = enqueued(one, file)
    assert ended.code == exits.INPUT
    assert "line 4: column 'priority': 'many' is no whole number" in ended.err


def test_a_header_that_does_not_fit(one: Backend, tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("d,e,colour\na,b,red\n")
    ended = enqueued(one, file)
    assert (ended.code, ended.out) == (exits.INPUT, "0\n")
    assert "line 1: the header names 'colour', not each column once: table 'jobs' has id, " in ended.err


# --- unique keys ----------------------------------------------------------------------------------------------


def test_what_is_there_already_stays_out(jobs: Backend, tmp_path: Path) -> None:
    jobs.run("CREATE UNIQUE INDEX jobs_d_e ON jobs (d, e)")
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(lines(*good(3)))
    assert enqueued(jobs, file, "--unique", "d,e").out == "3\n"
    file.write_bytes(lines(*good(5)) + b"{\n" + lines({"d": "x", "e": "x", "priority": 2**40}))
    ended = enqueued(jobs, file, "--unique", "d, e")
    assert (ended.code, ended.out) == (exits.INPUT, "2\n")
    assert "2 rows enqueued in " in ended.err
    assert " s, 3 were there already; 2 rows did not fit: " in ended.err
    assert there(jobs) == [f"{number:04}" for number in range(5)]


def test_what_is_there_may_be_replaced(jobs: Backend) -> None:
    jobs.run("CREATE UNIQUE INDEX once ON jobs (d)")
    enqueued(jobs, "-", stdin=lines(*good(2)))
    given = lines(*({**row, "e": "new"} for row in good(3)))
    ended = enqueued(jobs, "-", "--unique", "d", "--on-duplicate", "replace", stdin=given)
    assert (ended.code, ended.out) == (exits.OK, "3\n")
    assert [row["e"] for row in jobs.rows()] == ["new"] * 3
    ended = enqueued(jobs, "-", "--on-duplicate", "again", stdin=given)
    assert (ended.code, ended.out) == (exits.USAGE, "")
    assert "on_duplicate='again' goes with `unique`" in ended.err
    ended = enqueued(jobs, "-", "--unique", "d", "--on-duplicate", "again", stdin=given)
    assert ended.code == exits.TABLE
    assert "ADD COLUMN run_again BOOLEAN NOT NULL DEFAULT FALSE" in ended.err


def test_columns_that_no_unique_index_holds(one: Backend) -> None:
    ended = enqueued(one, "-", "--unique", "d", stdin=lines(*good(1)))
    assert (ended.code, there(one)) == (exits.TABLE, [])
    assert "CREATE UNIQUE INDEX jobs_d ON jobs (d)" in ended.err


def test_a_column_that_changes_on_the_way(one: Backend) -> None:
    ended = enqueued(one, "-", "--unique", "run_at", stdin=lines(*good(1)))
    assert ended.code == exits.USAGE
    assert "cannot be unique by 'run_at'" in ended.err


# --- long files, and short patience ---------------------------------------------------------------------------


def test_more_rows_than_one_statement_holds(jobs: Backend) -> None:
    assert enqueued(jobs, "-", stdin=lines(*good(2_345))).out == "2345\n"
    assert jobs.bare_queue().stats().unclaimed == 2_345


def test_ctrl_c_leaves_nothing_half_done(jobs: Backend) -> None:
    """The file does not end: its reader is stopped while the command waits for the next line."""
    command = [sys.executable, "-m", "claimjobs", "enqueue", "-"]
    environment = {**os.environ, "CLAIMJOBS_URL": jobs.url}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None
        process.stdin.write(lines(*good(3_500)))
        process.stdin.flush()
        wait_for(jobs_uncommitted(jobs), "rows to be on their way")
        process.send_signal(signal.SIGINT)
        process.wait(120)
        out, err = process.communicate()
    assert (process.returncode, out) == (exits.INTERRUPTED, b""), err
    assert b"interrupted" in err
    assert b"nothing is enqueued" in err
    assert jobs.rows() == []


def test_after_the_commit_nobody_is_told_that_nothing_is_enqueued(
    one: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Notifier, "wake", Mock(side_effect=KeyboardInterrupt))
    ended = enqueued(one, "-", stdin=lines(*good(2)))
    assert (ended.code, ended.out, len(one.rows())) == (exits.INTERRUPTED, "", 2)
    assert "claimjobs: all rows are enqueued, or none: see `claimjobs status --url URL`\n" in ended.err


def test_a_second_ctrl_c_while_the_connection_is_given_back_is_one_line(anywhere: Backend) -> None:
    """It is raised in SQLAlchemy's pool, which logs it with a traceback."""
    anywhere.make()
    program = """
import sqlalchemy as sa
from claimjobs.cli.main import main
@sa.event.listens_for(sa.pool.Pool, "reset")
def interrupted(*_):
    raise KeyboardInterrupt
main()
"""
    command = [sys.executable, "-c", program, "enqueue", "-", "--url", anywhere.url]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == exits.INTERRUPTED
    assert "Traceback" not in ended.stderr
    assert ended.stderr.endswith("claimjobs: interrupted\n")


def test_rows_of_a_schedule_are_enqueued_until_a_signal(database: Backend) -> None:
    reports = job_table(
        "reports",
        sa.MetaData(),
        sa.Column("name", sa.String(20), nullable=False),
        sa.Column("due", Instant(), nullable=False),
        unique=("name", "due"),
    )
    database.make(reports)
    how = ("--table", "reports", "--every", "1s", "--unique", "name,due", "--tick", "due")
    command = [sys.executable, "-m", "claimjobs", "enqueue", "-", *how]
    environment = {**os.environ, "CLAIMJOBS_URL": database.url}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None
        process.stdin.write(lines({"name": "daily"}))
        process.stdin.close()
        process.stdin = None
        database.wait_for(lambda: len(database.rows(reports)) >= 2, "two ticks have their rows")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    rows = len(database.rows(reports))
    assert (process.returncode, out) == (exits.OK, f"{rows}\n".encode()), err
    assert err.count(b"Z: 1 row enqueued\n") == rows
    assert len({row["due"] for row in database.rows(reports)}) == rows


def test_a_schedule_that_cannot_be_kept_is_refused_at_once(one: Backend) -> None:
    one.run("CREATE UNIQUE INDEX once ON jobs (d)")
    every = ("--every", "1h", "--tick", "d", "--unique", "d")
    for words, code, said in (
        (("--every", "15m"), exits.USAGE, "give all three"),
        (("--tick", "d", "--unique", "d"), exits.USAGE, "give all three"),
        (("--every", "often", "--tick", "d", "--unique", "d"), exits.USAGE, "'often' is no schedule"),
        ((*every, "--zone", "Mars"), exits.USAGE, "is no time zone"),
        (("--zone", "Mars"), exits.USAGE, "--zone has no effect without --every: leave it out"),
        ((*every, "--on-duplicate", "again"), exits.USAGE, "--on-duplicate has no effect with --every: leave it out"),
    ):
        ended = enqueued(one, "-", *words, stdin=lines(*good(1)))
        assert (ended.code, ended.out) == (code, "")
        assert said in ended.err
    ended = enqueued(one, "-", *every, stdin=b"no json\n")
    assert (ended.code, ended.out) == (exits.INPUT, "")
    assert "correct these lines first" in ended.err
    assert one.rows() == []


def jobs_uncommitted(backend: Backend) -> Any:
    """Whether a session other than ours holds a transaction open in the database."""
    return lambda: len(backend.sessions()) > 1


def test_progress_is_a_line_now_and_then(one: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("claimjobs.cli.enqueue.REPORT_EVERY", 0.0)
    ended = enqueued(one, "-", stdin=lines(*good(1_000)))
    assert "claimjobs: 500 rows read\n" in ended.err
    assert "claimjobs: 1,000 rows read\n" in ended.err
