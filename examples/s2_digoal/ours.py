"""With claimjobs: `Assignments.assign` gives each worker at most one row, and each row at most one worker."""

from __future__ import annotations

import sqlalchemy as sa

from claimjobs.contrib.assignments import Assignment, Assignments
from examples.s2_digoal.client import ALREADY, ASSIGNED, BUSY, NOTHING, Result

RELEASE = sa.text("update java_pool set taskid = null where tid = :worker and taskid is not null")
OUTCOMES = {ASSIGNED, ALREADY, NOTHING, BUSY}


class Ours:
    """One client."""

    def __init__(self, url: str) -> None:
        self._workers = Assignments(url, "java_pool", worker="taskid")
        self._tasks = Assignments(url, "task_pool", worker="tid")
        self._pairs = Assignments(url, "pairs", worker="taskid")

    def close(self) -> None:
        for table in (self._workers, self._tasks, self._pairs):
            table.close()
            table.engine.dispose()

    def pick_worker(self, task: int) -> Result:
        return _result(self._workers.assign(task), "tid")

    def release(self, worker: int) -> bool:
        """Release a worker by a plain statement: that does no harm to assignments."""
        with self._workers.engine.begin() as connection:
            return connection.execute(RELEASE, {"worker": worker}).rowcount > 0

    def pick_task(self, worker: int) -> Result:
        return _result(self._tasks.assign(worker), "taskid")

    def insert(self, worker: int, task: int) -> Result:
        return _result(self._pairs.pair({"tid": worker, "taskid": task}), "tid")


def _result(assignment: Assignment, half: str) -> Result:
    assert assignment.outcome in OUTCOMES
    row = assignment.row if assignment.outcome == ASSIGNED else None
    return assignment.outcome, None if row is None else int(row[half])
