"""Failures: what is logged of the failed jobs of a settle, after its commit."""

from __future__ import annotations

import logging

from claimjobs.batch.settle import Outcomes
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Key
from claimjobs.job import claim_of
from claimjobs.log_events import JOB_DEAD, JOB_RETRY
from claimjobs.table.roles import Roles

log = logging.getLogger("claimjobs.settle")


class Failures:
    """Reports the failed jobs of one queue, each once, when their outcomes are in the database.

    A job that runs again is logged as a warning, and its traceback for those who debug. A dead job is logged as an
    error with its traceback, so that a program which collects errors gets it.
    """

    def __init__(self, name: str, roles: Roles) -> None:
        """`name`: of the queue, in the log."""
        self._name = name
        self._roles = roles

    def report(self, outcomes: Outcomes) -> None:
        """Report the failed jobs of outcomes that were written. Suspects have not failed."""
        for key, wait in outcomes.retried.items():
            fields = {**self._fields(JOB_RETRY, key, outcomes), "retry_in": round(wait, 3)}
            raised = outcomes.raised.get(key) if log.isEnabledFor(logging.DEBUG) else None
            log.warning("job %r failed: %s", key, fields["error"], extra=fields, exc_info=raised)
        for key in outcomes.dead:
            fields, raised = self._fields(JOB_DEAD, key, outcomes), outcomes.raised.get(key)
            log.error("job %r is dead: it failed: %s", key, fields["error"], extra=fields, exc_info=raised)

    def _fields(self, event: str, key: Key, outcomes: Outcomes) -> dict[str, object]:
        job, raised = outcomes.jobs.get(key), outcomes.raised.get(key)
        before = 0 if job is None else self._roles.value_of("attempts", claim_of(job), 0)
        error = outcomes.errors[key] if raised is None else f"{type(raised).__name__}: {reason(raised)}"
        return {"event": event, "queue": self._name, "key": key, "attempts": before + 1, "error": error}
