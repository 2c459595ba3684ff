"""The tutorial and the page about tests of one's own do what they say, step after step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.backends import Backend
from tests.docs.markdown import ROOT, TESTING, TUTORIAL, blocks
from tests.testing.test_plugin import pytest_of


def test_each_step_of_the_tutorial_says_what_is_shown(database: Backend, tmp_path: Path) -> None:
    [program] = [block for block in blocks(TUTORIAL, "python") if block.file]
    assert program.file
    (tmp_path / program.file).write_text(program.text)
    lines = [line for block in blocks(TUTORIAL, "sh") for line in block.text.splitlines()]
    said = {line: _said(database, tmp_path, line) for line in lines if line.startswith(("claimjobs", "printf"))}
    assert "3 unclaimed" in said["claimjobs status --table letters"]
    [run] = [out for line, out in said.items() if line.startswith("claimjobs start-processing")]
    assert all(f"to {name}@example.org" in run for name in ("ada", "cid"))
    assert "no such address" in said["claimjobs list --state dead --table letters"]
    assert [(row["address"], row["status"]) for row in database.rows("letters")] == [("bob", "unclaimed")]
    [same] = [block for block in blocks(TUTORIAL, "python") if not block.file]
    (tmp_path / "same.py").write_text(same.text)
    assert (_said(database, tmp_path, "python same.py"), database.rows("letters")) == ("to bob\n", [])


def _said(database: Backend, folder: Path, line: str) -> str:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.defpath))
    environment = {**os.environ, "CLAIMJOBS_URL": database.url_without_driver, "PATH": path, "PYTHONPATH": str(ROOT)}
    command = ("sh", "-c", line)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_tests_that_are_shown_pass(database: Backend, tmp_path: Path) -> None:
    [shown] = blocks(TESTING, "python")
    done = pytest_of(tmp_path, shown.text, CLAIMJOBS_TEST_URL=database.url_without_driver)
    assert (done.returncode, "3 passed" in done.stdout) == (0, True), done.stdout + done.stderr
