"""The guards of the layout really guard: each is shown something wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import REPOSITORY

LINK = REPOSITORY / "claimjobs" / "dialects"

# --- the symlink -------------------------------------------------------------------------------------------


def test_the_dialects_are_real_at_the_top_and_linked_into_the_package() -> None:
    assert os.readlink(LINK) == "../dialects"
    assert (REPOSITORY / "dialects").is_dir()
    assert not (REPOSITORY / "dialects").is_symlink()


def test_git_holds_the_link_as_a_link() -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("this is no checkout of git")
    listed = subprocess.run(
        ["git", "ls-files", "--stage", "claimjobs/dialects"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert listed.stdout.startswith("120000 ")
    assert len(listed.stdout.splitlines()) == 1


# --- ruff --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["claimjobs/new.py", "dialects/new.py", "tests/new.py", "examples/new.py"])
@pytest.mark.parametrize("line", ["import dialects", "import dialects.mysql", "from dialects import mysql"])
def test_a_bare_import_of_dialects_is_refused(file: str, line: str) -> None:
    assert "TID251" in _ruff(file, line)


def test_the_import_through_the_package_is_not() -> None:
    assert "TID251" not in _ruff("claimjobs/new.py", "from claimjobs.dialects import mysql")


def _ruff(file: str, content: str) -> str:
    """What ruff says of a file, with the settings of the repository."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--stdin-filename", file, "-"]
    done = subprocess.run(command, input=content + "\n", cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


# --- import-linter -----------------------------------------------------------------------------------------

LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package and its contracts, to be spoilt."""
    shutil.copytree(REPOSITORY / "claimjobs", tmp_path / "claimjobs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / ".importlinter", tmp_path)
    return tmp_path


def test_the_contracts_are_kept(copy: Path) -> None:
    code, said = _lint(copy)
    assert code == 0, said


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("job.py", "import claimjobs.queue.queue", "Imports point down"),
        ("queue/queue.py", "import claimjobs.cli", "Imports point down"),
        ("dialects/base.py", "import claimjobs.table.definitions", "Imports point down"),
        (
            "dialects/mysql/dialect.py",
            "import claimjobs.dialects.postgres",
            "MySQL and Postgres know nothing of each other",
        ),
        (
            "dialects/postgres/sessions.py",
            "import claimjobs.dialects.mysql",
            "MySQL and Postgres know nothing of each other",
        ),
        ("claim/one_statement.py", "import claimjobs.claim.locking", "A claim strategy knows no other one"),
        ("claim/search.py", "import claimjobs.settle.settler", "Imports point down"),
        ("queue/consumer.py", "import claimjobs.contrib.replica", "Imports point down"),
        ("stray.py", "", "Imports point down"),  # a module that stands in no layer
    ],
)
def test_a_violation_is_refused(copy: Path, file: str, line: str, contract: str) -> None:
    with (copy / "claimjobs" / file).open("a") as module:
        module.write(f"\n{line}\n")
    code, said = _lint(copy)
    assert code == 1, said
    assert any(contract in text and "BROKEN" in text for text in said.splitlines()), said


def _lint(copy: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", LINT],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
