"""The guide's table of events has each event, with its level, and each log call names one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from claimjobs import log_events

ROOT = Path(__file__).resolve().parents[2]
EVENTS = {value for name, value in vars(log_events).items() if name.isupper()}
LEVELS = {f"log.{level}" for level in ("debug", "info", "warning", "error", "exception", "critical", "log")}


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    for path in (ROOT / "claimjobs").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in LEVELS:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_the_guide_has_each_event_once() -> None:
    section = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| (?:DEBUG|INFO|WARNING|ERROR) \|", section, re.M)
    assert sorted(listed) == sorted(EVENTS)


def test_each_log_call_has_fields() -> None:
    calls = list(log_calls())
    assert len(calls) > 20
    assert [place for place, call in calls if "extra" not in {keyword.arg for keyword in call.keywords}] == []


def test_each_event_is_logged() -> None:
    used = {
        name.id
        for path in (ROOT / "claimjobs").rglob("*.py")
        if path.name != "log_events.py"
        for name in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(name, ast.Name)
    }
    assert {name for name in vars(log_events) if name.isupper()} <= used
