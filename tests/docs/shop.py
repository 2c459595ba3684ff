"""The shop of the guide: its files as they stand there, a stub for what it sends with, and jobs to work on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.contrib.assignments import Assignments
from tests.backends import Backend
from tests.docs.markdown import COMMANDS, GUIDE, README, ROOT, blocks

STUB = """\
sent = []
last = lambda: None  # what to do when all are sent

def send(address, body):
    sent.append(address)
    if len(sent) == 20:
        last()
"""

SOME_MAIL = [{"address": f"{letter}{n}@example.org", "body": "hello"} for letter in "ab" for n in range(10)]


class Shop:
    """A folder with the files of the guide and of the page of commands in it, and its tables with twenty emails."""

    def __init__(self, backend: Backend, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backend = backend
        self.folder = folder
        self._write()
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("CLAIMJOBS_URL", backend.url_without_driver)
        monkeypatch.setenv("CLAIMJOBS_REPLICA_URL", backend.url_without_driver)
        monkeypatch.setattr(sys, "path", list(sys.path))
        for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
            monkeypatch.delitem(sys.modules, name)

    def _write(self) -> None:
        package = self.folder / "shop"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "mail.py").write_text(STUB)
        toml = [block for page in GUIDE for block in blocks(page, "toml")]
        python = [block for page in (*GUIDE, COMMANDS, README) for block in blocks(page, "python")]
        for block in (*python, *toml):
            if block.file:
                (self.folder / block.file).write_text(block.text)
        (self.folder / "jobs.jsonl").write_text('{"d": "a", "e": "b"}\n' * 3)
        (self.folder / "jobs.csv").write_text("d,e\n" + "a,b\n" * 3)
        (self.folder / "news.csv").write_text("address,body\n" + "ada@example.org,News\n" * 3)

    def open(self) -> None:
        """Make the table of emails, and enqueue some."""
        emails = self.load("models").emails
        self.backend.make(emails)
        self.backend.queue(emails).enqueue(SOME_MAIL)
        self.open_orders()

    def open_orders(self) -> None:
        """Make the table that the shop has already, and what is written for it; some orders."""
        for block in (block for page in GUIDE for block in blocks(page, "sql")):
            self.backend.run(block.text.strip().removesuffix(";"))
        self.backend.run("CREATE TABLE entries (order_nr INTEGER NOT NULL)")
        self.backend.run("INSERT INTO orders (nr) VALUES (1), (2), (3)")

    def load(self, module: str) -> Any:
        """A module of the shop."""
        __import__(f"shop.{module}")
        return sys.modules[f"shop.{module}"]

    def run(self, text: str, name: str) -> dict[str, Any]:
        """Run a block as a program; what it left is closed. Its queue is stopped when all mail is sent."""
        found: dict[str, Any] = {"__name__": "__main__"}
        mail = self.load("mail")
        mail.sent.clear()

        def stop() -> None:
            found["queue"].stop()

        mail.last = stop
        try:
            exec(compile(text, name, "exec", dont_inherit=True), found)
        finally:
            for left in found.values():
                _close(left)
        return found

    @property
    def sent(self) -> list[str]:
        """The addresses that mail went to."""
        return list(self.load("mail").sent)

    def shell(self, line: str) -> tuple[str, ...]:
        """A command line for `sh -c`, with the claimjobs that is tested."""
        path = f"PATH={Path(sys.executable).parent}:{os.defpath}"
        return ("sh", "-c", f"export {path} PYTHONPATH={ROOT}; {line}")


def _close(left: Any) -> None:
    if isinstance(left, (Assignments, Queue)):
        left.close()
        left.engine.dispose()
    elif isinstance(left, sa.Engine):
        left.dispose()
