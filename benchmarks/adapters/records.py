"""Records: the lines of JSON that the suite reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

import claimjobs
from benchmarks.adapters.settings import Settings

MANIFESTS: Final[Mapping[str, Path]] = {
    "rows": Path(__file__).with_name("adapter.json"),
    "batches": Path(__file__).with_name("adapter-batches.json"),
}
"""By what a claim writes: to the suite these are two systems of one family."""


@cache
def manifest(claims: str) -> Mapping[str, Any]:
    """What the suite knows of this system before it starts it."""
    said: Mapping[str, Any] = json.loads(MANIFESTS[claims].read_text(encoding="utf-8"))
    return said


def descriptor(settings: Settings) -> dict[str, Any]:
    """What takes part, on which tables."""
    known = manifest(settings.claims)
    return {
        "kind": "descriptor",
        "system": known["system"],
        "event_tables": known["event_tables"],
        "extensions": known["extensions"],
        "version": claimjobs.__version__,
        "schema_version": claimjobs.__version__,
        "db_name": sa.make_url(settings.database_url).database,
        "started_at": instant(),
        "instance_id": settings.instance,
    }


def samples(settings: Settings, measured: Iterable[tuple[str, float, float]], at: str) -> list[dict[str, Any]]:
    """A record for each metric, its value and the seconds over which it was measured."""
    return [
        {
            "t": at,
            "system": manifest(settings.claims)["system"],
            "kind": "adapter",
            "subject_kind": "adapter",
            "subject": "",
            "metric": metric,
            "value": value,
            "window_s": seconds,
            "instance_id": settings.instance,
        }
        for metric, value, seconds in measured
    ]


def instant() -> str:
    """The time of this moment, in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write(record: Mapping[str, Any]) -> None:
    """Write a record as a line of stdout, at once."""
    print(json.dumps(record), flush=True)
