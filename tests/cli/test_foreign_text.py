"""What others wrote (a payload, an error, a reason, a host's name) does nothing to a terminal, and forges no line."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path

import pytest
import sqlalchemy as sa
from rich.console import Console

from claimjobs import cli, job_table
from claimjobs.cli import exits
from claimjobs.cli.console import say
from claimjobs.cli.screen import Screen, drawn
from claimjobs.key_text import visible
from claimjobs.log_records import TextFormatter
from claimjobs.report import Report
from claimjobs.workers.run import Snapshot
from tests.backends import Backend
from tests.cli.command import claimjobs

HOSTILE = "\x1b]0;title\x07\x1b[2J[/red][bold]x :boom:\r\nERROR: forged\t\x9b31m\u2028\u202eend"
SHOWN = r"\x1b]0;title\x07\x1b[2J[/red][bold]x :boom:\r\nERROR: forged\t\x9b31m\u2028\u202eend"
"""The same as a person sees it, on one line."""
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]|^ERROR: forged", re.MULTILINE)
NAMED = job_table("named", sa.MetaData(), sa.Column("id", sa.String(200), primary_key=True), sa.Column("d", sa.Text))


def harmless(text: str) -> str:
    assert not ACTING.search(text), ACTING.search(text)
    return text


def test_what_acts_on_a_terminal_is_visible_and_everything_else_stays() -> None:
    assert visible(HOSTILE) == SHOWN
    assert visible("\ud800") == r"\ud800"
    for text in ("Grüße, «né»\u00a0!", "\u05e9\u05dc\u05d5\u05dd", "👩\u200d🔧", r"C:\new", ""):
        assert visible(text) == text


def test_status_shows_a_reason_and_a_host_whatever_is_in_them(
    anywhere: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: HOSTILE)
    queue = anywhere.queue()
    assert queue.owner_id
    queue.pause(HOSTILE)
    ended = claimjobs("status", "--url", anywhere.url)
    assert ended.code == exits.OK
    assert harmless(ended.out).count(SHOWN) == 2
    found = json.loads(claimjobs("status", "--json", "--url", anywhere.url).out)
    assert (found["pause_reason"], found["owners"][0]["host"]) == (HOSTILE, HOSTILE)


def test_dead_jobs_are_a_line_each_and_json_is_exact(anywhere: Backend) -> None:
    queue = anywhere.queue(NAMED)
    queue.enqueue([{"id": HOSTILE, "d": HOSTILE}, {"id": "plain", "d": "one\ntwo"}])
    with queue.claim() as batch:
        for job in batch.jobs:
            batch.fail(job, HOSTILE, retry=False)
    words = ("--table", "named", "--url", anywhere.url)
    lines = harmless(claimjobs("list", "--state", "dead", *words).out).splitlines()
    assert sorted(line.split("\t")[0] for line in lines) == sorted([repr(HOSTILE), "plain"])
    assert all(line.endswith(r"\u202eend") for line in lines)
    shown = harmless(claimjobs("show", HOSTILE, "plain", *words).out)
    assert "d                one\n                 two\n" in shown
    assert r"\x1b]0;title\x07\x1b[2J[/red][bold]x :boom:\r" + f"\n{' ' * 17}ERROR: forged" in shown
    found = [json.loads(line) for line in claimjobs("list", "--state", "dead", "--json", *words).out.splitlines()]
    assert {job["id"]: job["last_error"] for job in found} == {HOSTILE: HOSTILE, "plain": HOSTILE}
    assert claimjobs("dead", "retry", HOSTILE, *words).out == "1\n"


def record(**fields: object) -> logging.LogRecord:
    given = {"levelname": "ERROR", "levelno": logging.ERROR, "msg": "job %s failed: %s", "args": (HOSTILE, HOSTILE)}
    try:
        int(HOSTILE)
    except ValueError as error:
        error.args = (HOSTILE,)  # not its repr, as int says it
        return logging.makeLogRecord({**given, **fields, "exc_info": (ValueError, error, error.__traceback__)})
    raise AssertionError


def test_a_record_of_the_text_log_is_one_line_and_its_traceback_is_indented() -> None:
    first, *rest = harmless(TextFormatter().format(record())).split("\n")
    assert first == f"ERROR: job {SHOWN} failed: {SHOWN}"
    assert rest[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in rest)


def test_the_live_table_reads_no_markup_in_a_record_or_a_reason() -> None:
    console = Console(file=io.StringIO(), width=500)
    with Screen(terminal=console):
        logging.getLogger("shop").handle(record(name="shop", markup=True))
    logging.getLogger().handlers.clear()
    figures = Snapshot("paused", 1.0, (), (), Report(), waiting=None, rate=0.0, pause_reason=HOSTILE)
    console.print(drawn(figures))
    assert isinstance(console.file, io.StringIO)
    assert harmless(console.file.getvalue()).count(SHOWN) == 3  # twice in the record, once in the reason


def test_only_the_first_line_of_a_message_looks_like_ours(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"line 3: {HOSTILE}")
    assert capsys.readouterr().err == "claimjobs: line 3: " + SHOWN.replace(r"\n", "\n    ") + "\n"


def test_commands_write_to_a_terminal_through_one_module() -> None:
    for module in Path(cli.__file__).parent.glob("*.py"):
        writes = re.findall(r"click\.echo\(|click\.confirm\(|(?<![._])print\(|from rich\.logging", module.read_text())
        assert not writes or module.name == "console.py", (module.name, writes)
