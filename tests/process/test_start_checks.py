"""The start of a run: it warns of what `claimjobs explain` would warn of, and begins with the processes it gets."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from claimjobs.workers.process_slot import ProcessSlot
from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.conformance.jobs import jobs
from tests.process.command import HANDLERS, rows, summary
from tests.process.dear import dear

pytestmark = pytest.mark.one_server("the processes are the same on each")


@dear
def test_a_run_without_an_index_warns_once_with_the_statement_that_helps(database: Backend) -> None:
    database.queue().enqueue(jobs(3))
    database.run("DROP INDEX jobs_claim" + ("" if database.family == "postgres" else " ON jobs"))
    words = ("start-processing", "--generators", "0", "--drain", "--consumers", "2", "--url", database.url)
    ended = claimjobs(*words)
    assert ended.code == 0, ended.said
    [warning] = [line for line in ended.err.splitlines() if "claims have no index" in line]
    assert "add one: CREATE INDEX jobs_claim ON jobs" in warning
    database.run(warning[warning.index("CREATE INDEX") :].rstrip(";"))
    assert "index" not in claimjobs(*words).err


@dear
def test_a_run_says_at_its_start_and_at_its_end_that_no_job_can_be_dead(database: Backend, tmp_path: Path) -> None:
    columns = "state SMALLINT NOT NULL DEFAULT 0, worker INT, attempts INT, d VARCHAR(9)"
    database.run(f"CREATE TABLE orders (nr INT PRIMARY KEY, {columns})")
    database.run("INSERT INTO orders (nr, attempts, d) VALUES (1, 4, 'bad')")
    database.make("jobs")
    described = tmp_path / "orders.toml"
    roles, states = 'status = "state"\nowner_id = "worker"', "unclaimed = 0\nclaimed = 1\ndone = 2"
    described.write_text(f'table = "orders"\non_done = "keep"\n[columns]\n{roles}\n[states]\n{states}\n')
    words = ("start-processing", "tests.process.work:note_job", "--map", described, "--generators", "0", "--drain")
    ended = claimjobs(*map(str, words), "--consumers", "1", "--url", database.url)
    warned, *later = [line for line in ended.err.splitlines() if "no value of column 'state'" in line]
    assert "a job that fails for the last time is released and claimed again without end" in warned
    assert "[states] of the --map file" in warned
    assert later, ended.said


@dear
def test_a_run_goes_on_with_the_processes_that_the_system_grants(
    anywhere: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are tried again; none is left behind, and the end does not wait for them."""
    start, refused = ProcessSlot.start, list[int]()

    def granted(slot: ProcessSlot, *arguments: object) -> None:
        if slot.number > 1:
            refused.append(slot.number)
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        start(slot, *arguments)

    monkeypatch.setattr(ProcessSlot, "start", granted)
    anywhere.queue().enqueue(rows(20))
    words = (f"{HANDLERS}:whatever", "--per", "job", "--consumers", "3", "--drain", "--json", "--url", anywhere.url)
    ended = claimjobs("start-processing", *words)
    assert ended.code == 0, ended.err
    assert (summary(ended.out)["done"], summary(ended.out)["replaced"]) == (20, 0)
    assert {2, 3} <= set(refused)
    assert "a process cannot be started ([Errno 11] Resource temporarily unavailable): raise the limit" in ended.err
