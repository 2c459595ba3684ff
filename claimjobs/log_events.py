"""The events of the log: each record of the core has one of these names in its field `event`.

The names stay the same from version to version, and the messages may not. docs/reference/events.md says what each one
means, and which fields it has.
"""

from __future__ import annotations

from typing import Final

# --- jobs

JOB_RETRY: Final = "job_retry"
JOB_DEAD: Final = "job_dead"
FAILURES_COUNTED: Final = "failures_counted"
JOBS_LOST: Final = "jobs_lost"
JOBS_RELEASED: Final = "jobs_released"
RELEASE_FAILED: Final = "release_failed"
JOBS_LEFT: Final = "jobs_left"
JOBS_UNCLAIMABLE: Final = "jobs_unclaimable"
COMMENTS_LOST: Final = "comments_lost"
JOB_STUCK: Final = "job_stuck"
OWNER_STUCK: Final = "owner_stuck"

# --- batches

HANDLER_FAILED: Final = "handler_failed"
HANDLER_HANGS: Final = "handler_hangs"
BATCH_FORGOTTEN: Final = "batch_forgotten"
HOOK_FAILED: Final = "hook_failed"
BATCH_ROLLED_BACK: Final = "batch_rolled_back"
OUTCOME_REFUSED: Final = "outcome_refused"
LOOP_BLOCKED: Final = "loop_blocked"

# --- owners and connections

OWNER_DEAD: Final = "owner_dead"
OWNER_ELSEWHERE: Final = "owner_elsewhere"
OWNER_RENEWED: Final = "owner_renewed"
HEARTBEAT_FAILED: Final = "heartbeat_failed"
SLEEP_FAILED: Final = "sleep_failed"
WAKE_FAILED: Final = "wake_failed"
TRYING_AGAIN: Final = "trying_again"
OUTAGE_OVER: Final = "outage_over"


# --- processes

RUN_STARTED: Final = "run_started"
FINDING: Final = "finding"
RUN_PHASE: Final = "run_phase"
QUEUE_PAUSED: Final = "queue_paused"
QUEUE_RESUMED: Final = "queue_resumed"
RUN_LATE: Final = "run_late"
RUN_IDLE: Final = "run_idle"
RUN_GAVE_UP: Final = "run_gave_up"
COMMAND_FAILED: Final = "command_failed"
COMMAND_SAYS: Final = "command_says"
PROGRESS: Final = "progress"
PROCESS_STOPPING: Final = "process_stopping"
SUPERVISOR_DIED: Final = "supervisor_died"
CONSUMER_CANCELLED: Final = "consumer_cancelled"
CONSUMER_FAILED: Final = "consumer_failed"
PROCESS_SILENT: Final = "process_silent"
PROCESS_REFUSED: Final = "process_refused"
PROCESS_ENDED: Final = "process_ended"
SETUP_FAILED: Final = "setup_failed"
THREAD_LEFT: Final = "thread_left"
COUNT_FAILED: Final = "count_failed"
SERVING: Final = "serving"
REQUEST_FAILED: Final = "request_failed"
BACKLOG_FAILED: Final = "backlog_failed"
BACKLOG_RESTORED: Final = "backlog_restored"
RECLAIM_FAILED: Final = "reclaim_failed"
OUTPUT_FAILED: Final = "output_failed"
