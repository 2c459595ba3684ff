"""The compose files of products that nobody could run here: they parse, they publish on loopback, and CI knows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "servers" / "compose").glob("*.yml"))
WORKFLOW = ROOT / ".github" / "workflows" / "test.yml"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_compose_file_has_one_server_that_its_url_and_the_workflow_reach(file: Path) -> None:
    [(name, service)] = yaml.safe_load(file.read_text(encoding="utf-8"))["services"].items()
    [job] = [job for job in _jobs() if job["name"] == name]
    url = make_url(job["url"])
    assert name == file.stem
    assert service["image"].count(":") == 1
    assert service["ports"] == [f"{url.host}:{url.port}:{url.port}"]
    assert f"export CLAIMJOBS_TEST_{job['backend'].upper()}_URL='{job['url']}'" in file.read_text(encoding="utf-8")


def test_the_workflow_starts_every_compose_file() -> None:
    assert [job["name"] for job in _jobs()] == [file.stem for file in FILES]


def _jobs() -> list[dict[str, Any]]:
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    found: list[dict[str, Any]] = jobs["distributed"]["strategy"]["matrix"]["include"]
    return found
