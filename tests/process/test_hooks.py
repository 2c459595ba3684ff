"""Functions of the user's beside the handler: hooks of failed jobs, and the setup of each consumer process."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from claimjobs.cli import exits
from tests.backends import Backend
from tests.process.command import HANDLERS, noted, rows, started, statuses
from tests.process.dear import dear
from tests.process.work import AUDIT

pytestmark = pytest.mark.one_server("the processes are the same on each")

HOOKS = ("--on-retry", f"{HANDLERS}:note_failed", "--on-dead", f"{HANDLERS}:note_failed")


def processes(backend: Backend, what: str) -> Counter[int]:
    """How often each process noted this."""
    with backend.engine.connect() as connection:
        return Counter(connection.scalars(sa.select(AUDIT.c.pid).where(AUDIT.c.what == what)))


@dear
def test_hooks_are_called_for_each_failed_job_also_after_a_death(database: Backend, tmp_path: Path) -> None:
    database.make()
    database.insert("jobs", [*rows(3, d="bad", attempts=24), *rows(1, d="worse"), *rows(1, d="deadly", attempts=24)])
    options = (f"{HANDLERS}:fail_or_die", "--consumers", "1", "--batch-size", "1", "--drain", *HOOKS)
    with started(database, tmp_path, *options) as command:
        code, _, err = command.end()
    assert code == exits.OK
    assert set(noted(database, "failed")) == {1, 2, 3, 4, 5}
    assert "ERROR: on_retry failed for job 4: RuntimeError: the hook fails, too: bad payload\n    Traceback" in err
    assert "ERROR: job 5 is dead: it failed: owner " in err
    assert statuses(database) == ["dead", "dead", "dead", "unclaimed", "dead"]


@pytest.mark.parametrize("option", ["--on-dead", "--setup"])
@dear
def test_a_function_that_does_not_fit_is_found_out_before_the_run(
    anywhere: Backend, tmp_path: Path, option: str
) -> None:
    for name, why in (
        ("nothing", "has no 'nothing'"),
        ("AUDIT", "is no function"),
        ("note_job", "is called with ("),
    ):
        with started(anywhere, tmp_path, f"{HANDLERS}:note_job", option, f"{HANDLERS}:{name}") as command:
            code, _, err = command.end()
        assert (code, why in err, err.count("\n")) == (exits.INPUT, True, 1), err


@pytest.mark.parametrize("end", ["drain", "signal", "cancel"])
def test_each_consumer_enters_its_setup_once_and_leaves_it(database: Backend, tmp_path: Path, end: str) -> None:
    database.queue().enqueue(rows(40))
    handler = f"{HANDLERS}:{'note_batch' if end == 'drain' else 'wait_for_file'}"
    options = (handler, "--setup", f"{HANDLERS}:entering", "--consumers", "2", "--batch-size", "10")
    with started(database, tmp_path, *options, *(["--drain"] if end == "drain" else [])) as command:
        if end != "drain":
            command.wait_until_begun()
            command.send(signal.SIGTERM)
            command.wait_until_it_says("stopping")
            command.send(signal.SIGTERM) if end == "cancel" else command.gate.touch()
        code, _, err = command.end()
    assert code == (exits.INTERRUPTED if end == "cancel" else exits.OK), err
    assert len(processes(database, "entered")) == 2
    assert processes(database, "left") == processes(database, "entered")
    assert set(processes(database, "entered").values()) == {1}


@pytest.mark.parametrize(
    ("setup", "why"), [("no_entry", "ConnectionError: no model here"), ("no_manager", "AttributeError")]
)
@dear
def test_a_setup_that_fails_ends_the_run_with_a_clear_line(
    anywhere: Backend, tmp_path: Path, setup: str, why: str
) -> None:
    anywhere.queue().enqueue(rows(3))
    options = (f"{HANDLERS}:note_job", "--setup", f"{HANDLERS}:{setup}", "--consumers", "1")
    with started(anywhere, tmp_path, *options) as command:
        code, out, err = command.end()
    assert code == exits.GAVE_UP
    assert f"BadHandler: --setup '{HANDLERS}:{setup}' failed before the first batch ({why}" in err
    assert "failed before the first batch" in out
    assert "Traceback" not in err
    assert statuses(anywhere) == ["unclaimed"] * 3


@dear
def test_a_setup_that_fails_at_the_end_is_logged_and_the_run_ends_well(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue(rows(3))
    options = (f"{HANDLERS}:note_job", "--setup", f"{HANDLERS}:no_exit", "--consumers", "1", "--drain")
    with started(anywhere, tmp_path, *options) as command:
        code, _, err = command.end()
    assert (code, statuses(anywhere)) == (exits.OK, [])
    assert "failed at the end of its process: ConnectionError: cannot be closed\n    Traceback" in err
