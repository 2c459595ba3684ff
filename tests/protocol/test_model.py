"""The model of the protocol holds, and no rule of it could be left out. `make model` searches farther."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from servers import Unavailable
from tests.protocol import model

pytestmark = pytest.mark.thorough("spin searches the model for two minutes")

needs_a_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to compile the model with")


def searched(claim: str, *defines: str, mishaps: int, of: str = model.CLAIM) -> model.Found:
    try:
        return model.check(claim, *defines, mishaps=mishaps, model=of)
    except Unavailable as error:
        pytest.skip(f"no spin: {error}")


@needs_a_compiler
@pytest.mark.parametrize("defines", model.PROTOCOLS, ids=lambda names: " ".join(names) or "locks")
@pytest.mark.parametrize("claim", [model.SAFETY, model.DONE])
def test_whatever_happens_once(claim: str, defines: tuple[str, ...]) -> None:
    found = searched(claim, *defines, mishaps=1)
    assert not found.errors, found.output
    assert found.states > 1_000


@needs_a_compiler
@pytest.mark.parametrize("defines", model.KEYED, ids=lambda names: " ".join(names) or "limit")
@pytest.mark.parametrize("claim", [model.SAFETY, model.DONE])
def test_limits_and_order_per_key_whatever_happens_once(claim: str, defines: tuple[str, ...]) -> None:
    found = searched(claim, *defines, mishaps=1, of=model.KEYS)
    assert not found.errors, found.output
    assert found.states > 1_000


@needs_a_compiler
@pytest.mark.parametrize("rule", model.RULES, ids=lambda rule: rule.name)
def test_a_rule_that_is_left_out_is_missed(rule: model.Rule) -> None:
    found = searched(rule.violates, rule.left_out, *rule.where, mishaps=2, of=rule.model)
    assert found.errors, found.output


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    """`make chaos` begins with it: nobody should wait for minutes, or read a traceback, to learn that."""
    command = [sys.executable, "-m", "tests.protocol.model"]
    ended = subprocess.run(
        command, env={**os.environ, "PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "the model of the protocol cannot be searched: "
        "no gcc to compile the model with: run `apt-get install gcc libc6-dev`\n"
    )
