"""What is in the wheel, and that it works where nothing else of this repository is."""

from __future__ import annotations

import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import claimjobs
from tests.authorities import remembered
from tests.packaging.conftest import REPOSITORY, Built, contents

pytestmark = pytest.mark.thorough("it builds and installs a package, which takes half a minute")

DIALECTS = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "dialects").rglob("*.py")}


def test_the_dialects_are_real_files_of_the_package(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        found = [entry for entry in wheel.infolist() if entry.filename.startswith("claimjobs/dialects/")]
        assert {entry.filename.removeprefix("claimjobs/") for entry in found} == DIALECTS
        assert all(stat.S_ISREG(entry.external_attr >> 16) for entry in found)
        for entry in found:
            source = REPOSITORY / entry.filename.removeprefix("claimjobs/")
            assert wheel.read(entry) == source.read_bytes()


def test_nothing_else_is_at_the_top(built: Built) -> None:
    top = {name.split("/")[0] for name in contents(built.wheel)}
    assert top == {"claimjobs", f"claimjobs-{claimjobs.__version__}.dist-info"}


def test_it_says_that_it_is_typed(built: Built) -> None:
    assert "claimjobs/py.typed" in contents(built.wheel)


def test_the_sdist_holds_what_the_wheel_is_made_of(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {f"claimjobs/{name}" for name in DIALECTS} <= names
    assert not {name.split("/")[0] for name in names} & {"tests", "servers", "benchmarks", "examples"}


def test_the_wheel_of_the_sdist_is_the_same(built: Built) -> None:
    assert contents(built.wheel_of_sdist) == contents(built.wheel)


@pytest.fixture(scope="module")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment that holds the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    programs = folder / "bin"
    run(programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", built.wheel)
    return programs


def test_the_command_is_there(environment: Path) -> None:
    assert claimjobs.__version__ in run(environment / "claimjobs", "--version")
    assert claimjobs.__version__ in run(environment / "python", "-m", "claimjobs", "--version")


def test_the_library_is_there(environment: Path) -> None:
    program = "from claimjobs import *; import claimjobs.dialects.mysql.dialect as m; print(m.__file__)"
    found = Path(run(environment / "python", "-W", "error", "-c", program).strip())
    assert found.is_relative_to(environment.parent)
    assert found.match("claimjobs/dialects/mysql/dialect.py")


def test_there_is_no_second_copy_of_the_dialects(environment: Path) -> None:
    program = "import importlib.util as u; print(u.find_spec('dialects'), u.find_spec('tests'))"
    assert run(environment / "python", "-c", program) == "None None\n"


def test_every_driver_came_along(environment: Path) -> None:
    urls = ["mysql://localhost/x", "mariadb://localhost/x", "postgresql://localhost/x"]
    program = f"from claimjobs import Queue; print([Queue(url).engine.driver for url in {urls}])"
    assert run(environment / "python", "-c", program) == "['pymysql', 'pymysql', 'psycopg']\n"


def test_without_the_extra_the_next_step_is_said(environment: Path) -> None:
    done = subprocess.run(
        [environment / "claimjobs", "status"], capture_output=True, text=True, check=False, env=_bare(), cwd="/"
    )
    assert done.returncode != 0
    assert "pip install 'claimjobs[embedded]'" in done.stderr


def run(*command: str | Path) -> str:
    """What a command prints, run where the repository is out of sight."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_bare(), cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def _bare() -> dict[str, str]:
    hidden = ("CLAIMJOBS_URL", "PYTHONPATH", "VIRTUAL_ENV")
    return {name: value for name, value in remembered().items() if name not in hidden}
