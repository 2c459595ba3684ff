"""Each command line that is shown can be typed; those written for the manual are, one after the other."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import sqlalchemy as sa

from claimjobs.cli.main import COMMANDS as NAMES
from claimjobs.cli.main import main
from tests.docs.commands import Shown, every, in_prose, options, shown
from tests.docs.markdown import COMMANDS, GUIDE, MANUAL, PAGES, README, ROOT, blocks, prose, written, written_blocks
from tests.docs.shop import Shop

SHOWN = shown()
EVERY = every()


@pytest.mark.parametrize("line", SHOWN, ids=str)
@pytest.mark.each_value("line", "it costs next to nothing")
def test_the_line_parses(line: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("jobs.jsonl", "jobs.csv", "news.csv", "letters.csv", "reports.jsonl", "orders.toml"):
        Path(name).touch()
    rest = [word for word in line.words if word not in ("-v", "--verbose")]
    while rest[0].startswith("--"):  # an option before the command's name, and its value
        del rest[:2]
    [words] = [words for words in EVERY if tuple(rest[: len(words)]) == words]
    with EVERY[words].make_context(words[-1], rest[len(words) :], **main.context_settings):
        pass


def test_every_command_is_told_of_and_shown_on_its_page_and_in_its_own_help() -> None:
    told = written(COMMANDS)
    lines = "\n".join(block.text for block in written_blocks(COMMANDS, "sh"))
    for words in map(" ".join, EVERY):
        assert words in told
        assert any(line.where == f"{words} --help" for line in SHOWN), words
    for name in NAMES:
        assert f"claimjobs {name} " in lines, name


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
@pytest.mark.each_value("words", "it costs next to nothing")
def test_every_option_is_told_of(words: tuple[str, ...]) -> None:
    told = "".join(map(written, MANUAL))
    missing = [option for option in options(words) if option not in told]
    assert missing == []


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.name)
@pytest.mark.each_value("page", "it costs next to nothing")
def test_no_option_is_named_that_is_not_there(page: Path) -> None:
    """Words in code that begin with two dashes are options of some command, or of another program."""
    there = {option for words in EVERY for option in options(words)} | {"--verbose", "--version", "--help"}
    others = {"--wait", "--preload"}
    assert {*re.findall(r"`(--[a-z-]+)", prose(page))} - there - others == set()


TODAY = [page for page in PAGES if page.parent.name != "decisions" and page.name != "CHANGELOG.md"]
"""The pages that do not tell of the past."""


@pytest.mark.parametrize("page", TODAY, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.each_value("page", "it costs next to nothing")
def test_each_command_in_a_sentence_has_the_options_that_it_is_given(page: Path) -> None:
    for line in in_prose(page):
        rest = [word for word in line.words if word not in ("-v", "--verbose")]
        for words in (words for words in EVERY if tuple(rest[: len(words)]) == words):
            assert {word for word in rest if word.startswith("--")} <= options(words), line


@pytest.mark.timeout(400)  # some thirty commands, each a process
@pytest.mark.thorough("every example of the guide, each a program or a command")
def test_the_commands_do_what_they_are_shown_for(any_shop: Shop) -> None:
    """All that are written by hand, page after page in one folder; a run without an end is made to have one."""
    any_shop.open_orders()
    for block in (block for page in (*GUIDE, COMMANDS, README) for block in written_blocks(page, "sh")):
        for line in block.text.splitlines():
            if line.startswith("claimjobs exporter"):
                _run_until_it_serves(any_shop, line)
            elif line.startswith(("claimjobs ", "printf ")):
                _run(any_shop, line.replace("--duration 20", "--duration 1 --consumers 2"))
    assert (any_shop.folder / "emails.sql").read_text().startswith("CREATE TABLE emails")
    assert not (any_shop.folder / "bad.csv").exists()
    assert [row["body"] for row in any_shop.backend.rows("emails")] == ["News"] * 3, "enqueued after the last run"
    assert [row["state"] for row in any_shop.backend.rows("orders")] == [2, 2, 2]
    with any_shop.backend.engine.connect() as connection:
        assert sorted(connection.scalars(sa.text("SELECT order_nr FROM entries"))) == [1, 2, 3]


def _run(shop: Shop, line: str) -> None:
    done = subprocess.run(shop.shell(line), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    if "--json" in line:
        for answer in done.stdout.splitlines():
            json.loads(answer)


def _run_until_it_serves(shop: Shop, line: str) -> None:
    words = shop.shell(f"exec {line.replace('--port 9187', '--port 0')}")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        process.terminate()
        assert (process.wait(timeout=120), "/metrics of table" in said) == (0, True), said


def test_every_target_of_make_that_is_shown_is_there() -> None:
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = [line.split() for page in PAGES for block in blocks(page, "sh") for line in block.text.splitlines()]
    for target in {words[1] for words in lines if words[:1] == ["make"]}:
        assert f"\n{target}:" in targets
