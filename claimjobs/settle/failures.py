"""Failures: after the commit of a settle, its failed jobs are logged, and the user's hooks are called with them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from claimjobs.callables import require_finished
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Key
from claimjobs.job import Job, entry_of
from claimjobs.key_text import key_in_message
from claimjobs.log_events import HOOK_FAILED, JOB_DEAD, JOB_RETRY
from claimjobs.log_records import log_safely
from claimjobs.settle.outcomes import Outcomes
from claimjobs.signals import Cancelled
from claimjobs.statements.settle import Failure
from claimjobs.table.roles import ColumnRoles

Hook = Callable[[Job, BaseException | str], object]
"""A function that is called with a failed job and its error: the exception, or a text if there is none."""

log = logging.getLogger("claimjobs.settle")


@dataclass
class Hooks:
    """The functions of the user's that are called after a settle, in the thread that settled."""

    on_retry: Hook | None = None
    """Called with each failed job that runs again later."""
    on_dead: Hook | None = None
    """Called with each job that failed for the last time."""


class Failures:
    """Reports the failed jobs of one queue, each once, when their outcomes are in the database.

    A job that runs again is logged as a warning, and its traceback for those who debug. A dead job is logged as an
    error with its traceback, so that a program which collects errors gets it. Then the hooks are called. What a hook
    raises is logged: the outcomes are written, and the consumer goes on.
    """

    def __init__(self, name: str, roles: ColumnRoles, hooks: Hooks) -> None:
        """`name`: of the queue, in the log."""
        self._name = name
        self._roles = roles
        self._hooks = hooks

    def report(self, outcomes: Outcomes) -> None:
        """Report the failed jobs of outcomes that were written. Suspects have not failed."""
        for key, failure in outcomes.retried.items():
            fields = {**self._fields(JOB_RETRY, key, outcomes, failure), "retry_in": round(failure.wait, 3)}
            raised = failure.raised if log.isEnabledFor(logging.DEBUG) else None
            words, wait = "job %s failed: %s; it runs again in %s s", f"{failure.wait:.1f}".removesuffix(".0")
            said = (key_in_message(key), fields["error"], wait)
            log_safely(log, logging.WARNING, words, *said, fields=fields, raised=raised)
        for key, failure in outcomes.dead.items():
            fields, words = self._fields(JOB_DEAD, key, outcomes, failure), "job %s is dead: it failed: %s"
            raised = failure.raised
            log_safely(log, logging.ERROR, words, key_in_message(key), fields["error"], fields=fields, raised=raised)
        self._call("on_retry", self._hooks.on_retry, outcomes.retried, outcomes)
        self._call("on_dead", self._hooks.on_dead, outcomes.dead, outcomes)

    def _call(self, name: str, hook: Hook | None, failures: Mapping[Key, Failure], outcomes: Outcomes) -> None:
        if hook is None:
            return
        for key, failure in failures.items():
            job = outcomes.jobs.get(key) or Job(key, {})
            try:
                error = failure.raised if failure.raised is not None else failure.error or ""
                require_finished(hook(job, error), name)
            except (Cancelled, KeyboardInterrupt):
                raise
            except BaseException as raised:  # as of a handler: also SystemExit, and what a cancelled coroutine raises
                cause = f"{type(raised).__name__}: {reason(raised)}"
                fields = {"event": HOOK_FAILED, "queue": self._name, "key": key, "hook": name, "error": cause}
                words = "%s failed for job %s: %s"
                log_safely(log, logging.ERROR, words, name, key_in_message(key), cause, fields=fields, raised=raised)

    def _fields(self, event: str, key: Key, outcomes: Outcomes, failure: Failure) -> dict[str, object]:
        job, raised = outcomes.jobs.get(key), failure.raised
        before = 0 if job is None else self._roles.value_of("attempts", entry_of(job), 0)
        error = failure.error if raised is None else f"{type(raised).__name__}: {reason(raised)}"
        return {"event": event, "queue": self._name, "key": key, "attempts": before + 1, "error": error}
