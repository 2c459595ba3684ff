"""Standard streams that are closed, full, or cannot hold the text, of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from claimjobs.cli import exits
from tests.backends import Backend
from tests.conformance.jobs import jobs

FULL = Path("/dev/full")


def shell(line: str, backend: Backend, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell, in which `claimjobs` is ours."""
    env = {**os.environ, "CLAIMJOBS_URL": backend.url, **environment}
    words = ["sh", "-c", line.replace("claimjobs", f"{sys.executable} -m claimjobs")]
    return subprocess.run(words, capture_output=True, text=True, env=env, timeout=120, check=False)


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", ["--help", "status", "status --json", "list --state dead", "--version"])
def test_an_output_that_is_full(anywhere: Backend, words: str) -> None:
    anywhere.make()
    anywhere.insert("jobs", jobs(1, status="dead"))
    ended = shell(f"claimjobs {words} > {FULL}", anywhere)
    assert ended.returncode == exits.FAILURE
    assert ended.stderr.splitlines() == [
        "claimjobs: standard input or an output cannot be used (No space left on device): check where it is redirected"
    ]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&-"])
def test_an_output_that_is_closed(anywhere: Backend, closed: str) -> None:
    anywhere.make()
    ended = shell(f"claimjobs status {closed}", anywhere)
    assert (ended.returncode, ended.stderr) == (exits.OK, "")


def test_a_consumer_has_no_connection_in_the_place_of_a_closed_stream(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.make()
    anywhere.insert("jobs", jobs(1))
    (tmp_path / "streams.py").write_text(
        "import os\n\n\ndef handle(job):\n    nowhere = os.stat(os.devnull)\n"
        "    found = [os.path.samestat(os.fstat(number), nowhere) for number in range(3)]\n"
        "    open('found', 'w').write(str(found))\n"
    )
    run = "claimjobs start-processing streams:handle --consumers 1 --drain --hold transaction <&- >&- 2>&-"
    assert shell(f"cd {tmp_path} && {run}", anywhere).returncode == exits.OK
    assert (tmp_path / "found").read_text() == "[True, True, True]"


def test_an_input_that_is_closed_is_not_taken_for_an_empty_one(anywhere: Backend) -> None:
    anywhere.make()
    ended = shell("claimjobs enqueue - <&-", anywhere)
    assert ended.returncode == exits.FAILURE
    assert "cannot be used (Bad file descriptor)" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_locale_that_cannot_hold_the_text(anywhere: Backend) -> None:
    anywhere.make()
    anywhere.insert("jobs", jobs(1, status="dead", last_error="☃ x"))
    ended = shell("claimjobs list --state dead", anywhere, PYTHONIOENCODING="latin-1")
    assert (ended.returncode, ended.stderr) == (exits.OK, "")
    assert "\\u2603 x" in ended.stdout
