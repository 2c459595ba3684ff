"""The supervisor: starts generators and consumers as processes, replaces those that die, and leaves none behind."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Final

import sqlalchemy as sa

from claimjobs.admin.stats import Retries
from claimjobs.errors import FOLDER_GONE, ClaimjobsError
from claimjobs.log_events import (
    FINDING,
    OUTPUT_FAILED,
    PROCESS_ENDED,
    PROCESS_REFUSED,
    PROCESS_SILENT,
    RUN_GAVE_UP,
    RUN_IDLE,
    RUN_LATE,
    RUN_PHASE,
    RUN_STARTED,
)
from claimjobs.report import Report
from claimjobs.signals import REACTION_SECONDS
from claimjobs.workers.database_threads import BacklogCounter, ReclaimThread
from claimjobs.workers.process_main import HUNG, Plan, run_consumer, run_generator
from claimjobs.workers.process_slot import STRIKES, ProcessSlot, Rate
from claimjobs.workers.run import Run, Snapshot, Summary
from claimjobs.workers.supervisor_pipe import LAST_GRACE_SECONDS, PHASES, RELEASE_GRACE_SECONDS, Command, GaveUp

TICK_SECONDS: Final = 0.1
"""Seconds between two checks of the clock. A message or the end of a process wakes the supervisor at once."""
MESSAGES_PER_READ: Final = 1_000
"""Messages of one process that are read in a row: one that logs without end must not keep the supervisor busy."""

FINDINGS_WITHIN: Final = 1.0
"""Seconds that the checks at the start may take. Usually it is less than a tenth."""

log = logging.getLogger("claimjobs.supervisor")
start_log = logging.getLogger("claimjobs.start_checks")


class Supervisor:
    """Runs the processes of a plan until they are done or stopped, and returns a summary.

    A process that dies is replaced, and its jobs are reclaimed. The pause before a replacement grows while replacements
    die young. `stop` and `cancel` may be called from a signal handler. If `watch` raises an OSError, the run stops.
    """

    def __init__(self, plan: Plan, run: Run, watch: Callable[[Snapshot], None] = lambda _: None) -> None:
        self._plan, self._run, self._watch = plan, run, watch
        self._queue = plan.queue()
        self.consumers = [ProcessSlot(n, run_consumer) for n in range(1, run.consumers + 1)]
        self._generators = [ProcessSlot(n, run_generator) for n in range(1, run.generators + 1)]
        self._children = [*self._generators, *self.consumers]
        self._phase = "starting"
        self._sent: set[Command] = set()
        self._requested: set[Command] = set()
        self._rate = Rate()
        self._stop_deadline = math.inf
        self._force_at = math.inf
        """When processes that do not react to `cancel` are ended."""
        self._releasing: threading.Thread | None = None
        self._began = self._displayed_at = 0.0
        self._before = 0
        self.latest: Snapshot | None = None
        """The state of the run, at most a few TICKs ago. It is replaced, never changed: any thread may read it."""
        self.ticked_at: float | None = None
        """When the supervisor last looked after its processes, by the machine's monotonic clock."""
        self.cancelled = False
        """Whether `cancel` was called: batches were released before they were finished."""
        self.display_error: OSError | None = None
        self._ready_at: float | None = None
        self._gave_up: GaveUp | None = None
        self._exits: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        """For each exit code and number of open jobs of processes that ended themselves, with no batch in between: the
        job that each of them held alone, or 0.
        """

    # --- commands --------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let every process finish its batch and end. After `stop_timeout` open batches are released."""
        self._requested.add("stop")
        if self._run.stop_timeout is not None:
            self._stop_deadline = min(self._stop_deadline, time.monotonic() + self._run.stop_timeout)

    def cancel(self) -> None:
        """Let every process release its batch and end."""
        self.cancelled = True
        self._release_batches(LAST_GRACE_SECONDS)

    def _release_batches(self, grace: float) -> None:
        """Cancel. A process whose handler does not react within `grace` seconds is killed."""
        self._force_at = min(self._force_at, time.monotonic() + grace)
        self._requested |= {"stop", "cancel"}

    @property
    def ends(self) -> bool:
        return "stop" in self._requested or self._phase == "ended"

    # --- the run ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the plan and count the jobs. Raises ClaimjobsError."""
        try:
            os.getcwd()
        except FileNotFoundError:  # a process that is spawned begins there
            raise ClaimjobsError(FOLDER_GONE) from None
        try:
            self._plan.check(self._run.generators)
            self._queue.use_hooks(self._plan.load_hooks())
            self._before = self._queue.stats().left
        finally:
            self._queue.engine.dispose()

    def run(self) -> Summary:
        """Run to the end, after `check`."""
        try:
            log.info("%s", self._queue.done_jobs, extra={"event": RUN_STARTED, "queue": self._queue.table.fullname})
            try:  # it needs no more connections than the run has later
                findings = self._queue.explain(seconds=FINDINGS_WITHIN).findings
            except (ClaimjobsError, sa.exc.SQLAlchemyError):  # the consumers meet it, too, and say so
                findings = ()
            for found in findings:
                if found.verdict in ("warning", "will not work"):
                    fields = {"event": FINDING, "check": found.check, "verdict": found.verdict}
                    says = f"{found.says}: {' '.join(found.fix)}" if found.fix else found.says
                    start_log.warning("%s: %s", found.check, says, extra=fields)
            self._began = time.monotonic()
            with BacklogCounter(self._queue) as self._backlog:
                with ReclaimThread(self._queue) as self._reclaims:
                    try:
                        while any(child.process is not None or not child.finished for child in self._children):
                            self._tick()
                    finally:  # no process is left, and the jobs of each are reclaimed
                        for child in self._children:
                            child.kill()
                        for child in self._children:
                            if child.process is not None:
                                child.process.join()
                                self._collect(child)
                        self._queue.close()
                seconds = time.monotonic() - (self._ready_at or self._began)
            return self._summary(seconds)
        finally:
            self._queue.engine.dispose()

    def _tick(self) -> None:
        for child in self._children:
            if child.due:
                self._start(child)
        # Wait until a process sends a message or ends, then read the messages of all.
        living = [child for child in self._children if child.process is not None]
        pipes = (child.pipe for child in living if child.pipe is not None)
        ready = wait([*pipes, *(child.process.sentinel for child in living if child.process)], TICK_SECONDS)
        for child in living:
            if child.pipe in ready and child.read(MESSAGES_PER_READ):
                self._exits.clear()
        self._kill_silent()
        for child in self._children:
            if child.process is not None and child.process.exitcode is not None:
                self._collect(child)
        # The clock of the run starts when every consumer has registered or ended once.
        if self._ready_at is None and all(child.was_ready for child in self.consumers):
            self._ready_at = time.monotonic()
            self._phase = "running" if self._phase == "starting" else self._phase
        self._decide()
        self._send_requested()
        if time.monotonic() - self._displayed_at >= TICK_SECONDS:  # thousands of messages may come in a second
            self._show()

    def _start(self, child: ProcessSlot) -> None:
        """Start a process of this slot. If the system refuses it, it is tried again later, with longer pauses."""
        run = self._run
        try:
            if child in self.consumers:
                child.start(self._plan, run.idle is not None, child.open_jobs)
            else:
                left = rate = None
                if run.jobs is not None:
                    share = run.jobs // run.generators + (child.number <= run.jobs % run.generators)
                    left = max(0, share - child.report.enqueued)
                if run.rate is not None:
                    rate = run.rate / run.generators
                child.start(self._plan, left, rate)
        except FileNotFoundError:
            self._give_up(child, GaveUp("folder", FOLDER_GONE, at_once=False))
        except OSError as error:
            child.was_ready = True  # the run's clock does not wait for it
            if child in self.consumers:  # without it the queue may be drained by now
                child.finished = any(other.finished and other.gave_up is None for other in self.consumers)
            pause = child.start_later()
            fields = {"event": PROCESS_REFUSED, "consumer": child.number, "error": str(error)}
            words = "a process cannot be started (%s): raise the limit, or give fewer; tried again in %.1f s"
            log.warning(words, error, pause, extra=fields)
        else:
            for command in self._sent:
                child.send(command)

    def _kill_silent(self) -> None:
        """Kill consumers that cannot run their threads: a handler holds Python's lock, or the process is stopped.

        Others have their jobs after a lease, and would meet the same handler, one after the other.
        """
        now, before, liveness = time.monotonic(), self.ticked_at, self._plan.liveness
        self.ticked_at = now
        could_not_run = before is not None and now - before > liveness.lease  # this process itself
        for child in self.consumers:
            if could_not_run and child.heard_at is not None:
                child.heard_at = now
            if child.silence > liveness.lease + liveness.max_batch_time and child.process is not None:
                fields = {"event": PROCESS_SILENT, "consumer": child.number, "seconds": round(child.silence, 1)}
                words = "process %s has not reported for %.0f s, so its handler hangs and runs no thread: it is killed"
                log.error(words, child.process.pid, child.silence, extra=fields)
                child.kill()

    # --- ends of processes -----------------------------------------------------------------------------

    def _collect(self, child: ProcessSlot) -> None:
        if child.read():
            self._exits.clear()
        pid = child.process.pid if child.process is not None else None
        code = child.reap()
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        owner, child.owner_id = child.owner_id, None
        if code == 0 and child.ended_normally and (child.ending or not child.ended_unasked):
            child.finished = True
            return
        if owner is not None:
            self._reclaims.add(owner, f"process {pid} ended {how}")
        fields = {"event": PROCESS_ENDED, "consumer": child.number, "exit_code": code}
        if child.gave_up is not None:
            self._give_up(child, child.gave_up)
        elif child.ending:
            child.finished = True
            log.warning("process %s ended %s while it was stopping", pid, how, extra=fields)
        elif self._ends_again(child, code):
            words = f"{STRIKES} consumers in a row ended themselves {how}: does the handler exit its process?"
            self._give_up(child, GaveUp("exit", words))
        else:
            child.restarts += 1
            pause = child.start_later()
            why = "because of a signal of its own" if child.ended_unasked else how
            log.warning("process %s ended %s; replaced in %.1f s", pid, why, pause, extra=fields)

    def _ends_again(self, child: ProcessSlot, code: int) -> bool:
        """Whether STRIKES processes ended themselves with one exit code, and no batch in between.

        Each held the same number of jobs: smaller and smaller batches mean that the job that ends the processes is
        about to be found. A job that was alone in several of them counts once: it is charged its attempts, waits for
        its back-off, and leaves the processes to other jobs meanwhile. Ends by a signal or a hang do not count: there
        such jobs are found as suspects.
        """
        if child.ended_normally or code < 0 or code == HUNG:
            return False
        before, alone = self._exits[code, child.open_jobs.count], child.open_jobs.alone
        if not alone or alone not in before:
            before.append(alone)
        return len(before) >= STRIKES

    def _give_up(self, child: ProcessSlot, word: GaveUp) -> None:
        """Start no replacement. Stop the run too, unless the error was about the jobs of this process only."""
        child.finished = True
        if self._gave_up is not None and self._gave_up.table_missing:
            return
        self._gave_up = word
        if word.table_missing:
            log.error("%s; the run ends", word.error, extra={"event": RUN_GAVE_UP, "error": word.error})
            self.stop()
        elif not word.at_once:
            words = "%d processes in a row ended by the same error: the run ends"
            log.error(words, STRIKES, extra={"event": RUN_GAVE_UP, "error": word.error})
            self.stop()

    # --- deciding --------------------------------------------------------------------------------------

    def _decide(self) -> None:
        run, now = self._run, time.monotonic()
        generated = all(child.finished for child in self._generators)
        timed = run.duration is not None and self._ready_at is not None
        late = now - (self._ready_at or 0.0) - (run.duration or 0.0) if timed else -math.inf
        if late >= 0 and run.drain and not generated:
            for child in self._generators:
                if not child.ending:
                    child.send("stop")
        elif late >= 0 and not run.drain:
            self._requested.add("stop")
            if late >= run.grace and "cancel" not in self._requested:  # such a handler may never end
                words = f"a batch was not finished {run.grace:g} s after the duration, and was released"
                self._gave_up = GaveUp("duration", words)
                self._release_batches(LAST_GRACE_SECONDS)
        if now >= self._stop_deadline and "cancel" not in self._requested:
            words = "what is not finished %g s after the stop is released"
            log.warning(words, run.stop_timeout, extra={"event": RUN_LATE})
            self._release_batches(REACTION_SECONDS)
        if run.drain and generated:
            self._requested.add("drain retries" if run.drain_retries else "drain")
        is_idle = self._ready_at is not None and not any(child.state.is_busy for child in self.consumers)
        idle_since = max(self._ready_at or 0.0, *(child.active for child in self.consumers))
        if run.idle is not None and "stop" not in self._requested and is_idle and now - idle_since >= run.idle:
            log.info("no consumer had a job for %g s", run.idle, extra={"event": RUN_IDLE, "seconds": run.idle})
            self.stop()

    def _send_requested(self) -> None:
        for command, (phase, words) in PHASES.items():
            if command in self._requested and command not in self._sent:
                self._sent.add(command)
                self._phase = phase
                for child in self._children:
                    child.send(command)
                log.info("%s: %s", phase, words, extra={"event": RUN_PHASE, "phase": phase})
        if "cancel" not in self._sent or time.monotonic() < self._force_at:
            return
        # Kill processes that still run some seconds after `cancel`. Their jobs are released before: the death of a
        # process charges an attempt to a job that its owner held alone, whoever reclaims it first, and the handler of
        # a stopped process did not fail. A thread releases them: the process may not be able to run any Python code,
        # and the supervisor does not wait for the database, after RELEASE_GRACE_SECONDS not at all.
        if self._releasing is None:
            owners = [child.owner_id for child in self._children if child.process is not None and child.owner_id]
            self._releasing = threading.Thread(target=self._reclaims.release, args=(owners,), daemon=True)
            self._releasing.start()
        if not self._releasing.is_alive() or time.monotonic() >= self._force_at + RELEASE_GRACE_SECONDS:
            for child in self._children:
                child.kill()

    # --- display ---------------------------------------------------------------------------------------

    def _show(self) -> Snapshot:
        run, waiting = self._run, self._backlog.left
        self._displayed_at = time.monotonic()
        total = sum((child.report for child in self._children), Report())
        to_come = None
        if waiting is not None and (run.jobs is not None or (run.drain and not run.generators)):
            to_come = waiting + max(0, (run.jobs or 0) - total.enqueued if run.generators else 0)
        self.latest = Snapshot(
            phase="paused" if self._phase in ("running", "draining") and self._backlog.paused else self._phase,
            elapsed=self._displayed_at - self._began,
            consumers=tuple(child.line() for child in self.consumers),
            generators=tuple(child.line() for child in self._generators),
            total=total,
            waiting=waiting,
            rate=self._rate.at(total.done),
            ready=sum(child.reported_at > -math.inf for child in self.consumers),
            to_come=to_come,
            pause_reason=self._backlog.pause_reason,
        )
        try:
            if self.display_error is None:
                self._watch(self.latest)
        except OSError as error:
            self.display_error = error
            fields = {"event": OUTPUT_FAILED, "error": str(error)}
            log.warning("the output cannot be written any more (%s): the run ends", error, extra=fields)
            self.stop()
        return self.latest

    def _summary(self, seconds: float) -> Summary:
        left, word, retries = self._backlog.left, self._gave_up, Retries(0, None)
        if left:
            with suppress(ClaimjobsError, sa.exc.SQLAlchemyError):
                retries = self._queue.retries()
        self._phase = "ended"
        total = self._show().total
        gave_up = word is not None and not (word.at_once and left == 0)  # other consumers may have done these jobs
        return Summary(
            before=self._before,
            generated=total.enqueued,
            left=left,
            seconds=seconds,
            total=total,
            replaced=sum(child.restarts for child in self._children),
            handed_back=total.reclaimed + self._reclaims.reclaimed + self._reclaims.released,
            retries=retries.jobs,
            next_retry=retries.next_in,
            gave_up=word.error if word is not None and gave_up else None,
            table_missing=word is not None and word.table_missing,
        )
