"""The events of the log: each record of claimjobs has one of these names in its field `event`.

The names stay the same from version to version, and the messages may not. docs/guide.md has the list, with the fields.
"""

from __future__ import annotations

from typing import Final

# --- jobs ------------------------------------------------------------------------------------------------------

JOB_RETRY: Final = "job_retry"
"""A job failed, and runs again later."""
JOB_DEAD: Final = "job_dead"
"""A job failed for the last time."""
JOBS_LOST: Final = "jobs_lost"
"""Outcomes were not written, because this owner does not hold the jobs any more."""
JOBS_RELEASED: Final = "jobs_released"
"""Jobs that were still held at the deadline of a stop were released."""
RELEASE_FAILED: Final = "release_failed"
"""Jobs could not be released at the deadline of a stop."""
JOBS_LEFT: Final = "jobs_left"
"""Jobs are still due after their handler, with on_done="leave"."""
JOBS_UNCLAIMABLE: Final = "jobs_unclaimable"
"""Rows that no claim takes, because their key cannot be read."""
JOB_STUCK: Final = "job_stuck"
"""A dead owner's job cannot be reclaimed."""

# --- batches ---------------------------------------------------------------------------------------------------

HANDLER_FAILED: Final = "handler_failed"
"""The handler raised an exception that is about no single job, or decided nothing."""
HANDLER_HANGS: Final = "handler_hangs"
"""A batch makes no progress."""
HOOK_FAILED: Final = "hook_failed"
"""A function of the user's that is called after a settle raised an exception."""
BATCH_ROLLED_BACK: Final = "batch_rolled_back"
"""The transaction that held a batch was rolled back."""
OUTCOME_REFUSED: Final = "outcome_refused"
"""The database refuses the outcome of a job, and its failure, too."""

# --- owners and connections --------------------------------------------------------------------------------------

OWNER_DEAD: Final = "owner_dead"
"""An owner is dead, and its jobs were reclaimed."""
OWNER_ELSEWHERE: Final = "owner_elsewhere"
"""An owner was not reclaimed, because it claims from another table."""
OWNER_RENEWED: Final = "owner_renewed"
"""This owner was declared dead, and goes on under a new id."""
HEARTBEAT_FAILED: Final = "heartbeat_failed"
SLEEP_FAILED: Final = "sleep_failed"
"""An idle owner cannot be woken at the moment, and polls."""
WAKE_FAILED: Final = "wake_failed"
"""A producer could not wake idle owners."""
TRYING_AGAIN: Final = "trying_again"
"""A transaction failed for a reason that passes, and is tried again."""
OUTAGE_OVER: Final = "outage_over"
"""A transaction succeeded after it was tried again for a while."""

# --- processes ---------------------------------------------------------------------------------------------------

RUN_STARTED: Final = "run_started"
"""A run begins; the message says what happens to done jobs."""
FINDING: Final = "finding"
"""What `claimjobs explain` would warn of, at the start of a run."""
RUN_PHASE: Final = "run_phase"
"""The run drains, stops or cancels."""
RUN_LATE: Final = "run_late"
"""Batches were still open at the deadline of the stop, and are released."""
RUN_IDLE: Final = "run_idle"
"""No consumer had a job for as long as `--idle` says."""
RUN_GAVE_UP: Final = "run_gave_up"
"""The run ends by an error that each further process would meet."""
PROGRESS: Final = "progress"
"""The state of the run, every few seconds."""
CONSUMER_CANCELLED: Final = "consumer_cancelled"
"""A process releases its open batch and ends."""
CONSUMER_FAILED: Final = "consumer_failed"
"""A process ends by an exception."""
PROCESS_ENDED: Final = "process_ended"
"""A process has ended early; it is replaced, unless the run is stopping."""
SETUP_FAILED: Final = "setup_failed"
"""The context manager of `--setup` raised an exception."""
THREAD_LEFT: Final = "thread_left"
"""A thread that the handler started was still running at the end."""
COUNT_FAILED: Final = "count_failed"
"""The jobs could not be counted for the display."""
SERVING: Final = "serving"
"""Pages for monitoring are served."""
REQUEST_FAILED: Final = "request_failed"
"""A client of these pages left early, or sent what is no request."""
BACKLOG_FAILED: Final = "backlog_failed"
"""The backlog could not be read for monitoring."""
BACKLOG_RESTORED: Final = "backlog_restored"
"""The backlog can be read again."""
RECLAIM_FAILED: Final = "reclaim_failed"
"""The jobs of a process that has ended could not be reclaimed yet."""
OUTPUT_FAILED: Final = "output_failed"
"""The output cannot be written any more."""
