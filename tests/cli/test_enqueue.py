"""`claimjobs enqueue`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import job_table
from claimjobs.cli import exits
from claimjobs.cli.progress import Bar, Lines, watch
from tests.backends import Backend, wait_for
from tests.cli.command import Ended, claimjobs


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


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "A.JSONL"])
def test_the_name_tells_the_format(one: Backend, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(lines(*good(1)))
    assert enqueued(one, tmp_path / name).code == exits.OK


def test_a_name_that_tells_nothing(one: Backend, tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    file.write_bytes(lines(*good(1)))
    ended = enqueued(one, file)
    assert (ended.code, there(one)) == (exits.USAGE, [])
    assert "--format jsonl or csv" in ended.err
    assert enqueued(one, file, "--format", "jsonl").code == exits.OK


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


# --- a row that does not fit: all or nothing ------------------------------------------------------------------


BAD_LINES = [
    (b'{"d": "a", "e": ', "is no JSON"),
    (b'{"d": "a", "e": "b", "f": 1}', "has no column 'f'"),
    (b'{"d": 5, "e": "b"}', "column 'd': 5 is no text"),
    (b'{"d": "a", "e": "%s"}' % (b"x" * 65), "column 'e': 65 characters are too long for it, it holds 64"),
    (b'{"d": null, "e": "b"}', "column 'd': must not be null"),
    (b'{"d": "a"}', "column 'e' is missing"),
    (b'{"d": "a", "e": "b", "priority": 1e99}', "column 'priority'"),
    (b'{"d": "a", "e": "b", "priority": 99999999999}', "range"),
    (b'{"d": "a", "e": "b", "id": 1}', "uplicate"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES, ids=[reason for _, reason in BAD_LINES])
def test_one_bad_line_and_nothing_is_enqueued(jobs: Backend, line: bytes, reason: str) -> None:
    jobs.bare_queue().enqueue({"id": 1, "d": "was there", "e": ""})
    ended = enqueued(jobs, "-", stdin=lines(*good(4, 1)) + b"\n" + line + b"\n" + lines(*good(3)))
    assert (ended.code, ended.out) == (exits.INPUT, "")
    assert "line 6: " in ended.err
    assert reason in ended.err
    assert "nothing is enqueued: correct the line and run this again, or give --rejects FILE" in ended.err
    assert there(jobs) == ["was there"]


def test_the_first_bad_line_is_told_whoever_finds_it(one: Backend) -> None:
    """The database refuses line 2; that line 3 is bad as well is known without it."""
    bad = lines({"d": "a", "e": "b", "priority": 2**40}) + b"{\n"
    assert "line 2: " in enqueued(one, "-", stdin=lines(*good(1)) + bad).err


def test_text_that_a_database_cannot_hold(one: Backend) -> None:
    ended = enqueued(one, "-", stdin=lines(*good(1)) + b'{"d": "\\u0000", "e": ""}\n{"d": "\\ud800", "e": ""}\n')
    assert ended.code == exits.INPUT
    assert "line 2: " in ended.err


def test_csv_tells_the_line_where_the_row_begins(one: Backend, tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text('d,e,priority\n"a\nb",x,1\n"c\nd",x,many\n')
    ended = enqueued(one, file)
    assert ended.code == exits.INPUT
    assert "line 4: column 'priority': 'many' is no whole number" in ended.err


def test_a_header_that_does_not_fit(one: Backend, tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("d,e,colour\na,b,red\n")
    ended = enqueued(one, file, "--rejects", tmp_path / "bad.csv")
    assert ended.code == exits.INPUT
    assert "line 1: the header names 'colour', which is no column of table 'jobs'" in ended.err
    assert ended.err.endswith("correct the line and run this again\n"), "--rejects would help no one"
    assert not (tmp_path / "bad.csv").exists()


# --- chunks --------------------------------------------------------------------------------------------------


def test_chunks_stay_and_the_rest_is_resumed(jobs: Backend, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    rows = good(25)
    file.write_bytes(lines(*rows[:17]) + b"{\n" + lines(*rows[17:]))
    ended = enqueued(jobs, file, "--chunk", "5")
    assert (ended.code, len(jobs.rows())) == (exits.INPUT, 15)
    assert "line 18: is no JSON" in ended.err
    assert "15 rows up to line 15 stay enqueued, nothing after it" in ended.err
    assert "go on with --from-line 16" in ended.err
    file.write_bytes(lines(*rows))
    assert enqueued(jobs, file, "--chunk", "5", "--from-line", "16").out == "10\n"
    assert there(jobs) == [row["d"] for row in rows]


def test_csv_is_resumed_under_its_header(one: Backend, tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text('d,e\na,"1\n2"\nb,"3\n4"\nc,d,e\n')
    ended = enqueued(one, file, "--chunk", "2")
    assert "line 6: has 3 fields" in ended.err
    assert "--from-line 6" in ended.err
    file.write_text(file.read_text().replace("c,d,e", "c,d"))
    assert enqueued(one, file, "--from-line", "6").out == "1\n"
    assert there(one) == ["a", "b", "c"]


@pytest.mark.parametrize("words", [("--chunk", "0"), ("--chunk", "x"), ("--from-line", "0"), ("--format", "xml")])
def test_options_that_make_no_sense(words: tuple[str, str]) -> None:
    ended = claimjobs("enqueue", "-", *words)
    assert ended.code == exits.USAGE
    assert words[0] in ended.err


# --- rejects -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [(), ("--chunk", "3")])
def test_bad_lines_are_set_aside_and_all_others_enqueued(jobs: Backend, tmp_path: Path, chunk: tuple[str, ...]) -> None:
    rejects = tmp_path / "bad.jsonl"
    bad = [line for line, _ in BAD_LINES[:-1]]
    content = b"".join(lines(row) + line + b"\n" for row, line in zip(good(len(bad)), bad, strict=True))
    ended = enqueued(jobs, "-", "--rejects", rejects, *chunk, stdin=content)
    assert (ended.code, ended.out) == (exits.INPUT, f"{len(bad)}\n")
    assert there(jobs) == [row["d"] for row in good(len(bad))]
    assert sorted(rejects.read_bytes().splitlines()) == sorted(bad)
    for number, (_, reason) in enumerate(BAD_LINES[:-1], 1):
        [told] = [line for line in ended.err.splitlines() if f" line {2 * number}: " in line]
        assert reason in told
    assert f"8 rows did not fit: correct {rejects} and enqueue it" in ended.err


def test_rejects_of_csv_have_their_header(one: Backend, tmp_path: Path) -> None:
    file, rejects = tmp_path / "jobs.csv", tmp_path / "bad.csv"
    file.write_bytes(b'd,e\r\na,b\r\nc\r\n"long\r\n",%s' % (b"x" * 70))
    assert enqueued(one, file, "--rejects", rejects).code == exits.INPUT
    assert rejects.read_bytes() == b'd,e\r\nc\r\n"long\r\n",%s\n' % (b"x" * 70)


def test_without_bad_lines_no_file_of_them_is_left(one: Backend, tmp_path: Path) -> None:
    ended = enqueued(one, "-", "--rejects", tmp_path / "bad", stdin=lines(*good(2)))
    assert (ended.code, ended.out, list(tmp_path.iterdir())) == (exits.OK, "2\n", [])


def test_a_file_that_is_there_is_not_overwritten(one: Backend, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(lines(*good(2)))
    ended = enqueued(one, file, "--rejects", file)
    assert (ended.code, there(one), file.read_bytes()) == (exits.USAGE, [], lines(*good(2)))
    assert "give --rejects a new name" in ended.err


def test_rejects_where_nothing_can_be_written(one: Backend, tmp_path: Path) -> None:
    ended = enqueued(one, "-", "--rejects", tmp_path / "no" / "bad", stdin=lines(*good(1)))
    assert ended.code == exits.USAGE
    assert "cannot be written" in ended.err


# --- unique keys ----------------------------------------------------------------------------------------------


def test_what_is_there_already_stays_out(jobs: Backend, tmp_path: Path) -> None:
    jobs.run("CREATE UNIQUE INDEX jobs_d_e ON jobs (d, e)")
    file, rejects = tmp_path / "jobs.jsonl", tmp_path / "bad.jsonl"
    file.write_bytes(lines(*good(3)))
    assert enqueued(jobs, file, "--unique", "d,e").out == "3\n"
    file.write_bytes(lines(*good(5)) + b"{\n" + lines({"d": "x", "e": "x", "priority": 2**40}))
    ended = enqueued(jobs, file, "--unique", "d, e", "--chunk", "2", "--rejects", rejects)
    assert (ended.code, ended.out) == (exits.INPUT, "2\n")
    assert "2 rows enqueued in " in ended.err
    assert " s, 3 were there already\n" in ended.err
    assert there(jobs) == [f"{number:04}" for number in range(5)]


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


@pytest.mark.parametrize(("words", "stay"), [((), 0), (("--chunk", "1000"), 3_000)])
def test_ctrl_c_leaves_nothing_half_done(jobs: Backend, words: tuple[str, ...], stay: int) -> None:
    """The file does not end: its reader is stopped while the command waits for the next line."""
    command = [sys.executable, "-m", "claimjobs", "enqueue", "-", *words]
    environment = {**os.environ, "CLAIMJOBS_URL": jobs.url}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None
        process.stdin.write(lines(*good(3_500)))
        process.stdin.flush()
        if stay:
            wait_for(lambda: len(jobs.rows()) == stay, "the chunks to be committed")
        else:
            wait_for(jobs_uncommitted(jobs), "rows to be on their way")
        process.send_signal(signal.SIGINT)
        process.wait(120)
        out, err = process.communicate()
    assert (process.returncode, out) == (exits.INTERRUPTED, b""), err
    assert b"interrupted" in err
    assert (b"3,000 rows up to line 3000 stay enqueued" if stay else b"nothing is enqueued") in err
    assert len(jobs.rows()) == stay


def jobs_uncommitted(backend: Backend) -> Any:
    """Whether a session other than ours holds a transaction open in the database."""
    return lambda: len(backend.sessions()) > 1


def test_progress_is_a_line_now_and_then(one: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("claimjobs.cli.progress.EVERY", 0.0)
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(lines(*good(2_000)))
    ended = enqueued(one, file)
    assert "claimjobs: 1,000 rows read, 50% of the file\n" in ended.err
    assert "claimjobs: 2,000 rows read, 100% of the file\n" in ended.err
    assert "%" not in enqueued(one, "-", stdin=lines(*good(2_000))).err


def test_progress_is_a_bar_on_a_terminal(one: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("claimjobs.cli.enqueue.watch", Bar)
    ended = enqueued(one, "-", stdin=lines(*good(1_500)))
    assert (ended.code, ended.out) == (exits.OK, "1500\n")


def test_without_a_terminal_there_is_no_bar() -> None:
    assert isinstance(watch(None), Lines)
