"""Commands, run in this process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from claimjobs.cli.main import main

APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
"""Before click 8.2 stderr is kept apart on demand only."""


@dataclass(frozen=True)
class Ended:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Everything a person saw."""
        return self.out + self.err


def claimjobs(*words: str | Path, stdin: bytes = b"", env: Mapping[str, str | None] | None = None) -> Ended:
    """Run a command line; an error that is not handled fails the test."""
    given = {"CLAIMJOBS_URL": None, **(env or {})}
    result = CliRunner(**APART).invoke(main, [str(word) for word in words], input=stdin, env=given)
    logging.getLogger().handlers.clear()
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, result.stdout, result.stderr)


def mapped(folder: Path, text: str) -> tuple[str, str]:
    """`--map` with a file of this text."""
    file = folder / "map.toml"
    file.write_text(text)
    return ("--map", str(file))


def shared(what: str) -> str:
    """The lines of `setup-tables` about the tables that all queues of a database share."""
    return "".join(f"claimjobs_{name}: {what}\n" for name in ("owners", "queues", "batches"))
