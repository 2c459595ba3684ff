"""The README is short, and its program does what is shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.backends import Backend
from tests.docs.markdown import README, blocks

MOST_WORDS = 700
MOST_LINES = 20

[PROGRAM] = [block for block in blocks(README, "python") if not block.file]
[OUTPUT] = blocks(README, "text")


def test_it_is_read_in_three_minutes() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= MOST_WORDS
    assert len(PROGRAM.text.splitlines()) <= MOST_LINES


def test_its_program_prints_what_is_shown_each_time(database: Backend, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.text)
    environment = {**os.environ, "CLAIMJOBS_URL": database.url_without_driver}
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert (run.returncode, run.stdout) == (0, OUTPUT.text), run.stderr
        assert re.fullmatch(r"(job \d+ is dead: it failed: no such address\n){3}", run.stderr), run.stderr
