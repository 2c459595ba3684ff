"""`--help`: quick, complete, and its examples run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import claimjobs as package
from claimjobs.cli import exits
from claimjobs.cli.main import COMMANDS, main
from tests.backends import Backend
from tests.cli.command import claimjobs

RUN_ELSEWHERE = {"start-processing", "exporter", "watch"}
"""Commands whose examples do not end by themselves. Neither does one with `--every`."""
ASKS = "claimjobs adopt orders"
"""It ends on a terminal only: tests/cli/test_adopt.py answers."""


def words_of_all() -> list[tuple[str, ...]]:
    """Every command, and in place of a group each of its own."""
    found: list[tuple[str, ...]] = []
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        found += [(name, own) for own in command.commands] if isinstance(command, click.Group) else [(name,)]
    return found


WORDS = words_of_all()


def examples(*words: str) -> list[str]:
    text = claimjobs(*words, "--help").out
    return [
        line.strip()
        for line in text.partition("Examples:")[2].partition("Options:")[0].splitlines()
        if "claimjobs " in line
    ]


EXAMPLES = [
    line
    for words in WORDS
    if words[0] not in RUN_ELSEWHERE
    for line in examples(*words)
    if "--every" not in line and line != ASKS
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples take for granted."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "jobs.jsonl").write_text('{"id": 1, "d": "urgent", "e": "x"}\n{"id": 2, "d": "b", "e": "y"}\n')
    (folder / "jobs.csv").write_text("d,e\na,b\n")
    (folder / "shop").mkdir()
    (folder / "shop" / "models.py").write_text(
        "import sqlalchemy as sa\nfrom claimjobs import job_table\n"
        "Email = job_table('emails', sa.MetaData(), sa.Column('address', sa.String(80), nullable=False))\n"
    )
    return folder


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_runs(anywhere: Backend, folder: Path, line: str) -> None:
    anywhere.make()
    if line.startswith("claimjobs dead"):
        anywhere.insert("jobs", [{"d": "a", "e": "b", "status": "dead", "last_error": "Timeout"} for _ in range(2)])
    if line.startswith(("claimjobs list", "claimjobs show", "claimjobs cancel")):
        states = {1: "claimed", 2: "unclaimed", 17: "unclaimed", 18: "unclaimed", 19: "dead"}
        rows = [{"id": key, "d": "a", "e": "b", "status": state} for key, state in states.items()]
        anywhere.insert("jobs", [{**row, "last_error": "Timeout"} for row in rows])
    if "--unique" in line:
        anywhere.run("CREATE UNIQUE INDEX once ON jobs (d, e)")
    if "--table emails" in line:
        anywhere.make("emails")
    if line.startswith("claimjobs adopt"):
        anywhere.run(f"CREATE TABLE {line.split()[2]} (nr INTEGER PRIMARY KEY, state VARCHAR(10) NOT NULL)")
    environment = {
        **os.environ,
        "CLAIMJOBS_URL": anywhere.url,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == exits.OK, done.stderr
    assert done.stdout or ">" in line
    assert not (folder / "bad.csv").exists()


def test_there_are_examples_of_every_command() -> None:
    assert all(examples(*words) for words in WORDS)
    assert len(EXAMPLES) > 8


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
@pytest.mark.each_value("words", "it costs next to nothing")
def test_every_command_has_help(words: tuple[str, ...]) -> None:
    ended = claimjobs(*words, "-h")
    assert ended.code == exits.OK
    assert "--url URL" in ended.out
    # An upgrade is about all tables of a database, and the table to adopt is no queue yet.
    assert ("--table NAME | MODULE:ATTRIBUTE" in ended.out) == (words not in {("upgrade-tables",), ("adopt",)})


def test_every_exit_code_is_told() -> None:
    text = claimjobs("--help").out
    codes = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert codes == {int(code) for code in re.findall(r"^ +(\d+)  \w", text, re.MULTILINE)} == set(exits.MEANINGS)


def test_help_is_there_at_once_for_it_imports_no_database() -> None:
    code = "import json, sys; sys.argv[1:] = ['--help']\ntry:\n from claimjobs.cli import main; main()\n"
    code += "except SystemExit: print(json.dumps(list(sys.modules)))"
    # Coverage, if it measures children, imports multiprocessing in each.
    alone = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run([sys.executable, "-c", code], env=alone, capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert not loaded & {"sqlalchemy", "rich", "psycopg", "pymysql", "multiprocessing"}


def test_a_shell_completes_commands() -> None:
    asked = {"_CLAIMJOBS_COMPLETE": "bash_complete", "COMP_WORDS": "claimjobs st", "COMP_CWORD": "1"}
    command = Path(sys.executable).with_name("claimjobs")
    done = subprocess.run([command], env={**os.environ, **asked}, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["plain,start-processing", "plain,status"]


def test_the_version() -> None:
    assert claimjobs("--version").out == f"claimjobs, version {package.__version__}\n"


def test_all_public_names_are_there_though_imported_late() -> None:
    assert {name for name in package.__all__ if getattr(package, name) is not None} == set(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing
