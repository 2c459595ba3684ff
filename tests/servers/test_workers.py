"""Workers of pytest-xdist have servers of their own, and hand their names to the summary."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough("it starts servers of its own, to see how they start and end")

ROOT = Path(__file__).parents[2]
ON_POSTGRES = "def test_it(anywhere):\n    assert anywhere.sessions() == []\n"


def test_the_summary_names_the_servers_of_the_workers(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(ON_POSTGRES)
    options = ["-p", "tests.conftest", "-n", "1", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^server: postgres \d+", done.stdout, re.MULTILINE)) == 1
