"""Jobs for tests: numbered, so that an assertion can say which."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from claimjobs import Job


def jobs(count: int, **columns: Any) -> list[dict[str, Any]]:
    """Rows for the article's table: `d` is "0000", "0001" and so on."""
    return [{"d": f"{number:04}", "e": "", **columns} for number in range(count)]


def names(found: Iterable[Job]) -> list[str]:
    """`d` of each. Given a batch it says nothing about the jobs: read them as `batch.jobs` inside a block."""
    return [job.d for job in getattr(found, "jobs", found)]
