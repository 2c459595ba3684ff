"""`claimjobs exporter`: the metrics of a table without consumers."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.request import urlopen

import pytest
import sqlalchemy as sa

from claimjobs import key_tables, make
from claimjobs.cli import exits
from docs import browser
from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.conformance.jobs import jobs
from tests.conformance.test_rights import account
from tests.process.dear import dear
from tests.process.scrape import samples

pytestmark = pytest.mark.one_server("the processes are the same on each")

NASTY = "<script>document.title = ['run', 'by', 'a', 'browser'].join(' ')</script><img src=x onerror=alert(1)>"
EXPORTER = (sys.executable, "-m", "claimjobs", "exporter", "--port", "0", "--every", "0.1")


@contextmanager
def exporting(bind: sa.URL) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running exporter, and the address of its pages."""
    environment = {**os.environ, "CLAIMJOBS_URL": bind.render_as_string(hide_password=False)}
    process = subprocess.Popen(EXPORTER, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        found = (re.search(r"on (http://\S+)", line) for line in process.stderr)
        yield process, next(match[1] for match in found if match is not None)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.thorough("a browser takes seconds, and is not on each machine; the HTML itself is tested beside the page")
@pytest.mark.skipif(browser.PROGRAM is None, reason="no Chromium is installed")
@dear
def test_a_browser_shows_the_page_and_runs_nothing_that_a_job_says(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(7))
    with queue.claim(2) as batch:
        batch.fail(batch[0], NASTY, retry=False)
        batch.fail(batch[1], NASTY, retry_in=600)
    with exporting(backend.engine.url) as (_, url):
        shown = browser.html_of(f"{url}/")
    assert "<h2>Failed jobs</h2>" in shown
    assert shown.count("&lt;script&gt;") == 2
    assert ("<script" in shown, "run by a browser" in shown) == (False, False)


@dear
def test_an_account_that_may_only_read_exports(database: Backend) -> None:
    database.queue().enqueue(jobs(7))
    rights = {"jobs": "SELECT", "claimjobs_owners": "SELECT", "claimjobs_queues": "SELECT"}
    with account(database, **rights) as engine, exporting(engine.url) as (process, url):
        found = samples(url)
        assert (found["claimjobs_jobs", "unclaimed"], found["claimjobs_due_jobs", ""]) == (7, 7)
        with urlopen(f"{url}/", timeout=60) as page:
            assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert "<td>unclaimed</td>" in page.read().decode()
        database.run("ALTER TABLE jobs RENAME TO elsewhere")
        database.wait_for(lambda: samples(url)["claimjobs_backlog_readable", ""] == 0, "it cannot be read")
        database.run("ALTER TABLE elsewhere RENAME TO jobs")
        database.wait_for(lambda: samples(url)["claimjobs_backlog_readable", ""] == 1, "it can be read again")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
        assert process.returncode == exits.OK
        assert "the backlog cannot be read: " in err
        assert "the backlog can be read again" in err


@dear
def test_an_exporter_without_rights_says_so(database: Backend) -> None:
    database.make()
    with account(database, claimjobs_owners="SELECT") as engine:
        ended = claimjobs("exporter", "--port", "0", "--url", engine.url.render_as_string(hide_password=False))
    assert ended.code != exits.OK
    assert "jobs" in ended.err
    assert ended.err.count("\n") == 1


@dear
def test_an_exporter_without_rights_for_its_page_says_so(database: Backend) -> None:
    database.make()
    make(database.engine, key_tables(database.engine, "jobs", ["d"]))
    with account(database, jobs="SELECT", claimjobs_owners="SELECT", claimjobs_queues="SELECT") as engine:
        url = engine.url.render_as_string(hide_password=False)
        ended = claimjobs("exporter", "--port", "0", "--per-key", "d", "--url", url)
    assert ended.code != exits.OK
    assert "jobs_keys" in ended.err
    assert ended.err.count("\n") == 1


@dear
def test_an_exporter_without_a_database_says_so() -> None:
    ended = claimjobs("exporter", "--port", "0", "--url", "postgresql://nobody@127.0.0.1:1/none")
    assert (ended.code, ended.err.count("\n")) == (exits.CONNECTION, 1)


@dear
def test_a_port_in_use_is_told(anywhere: Backend) -> None:
    anywhere.make()
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        ended = claimjobs("exporter", "--port", str(port), "--url", anywhere.url)
    assert ended.code == exits.FAILURE
    assert f"port {port} of 127.0.0.1 cannot be listened on" in ended.err


def test_without_its_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "claimjobs.metrics.collectors", raising=False)
    ended = claimjobs("exporter", "--port", "0", "--url", "postgresql://nobody@127.0.0.1:1/none")
    assert ended.code == exits.FAILURE
    assert "pip install 'claimjobs[metrics]'" in ended.err


def test_an_empty_address_does_not_mean_all_addresses() -> None:
    ended = claimjobs("exporter", "--port", "0", "--bind", "", "--url", "postgresql://nobody@127.0.0.1:1/none")
    assert ended.code == exits.USAGE
    assert "it is empty, because its variable may be missing" in " ".join(ended.err.split())
