"""The dashboard and the alert rules in ops/ fit what the code exports, and a real Prometheus can use both."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric

from claimjobs.admin.overview import COUNTED_STATES, Backlog
from claimjobs.metrics.backlog_reader import Reading
from claimjobs.metrics.collectors import OUTCOMES, of_processes, of_reading, of_report
from claimjobs.report import Report
from servers import prometheus
from tests.backends import Backend, wait_for
from tests.process.command import HANDLERS, ROOT, rows, started
from tests.process.dear import dear
from tests.process.scrape import address, page

pytestmark = pytest.mark.one_server("the processes are the same on each")

RULES = ROOT / "ops" / "alerts.yml"
DASHBOARD = ROOT / "ops" / "grafana.json"
TEXTS = {"alerts": RULES.read_text(encoding="utf-8"), "dashboard": DASHBOARD.read_text(encoding="utf-8")}
PARTS = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
OF_PROMETHEUS = {"le", "severity"}


def exported() -> list[Metric]:
    """Every metric, with a sample for each of its labels."""
    report = Report(transients=Report().transients + Report().transients.__class__(["deadlock"]))
    backlog = Backlog(
        10, 1, 1.0, 0, {"awake": 1, "asleep": 0, "dead": 0}, paused=False, **dict.fromkeys(COUNTED_STATES, 1)
    )
    return [
        *of_report(report, "jobs"),
        *of_reading(Reading(backlog, None), "jobs"),
        *of_processes("jobs", consumers=1, replaced=0),
    ]


NAMES = {metric.name + part for metric in exported() for part in PARTS[metric.type]}
LABELS = {label for metric in exported() for sample in metric.samples for label in sample.labels}
VALUES = {value for metric in exported() for sample in metric.samples for value in sample.labels.values()}


def expressions(text: str) -> list[str]:
    """The queries of the dashboard, or of the rules."""
    if text.startswith("{"):
        return [target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]]
    return re.findall(r"expr: (?:>-\n)?(.+?)\n\s+(?:for|labels):", text, re.DOTALL)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_each_name_and_label_is_exported(text: str) -> None:
    assert len(expressions(text)) >= 7
    assert set(re.findall(r"claimjobs_\w+", text)) <= NAMES
    for query in expressions(text):
        grouped = {label for group in re.findall(r"by \(([\w, ]+)\)", query) for label in group.split(", ")}
        matched = dict(re.findall(r'(\w+)\s*(?:=|!=|=~)"([^"]*)"', query))
        assert grouped | set(matched) <= LABELS | OF_PROMETHEUS, query
        for label in {"outcome", "state"} & set(matched):
            assert set(matched[label].split("|")) <= VALUES, query


def test_the_dashboard_shows_every_metric_and_the_page_has_it() -> None:
    told = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    for metric in exported():
        full = metric.name + PARTS[metric.type][0].replace("_bucket", "")
        assert f"`{full}`" in told
        if metric.name != "claimjobs_backlog_readable":
            assert metric.name in " ".join(expressions(TEXTS["dashboard"])), metric.name
    assert all(f"`{outcome}`" in told for outcome in OUTCOMES)


# --- a real one --------------------------------------------------------------------------------------------------


@contextmanager
def scraping(target: str, folder: Path) -> Iterator[str]:
    """A Prometheus that scrapes this address every second and has our rules: the address of its own pages."""
    settings = folder / "prometheus.yml"
    settings.write_text(
        "global: {scrape_interval: 1s}\n"
        f"rule_files: ['{RULES}']\n"
        f"scrape_configs: [{{job_name: claimjobs, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    options = (f"--config.file={settings}", f"--storage.tsdb.path={folder}/data", "--web.listen-address=127.0.0.1:0")
    command = [str(prometheus.program("prometheus")), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = (re.search(r"Listening on\"? address=(127\.0\.0\.1:\d+)", line) for line in process.stderr)
            url = "http://" + next(match[1] for match in found if match is not None)
            wait_for(lambda: page(f"{url}/-/ready")[0] == 200, "it is ready")
            yield url
        finally:
            process.kill()


def answer(prometheus_url: str, query: str) -> list[Any]:
    """The result of a query."""
    _, text = page(f"{prometheus_url}/api/v1/query?query={urllib.parse.quote(query)}")
    found: list[Any] = json.loads(text)["data"]["result"]
    return found


@dear
def test_promtool_accepts_the_rules() -> None:
    done = subprocess.run(
        [prometheus.program("promtool"), "check", "rules", RULES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rules = TEXTS["alerts"].count("- alert: ")
    assert f"{rules} rules found" in done.stdout


@dear
def test_a_prometheus_reads_a_run(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue(rows(60))
    options = (f"{HANDLERS}:note_job", "--consumers", "2", "--metrics-port", "0")
    with started(anywhere, tmp_path, *options) as command:
        target = address(command).removeprefix("http://")
        with scraping(target, tmp_path) as url:
            done = 'claimjobs_settled_jobs_total{table="jobs",outcome="done"}'
            wait_for(lambda: [one["value"][1] for one in answer(url, done)] == ["60"], "60 jobs are done")
            assert answer(url, 'claimjobs_jobs{state="unclaimed"}')[0]["value"][1] in ("0", "60")
            for query in expressions(TEXTS["dashboard"]):
                asked = query.replace('"$table"', '"jobs"').replace("$__rate_interval", "1m")
                assert page(f"{url}/api/v1/query?query={urllib.parse.quote(asked)}")[0] == 200, asked
            health = json.loads(page(f"{url}/api/v1/rules")[1])["data"]["groups"][0]["rules"]
            assert {rule["lastError"] for rule in health if "lastError" in rule} <= {""}
        command.send(signal.SIGTERM)
        command.end()
