"""Claims by open transactions, as the audit and the arena read them: what handlers wrote down in another session."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final

from tests.chaos.claim_rows import Move

OWNERS: Final = (
    "SELECT latest.pid, count(jobs.id) FROM (SELECT pid, max(id) AS id FROM chaos_runs GROUP BY pid) latest "
    "JOIN chaos_runs one ON one.id = latest.id JOIN chaos_runs each_job ON each_job.call = one.call "
    "LEFT JOIN jobs ON jobs.id = each_job.job GROUP BY latest.pid"
)
"""The processes that have called a handler, and how many jobs of the last call are still in the table."""


def as_in_rows(moves: list[Move], runs: Iterable[Any]) -> list[Move]:
    """An execution is the claim of its job. If another one comes before the settle, the first was rolled back.

    The settle of a job is that of the execution in the same session. One that was written down after the end of its
    job has claimed nothing: its transaction was gone before the audit could be reached.
    """
    joined: list[Move] = []
    open_runs: dict[int, list[Any]] = defaultdict(list)
    ended: set[int] = set()
    for event in sorted([*moves, *runs], key=attrgetter("at")):
        before = open_runs[event.job]
        if not isinstance(event, Move):
            if event.job not in ended:
                joined += [_of(run, "claimed", "unclaimed")._replace(at=event.at) for run in before[-1:]]
                joined.append(_of(event, "unclaimed", "claimed"))
                before.append(event)
            continue
        mine = [run for run in before if run.session == event.session]
        joined.append(event._replace(old_owner=mine[-1].pid, old_status="claimed") if mine else event)
        before.clear()
        if event.new_status in (None, "dead"):
            ended.add(event.job)
    return joined


def _of(run: Any, before: str, after: str) -> Move:
    claims = after == "claimed"
    return Move(run.job, None if claims else run.pid, run.pid if claims else None, before, after, run.session, run.at)
