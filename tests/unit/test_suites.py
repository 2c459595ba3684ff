"""Which tests a suite has: small files of tests, collected as pytest does it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = """
import pytest

SERVERS = ["postgres", "mysql", "mariadb"]
each_server = pytest.mark.parametrize("backend", SERVERS)
numbers = pytest.mark.parametrize("n", [1, 2, pytest.param(3, marks=pytest.mark.pair("three is odd"))])

@each_server
@numbers
def test_pairs(backend, n): pass

@each_server
@numbers
@pytest.mark.each_value("n", "each is a case")
def test_values(backend, n): pass

@each_server
@numbers
@pytest.mark.mariadb("it differs")
@pytest.mark.core
def test_core(backend, n): pass

@each_server
@pytest.mark.thorough("it takes long")
def test_long(backend): pass

@each_server
@pytest.mark.requires("native uuid")
def test_uuid(backend): pass

@pytest.mark.parametrize("backend", ["mariadb"])
def test_there_alone(backend): pass

@numbers
def test_no_server(n): pass
"""
OF_TEST = {
    "test_pairs": "1-mysql 1-postgres 3-mysql 3-postgres",
    "test_values": "1-postgres 2-mysql 3-mysql 3-postgres",
    "test_core": "1-mariadb 1-mysql 1-postgres 3-mariadb 3-mysql 3-postgres",
    "test_uuid": "postgres",
    "test_no_server": "1 3",
}
OF_REST = {
    "test_pairs": "1-mariadb 2-mysql 2-postgres 3-mariadb",
    "test_core": "2-mysql 2-postgres",
    "test_values": "1-mariadb 1-mysql 2-postgres 3-mariadb",
    "test_long": "mariadb mysql postgres",
    "test_uuid": "mariadb",
    "test_there_alone": "mariadb",
    "test_no_server": "2",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("suites")
    (made / "test_it.py").write_text(FILE)
    return made


def collected(folder: Path, *words: str) -> dict[str, str]:
    """The parameters of each function that are collected, in alphabetical order."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.suites", "--collect-only", "-q", "--rootdir", str(folder)]
    done = subprocess.run(
        [*command, "-c", "/dev/null", *words, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if "::" in line:
            function, _, parameters = line.partition("::")[2].partition("[")
            found.setdefault(function, []).append(parameters.rstrip("]"))
    return {function: " ".join(sorted(each)) for function, each in found.items()}


def test_each_function_is_run_once_on_two_servers_and_what_a_marker_names(folder: Path) -> None:
    assert collected(folder, "--suite", "test") == OF_TEST


def test_the_rest_and_the_first_are_all_that_is_worth_a_run(folder: Path) -> None:
    assert collected(folder, "--suite", "rest") == OF_REST


def test_after_each_edit_the_core_runs_on_one_server(folder: Path) -> None:
    assert collected(folder, "--suite", "check") == {"test_core": "1-postgres 3-postgres"}


def test_one_server_of_a_suite(folder: Path) -> None:
    assert collected(folder, "--suite", "test", "--server", "mariadb") == {"test_core": "1-mariadb 3-mariadb"}
    assert collected(folder, "--suite", "test", "--server", "none") == {"test_no_server": "1 3"}
