"""`claimjobs watch` on a terminal: what is drawn there, and what its keys do."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from claimjobs.cli import exits
from tests.backends import DEADLINE, Backend, poll
from tests.cli.command import claimjobs
from tests.cli.test_dead import dead_jobs, states

pytestmark = pytest.mark.one_server("a terminal is the same on each")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A terminal of 100 columns, with the command on it."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process, self._master = process, master
        self._said = b""

    @property
    def local_modes(self) -> int:
        """Whether it shows what is typed, for one."""
        return int(termios.tcgetattr(self._master)[3])

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def shows(self, words: str) -> bool:
        """Whether it has shown these words since it was asked last."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                self._said += os.read(self._master, 65_536)
            except OSError:  # it has ended
                break
        found = words in ESCAPES.sub("", self._said.decode(errors="ignore"))
        if found:
            self._said = b""
        return found

    def wait_for(self, words: str) -> None:
        poll(lambda: self.shows(words), DEADLINE)


@contextmanager
def watching(backend: Backend, *words: str, **more: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    terminal = {"COLUMNS": "100", "LINES": "30", "TERM": "xterm"}
    environment = {**os.environ, "CLAIMJOBS_URL": backend.url, **terminal, **more}
    command = [sys.executable, "-m", "claimjobs", "watch", "--every", "0.2", *words]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_keys_pause_resume_retry_cancel_and_end(anywhere: Backend) -> None:
    dead_jobs(anywhere, "no such street", "Timeout")
    with watching(anywhere) as terminal:
        terminal.wait_for("no such street")
        terminal.type("p")
        terminal.wait_for("for this reason")
        terminal.type("deploy\x7fy\n")
        terminal.wait_for("paused for")
        assert anywhere.bare_queue().overview().pause_reason == "deploy"
        terminal.type("r\n")
        terminal.wait_for("goes on")
        terminal.type("t1\n")
        terminal.wait_for("1 retried")
        terminal.type("tall\n")
        terminal.wait_for("1 retried")
        assert states(anywhere) == dict.fromkeys((1, 2, 3), "unclaimed")
        terminal.type("c3 x\n")
        terminal.wait_for("is no key of jobs")
        terminal.type("c\x1b")
        terminal.wait_for("q quit")
        terminal.type("c2 3\n")
        terminal.wait_for("2 cancelled")
        assert states(anywhere) == {1: "unclaimed", 2: "dead", 3: "dead"}
        anywhere.run("ALTER TABLE jobs RENAME TO elsewhere")
        terminal.wait_for("cannot be read")
        anywhere.run("ALTER TABLE elsewhere RENAME TO jobs")
        terminal.type("q")
        assert terminal.process.wait(DEADLINE) == exits.OK


def test_an_id_is_typed_as_it_is_shown_and_one_of_no_job_changes_nothing(anywhere: Backend) -> None:
    anywhere.make()
    columns = "status text NOT NULL DEFAULT 'unclaimed', owner_id int, owner_date timestamptz, attempts int DEFAULT 0"
    anywhere.run(f"CREATE TABLE texts (id text PRIMARY KEY, {columns})")
    anywhere.run("INSERT INTO texts (id, status) VALUES ('a b', 'dead'), ('a', 'dead'), ('b', 'dead')")
    with watching(anywhere, "--table", "texts") as terminal:
        terminal.wait_for("'a b'")
        terminal.type("ta c\n")
        terminal.wait_for("no row has the key c")
        terminal.type("t'a b\n")
        terminal.wait_for("No closing quotation")
        terminal.type("t'a b'\n")
        terminal.wait_for("1 retried")
        terminal.type("qx")
        assert terminal.process.wait(DEADLINE) == exits.OK
    assert [row["id"] for row in anywhere.rows("texts") if row["status"] != "dead"] == ["a b"]


def test_sigterm_restores_the_terminal(anywhere: Backend) -> None:
    dead_jobs(anywhere, "no such street")
    with watching(anywhere) as terminal:
        before = terminal.local_modes
        terminal.wait_for("no such street")
        assert terminal.local_modes != before
        terminal.process.terminate()
        assert terminal.process.wait(DEADLINE) == exits.OK
        assert terminal.local_modes == before


def test_after_the_last_reading_it_ends_with_the_answer_to_a_question(anywhere: Backend) -> None:
    dead_jobs(anywhere, "no such street")
    with watching(anywhere, "--every", "60", "--times", "2") as terminal:
        terminal.wait_for("no such street")
        terminal.type("p")
        terminal.wait_for("for this reason")
        terminal.type("d")
        terminal.wait_for("none, Esc: do not): d")
        terminal.type("\x1b")
        assert terminal.process.wait(DEADLINE) == exits.OK


def test_a_character_that_the_locale_has_not_ends_nothing(anywhere: Backend) -> None:
    dead_jobs(anywhere, "no such street")
    with watching(anywhere, PYTHONIOENCODING="ascii:surrogateescape") as terminal:  # as with LC_ALL=C
        terminal.wait_for("1 due \\xb7 the oldest")
        terminal.type("q")
        assert terminal.process.wait(DEADLINE) == exits.OK


def test_on_a_terminal_that_can_draw_nothing_again_it_prints_lines(anywhere: Backend) -> None:
    dead_jobs(anywhere, "no such street")
    with watching(anywhere, "--times", "2", TERM="dumb") as terminal:
        terminal.wait_for("jobs: 1 unclaimed, 0 claimed, 1 dead")
        assert terminal.process.wait(DEADLINE) == exits.OK


def test_without_a_terminal_it_prints_lines(database: Backend) -> None:
    dead_jobs(database, "no such street")
    ended = claimjobs("watch", "--times", "2", "--every", "0.1", "--url", database.url)
    assert (ended.code, ended.err) == (exits.OK, "")
    says = r"[\d:]{8} jobs: 1 unclaimed, 0 claimed, 1 dead, 1 due, the oldest has been due for \d+ s, owners: 1 awake"
    assert re.fullmatch(f"{says}\n{says}\n", ended.out), ended.out
