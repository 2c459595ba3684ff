"""The files of ops/ for a deployment: shown as they are, with options that exist and deadlines that fit; and run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from claimjobs.cli import exits
from claimjobs.cli.main import main
from claimjobs.workers.endpoints import LIVE, READY
from tests.docs.commands import every
from tests.docs.markdown import DEPLOYING, ROOT, blocks
from tests.docs.shop import Shop

pytestmark = pytest.mark.thorough("what the page says is run as a whole")

OPS = ROOT / "ops"
UNIT, IMAGE, MANIFEST = OPS / "claimjobs.service", OPS / "Dockerfile", OPS / "kubernetes.yaml"
SPARE = 10
"""Seconds between --stop-timeout and the kill, as the command's help recommends."""


def in_unit(name: str) -> str:
    """The value of a setting of the systemd unit."""
    [value] = re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.M)
    return str(value)


def in_image(instruction: str) -> list[str]:
    """The JSON list of an instruction of the Dockerfile."""
    [value] = re.findall(rf"^{instruction} (\[.*\])$", IMAGE.read_text(), re.M)
    words: list[str] = json.loads(value)
    return words


def pod() -> dict[str, Any]:
    """The pod of the deployment."""
    found: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())["spec"]["template"]["spec"]
    return found


def container() -> dict[str, Any]:
    """Its only container."""
    [found] = pod()["containers"]
    assert isinstance(found, dict)
    return found


COMMANDS = {
    "systemd": shlex.split(in_unit("ExecStart"))[1:],
    "image": in_image("CMD"),
    "kubernetes": container()["args"],
}
DEADLINES = {"systemd": int(in_unit("TimeoutStopSec")), "kubernetes": pod()["terminationGracePeriodSeconds"]}


def parsed(words: list[str]) -> dict[str, Any]:
    """The options of a command line, which is one of `start-processing`."""
    assert words[0] == "start-processing"
    with every()[("start-processing",)].make_context("start-processing", words[1:], **main.context_settings) as context:
        return context.params


@pytest.mark.parametrize("file", [UNIT, IMAGE, MANIFEST], ids=lambda file: file.name)
def test_the_page_shows_the_file(file: Path) -> None:
    assert f"\n{file.read_text()}```\n" in (ROOT / "docs" / "deploying.md").read_text()


@pytest.mark.parametrize("place", COMMANDS)
def test_the_command_line_has_options_that_exist(place: str) -> None:
    given = parsed(COMMANDS[place])
    assert given["handler"] == "shop.handlers:deliver"
    assert given["health_port"]


@pytest.mark.parametrize("place", DEADLINES)
def test_the_kill_comes_after_the_deadline(place: str) -> None:
    assert DEADLINES[place] == parsed(COMMANDS[place])["stop_timeout"] + SPARE


def test_the_probes_ask_for_pages_that_are_served() -> None:
    [port] = container()["ports"]
    given = parsed(container()["args"])
    assert port["containerPort"] == given["health_port"]
    assert given["bind"] == "0.0.0.0"
    probes = [container()[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    assert [probe["path"] for probe in probes] == [LIVE, LIVE, READY]
    assert {probe["port"] for probe in probes} == {port["name"]}


def test_a_restart_is_left_out_where_it_would_not_help() -> None:
    codes = {int(code) for code in in_unit("RestartPreventExitStatus").split()}
    assert codes == {exits.USAGE, exits.TABLE, exits.INPUT}


def test_the_image_runs_the_command_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert in_image("ENTRYPOINT") == [project["name"]]
    assert project["name"] in project["scripts"]
    name = project["name"]
    copied = f"COPY {name}/ /src/{name}/\nRUN pip install --no-cache-dir '/src/{name}[metrics]'"
    assert copied in IMAGE.read_text()
    [python] = re.findall(r"^FROM python:(\d+\.\d+)-slim$", IMAGE.read_text(), re.M)
    assert f"Programming Language :: Python :: {python}" in project["classifiers"]


def test_the_file_with_the_url_is_made_together_with_its_folder(tmp_path: Path) -> None:
    lines = [line for block in blocks(DEPLOYING, "sh") for line in block.text.splitlines()]
    [line] = [line for line in lines if line.startswith("install ")]
    subprocess.run(shlex.split(line.replace("/etc", str(tmp_path)), comments=True), check=True)
    assert (tmp_path / "claimjobs" / "shop.env").stat().st_mode & 0o777 == 0o600


def test_the_unit_is_valid(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("this machine has no systemd-analyze")
    here = tmp_path / UNIT.name
    here.write_text(UNIT.read_text().replace("/opt/shop/.venv/bin/claimjobs", sys.executable))
    done = subprocess.run([analyze, "verify", str(here)], capture_output=True, text=True, check=False)
    assert (done.returncode, UNIT.name in done.stderr) == (0, False), done.stderr


def test_the_command_of_the_deployment_starts_is_ready_and_stops(any_shop: Shop) -> None:
    any_shop.open()
    args = [word for word in container()["args"] if not word.startswith(("--health-port", "--metrics-port", "--bind"))]
    line = shlex.join(["claimjobs", *args, "--health-port=0"])
    with subprocess.Popen(any_shop.shell(f"exec {line}"), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            address = next(found[1] for said in process.stderr if (found := re.search(r"(http://[\d.]+:\d+)", said)))
            any_shop.backend.wait_for(lambda: status(f"{address}/readyz") == 200, "it is ready")
            assert status(f"{address}/livez") == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINES["kubernetes"]) == exits.OK
        finally:
            process.kill()


def status(url: str) -> int:
    """The status of a page; 0 if nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except OSError as error:
        return int(getattr(error, "code", 0))
