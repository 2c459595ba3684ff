"""`start-processing --metrics-port --health-port`: what monitoring reads while a run goes on."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import closing
from pathlib import Path

import pytest

from claimjobs.cli import exits
from claimjobs.metrics.backlog_reader import BacklogReader
from claimjobs.report import Report
from claimjobs.workers.endpoints import missing, stuck
from claimjobs.workers.process_main import Plan
from claimjobs.workers.run import Run
from claimjobs.workers.supervisor import Supervisor
from claimjobs.workers.supervisor_pipe import ProcessState
from servers.proxy import Proxy
from tests.backends import Backend
from tests.process.command import HANDLERS, Command, noted, rows, started
from tests.process.dear import dear
from tests.process.scrape import Samples, address, page, samples

pytestmark = pytest.mark.one_server("the processes are the same on each")

ENDLESS = ("--consumers", "2", "--batch-size", "10", "--metrics-port", "0")


def until(command: Command, url: str, value: float, *name: str) -> Samples:
    """The metrics, as soon as the one of this name and label has a value."""
    key = (name[0], name[1] if len(name) > 1 else "")
    command.backend.wait_for(lambda: samples(url).get(key) == value, f"{name} is {value}")
    return samples(url)


def owners(found: Samples) -> float:
    """The owners that live."""
    return found.get(("claimjobs_owners", "awake"), 0) + found.get(("claimjobs_owners", "asleep"), 0)


def test_the_counts_of_all_consumers_are_served(database: Backend, tmp_path: Path) -> None:
    queue = database.queue()
    queue.enqueue([*rows(40), *rows(1, d="bad")])
    database.insert("jobs", [*rows(1, d="bad", attempts=24)])
    with started(database, tmp_path, f"{HANDLERS}:note_job", *ENDLESS) as command:
        url = address(command)
        found = until(command, url, 40, "claimjobs_settled_jobs_total", "done")
        until(command, url, 1, "claimjobs_settled_jobs_total", "dead")
        database.wait_for(lambda: owners(samples(url)) == 2, "both consumers have registered")
        found = until(command, url, 1, "claimjobs_jobs", "unclaimed")
        command.send(signal.SIGTERM)
        command.end()
    assert found["claimjobs_claimed_jobs_total", ""] >= 42
    assert found["claimjobs_settled_jobs_total", "retried"] >= 1
    assert found["claimjobs_settled_jobs_total", "lost"] == 0
    assert found["claimjobs_claimed_to_settled_seconds_bucket", "+Inf"] == found["claimjobs_claimed_jobs_total", ""]
    assert found["claimjobs_batch_jobs_sum", ""] == found["claimjobs_claimed_jobs_total", ""]
    assert 0 < found["claimjobs_due_to_claimed_seconds_count", ""] <= found["claimjobs_claimed_jobs_total", ""]
    assert found["claimjobs_consumers", ""] == 2
    assert found["claimjobs_jobs", "dead"] == 1
    assert found["claimjobs_backlog_readable", ""] == 1
    assert owners(found) == 2


@dear
def test_no_count_goes_back_when_a_consumer_is_replaced(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.may_leave_owners = True
    anywhere.queue().enqueue(rows(30))
    with started(anywhere, tmp_path, f"{HANDLERS}:note_job", *ENDLESS) as command:
        url = address(command)
        until(command, url, 30, "claimjobs_settled_jobs_total", "done")
        anywhere.wait_for(lambda: samples(url)["claimjobs_empty_claims_total", ""] >= 2, "idle consumers report")
        for child in command.spawned():
            os.kill(child.pid, signal.SIGKILL)
        anywhere.wait_for(lambda: samples(url)["claimjobs_replaced_processes_total", ""] >= 2, "both are replaced")
        assert samples(url)["claimjobs_settled_jobs_total", "done"] == 30
        anywhere.queue().enqueue(rows(5))
        until(command, url, 35, "claimjobs_settled_jobs_total", "done")
        command.send(signal.SIGTERM)
        command.end()


@dear
def test_scrapes_that_hang_keep_nobody_from_anything(anywhere: Backend, tmp_path: Path) -> None:
    queue = anywhere.queue()
    with started(anywhere, tmp_path, f"{HANDLERS}:note_job", *ENDLESS) as command:
        url = address(command)
        port = int(url.rpartition(":")[2])
        hanging = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for one in hanging[:10]:
            one.sendall(b"GET /metrics HTTP/1.1\r\n")
        queue.enqueue(rows(20))
        until(command, url, 20, "claimjobs_settled_jobs_total", "done")
        command.send(signal.SIGTERM)
        code, _, _ = command.end()
        for one in hanging:
            one.close()
    assert code == exits.OK
    assert len(noted(anywhere, "done")) == 20


@dear
def test_a_port_in_use_is_told_before_any_process_starts(anywhere: Backend, tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        for option in ("--metrics-port", "--health-port"):
            with started(anywhere, tmp_path, f"{HANDLERS}:note_job", option, port) as command:
                code, _, err = command.end()
            assert code == exits.FAILURE
            assert f"port {port} of 127.0.0.1 cannot be listened on" in err
            assert err.count("\n") == 1


@dear
def test_where_the_log_is_json_the_error_that_ends_the_command_is(anywhere: Backend, tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        for words in (("--health-port", port), ("--table", "nowhere")):
            with started(anywhere, tmp_path, f"{HANDLERS}:note_job", *words, "--log-format", "json") as command:
                _, _, err = command.end()
            [record] = map(json.loads, err.splitlines())
            assert (record["event"], record["level"]) == ("command_failed", "ERROR")
            assert record["error"] == record["message"]
            assert words[1] in record["error"]
            assert "traceback" not in record


@dear
def test_a_pause_and_its_end_are_told_with_the_reason(anywhere: Backend, tmp_path: Path) -> None:
    queue = anywhere.queue()
    with started(anywhere, tmp_path, f"{HANDLERS}:note_job", "--consumers", "1", "--log-format", "json") as command:
        queue.pause("the mail server is down")
        command.wait_until_it_says('"reason": "the mail server is down"')
        command.wait_until_it_says("paused (the mail server is down) ")
        queue.resume()
        command.wait_until_it_says('"event": "queue_resumed"')
        command.send(signal.SIGTERM)
        assert command.end()[0] == exits.OK


@dear
def test_it_is_not_ready_while_the_database_is_away(anywhere: Backend) -> None:
    anywhere.make()
    supervisor = Supervisor(Plan(anywhere.url), Run(consumers=1))
    supervisor.consumers[0].note(ProcessState(Report()))
    with Proxy(anywhere.url) as proxy:
        reader = BacklogReader(anywhere.bare_queue(bind=anywhere.new_engine_to(proxy.url)), every=0)
        anywhere.wait_for(lambda: not list(missing(supervisor, reader)), "it is ready")
    anywhere.wait_for(lambda: list(missing(supervisor, reader)), "it is not ready any more")
    [error] = missing(supervisor, reader)
    assert "connect" in error
    assert not list(stuck(supervisor, 600.0))


def test_live_and_ready(database: Backend, tmp_path: Path) -> None:
    database.queue().enqueue(rows(1))
    options = ("--consumers", "2", "--health-port", "0", "--metrics-port", "0")
    with started(database, tmp_path, f"{HANDLERS}:wait_for_file", *options) as command:
        url = address(command)
        assert page(f"{url}/livez") == (200, "ok\n")
        database.wait_for(lambda: page(f"{url}/readyz") == (200, "ok\n"), "it is ready")
        assert page(f"{url}/metrics")[0] == 200
        assert page(f"{url}/nothing")[0] == 404
        database.wait_for(lambda: noted(database, "begun"), "the batch has begun")
        command.send(signal.SIGTERM)
        database.wait_for(lambda: page(f"{url}/readyz") == (503, "the run is about to end\n"), "it ends")
        assert page(f"{url}/livez") == (200, "ok\n")
        command.gate.touch()
        assert command.end()[0] == exits.OK
