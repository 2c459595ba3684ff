"""The supervisor: starts generators and consumers as processes, replaces those that die, and leaves none behind."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice, product
from multiprocessing.connection import wait
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.admin.stats import Retries
from claimjobs.errors import FOLDER_GONE, ClaimjobsError
from claimjobs.log_events import (
    OUTPUT_FAILED,
    PROCESS_REFUSED,
    PROCESS_SILENT,
    RUN_GAVE_UP,
    RUN_IDLE,
    RUN_LATE,
    RUN_PHASE,
    RUN_STARTED,
)
from claimjobs.report import Report
from claimjobs.signals import REACTION
from claimjobs.workers.backlog_counter import BacklogCounter
from claimjobs.workers.process_main import HUNG, Plan, run_consumer, run_generator
from claimjobs.workers.process_slot import STRIKES, ProcessSlot, Rate, how_ended
from claimjobs.workers.reclaim import ForcedEnd, ReclaimThread
from claimjobs.workers.run import Run, Snapshot, Summary, log_findings, require_folder
from claimjobs.workers.supervisor_pipe import LAST_GRACE, PHASES, Command, GaveUp, LogRecord, Message, State

TICK: Final = 0.1
"""Seconds between two checks of the clock. A message or the end of a process wakes the supervisor at once."""
AT_ONCE: Final = 1_000
"""Messages of one process that are read in a row: one that logs without end must not keep the supervisor busy."""

log = logging.getLogger("claimjobs.supervisor")


class Supervisor:
    """Runs the processes of a plan until they are done or stopped, and returns a summary.

    A process that dies is replaced, and its jobs are reclaimed. The pause before a replacement grows while replacements
    die young. `stop` and `cancel` may be called from a signal handler. If `watch` raises an OSError, the run stops.
    """

    def __init__(self, plan: Plan, run: Run, watch: Callable[[Snapshot], None] = lambda _: None) -> None:
        self._plan = plan
        self._run = run
        self._watch = watch
        self._queue = plan.queue()
        self.consumers = [self._consumer(n) for n in range(1, run.consumers + 1)]
        self._generators = [self._generator(n) for n in range(1, run.generators + 1)]
        self._children = [*self._generators, *self.consumers]
        self._phase = "starting"
        self._sent: set[Command] = set()
        self._requested: set[Command] = set()
        self._rate = Rate()
        self._stop_deadline = math.inf
        self._forced_end = ForcedEnd(self._queue)
        self._began = self._displayed_at = 0.0
        self._before = 0
        self.latest: Snapshot | None = None
        """The state of the run, at most a few TICKs ago. It is replaced, never changed: any thread may read it."""
        self.ticked_at: float | None = None
        """When the supervisor last looked after its processes, by the machine's monotonic clock."""
        self.cancelled = False
        """Whether `cancel` was called: batches were released before they were finished."""
        self.display_error: OSError | None = None
        """The error by which the output could not be written any more."""
        self._ready_at: float | None = None
        self._gave_up: GaveUp | None = None
        self._exits: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        """For each exit code and number of open jobs of processes that ended themselves, with no batch in between: the
        job that each of them held alone, or 0.
        """

    def _consumer(self, number: int) -> ProcessSlot:
        reports_begin = self._run.idle is not None
        slot = ProcessSlot(number, run_consumer, lambda _: (self._plan, reports_begin, slot.open_jobs))
        return slot

    def _generator(self, number: int) -> ProcessSlot:
        count, jobs, rate = self._run.generators, self._run.jobs, self._run.rate
        share = None if jobs is None else jobs // count + (number <= jobs % count)

        def arguments(before: Report) -> tuple[Any, ...]:
            left = None if share is None else max(0, share - before.enqueued)
            return self._plan, left, None if rate is None else rate / count

        return ProcessSlot(number, run_generator, arguments)

    # --- commands --------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let every process finish its batch and end. After `stop_timeout` open batches are released."""
        self._requested.add("stop")
        if self._run.stop_timeout is not None:
            self._stop_deadline = min(self._stop_deadline, time.monotonic() + self._run.stop_timeout)

    def cancel(self) -> None:
        """Let every process release its batch and end."""
        self.cancelled = True
        self._release_batches(LAST_GRACE)

    def _release_batches(self, grace: float) -> None:
        """Cancel. A process whose handler does not react within `grace` seconds is killed."""
        self._forced_end.begin_after(grace)
        self._requested |= {"stop", "cancel"}

    def check(self) -> None:
        """Check the plan and count the jobs. Raises ClaimjobsError."""
        try:
            require_folder()
            self._plan.check(self._run.generators)
            self._queue.use_hooks(self._plan.load_hooks())
            self._before = self._queue.stats().left
        finally:
            self._queue.engine.dispose()

    def run(self) -> Summary:
        """Run to the end, after `check`."""
        try:
            log.info("%s", self._queue.done_jobs, extra={"event": RUN_STARTED, "queue": self._queue.table.fullname})
            log_findings(self._queue)
            self._began = time.monotonic()
            with BacklogCounter(self._queue) as self._backlog:
                with ReclaimThread(self._queue) as self._reclaim_thread, self._no_process_left():
                    while any(child.process is not None or not child.finished for child in self._children):
                        self._tick()
                return self._summary()
        finally:
            self._queue.engine.dispose()

    # --- one tick --------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._note_time()
        for child in self._children:
            if child.due and self._started(child):
                self._send([child], *self._sent)
        for message in self._receive():
            self._note(message)
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
        if time.monotonic() - self._displayed_at >= TICK:  # thousands of messages may come in a second
            self._displayed_at = time.monotonic()
            self._show()

    def _note_time(self) -> None:
        now, before = time.monotonic(), self.ticked_at
        self.ticked_at = now
        if before is not None and now - before > self._plan.liveness.lease:  # this process itself could not run
            for child in self.consumers:
                child.heard_at = None if child.heard_at is None else now

    def _kill_silent(self) -> None:
        """Kill consumers that cannot run their threads: a handler holds Python's lock, or the process is stopped.

        Others have their jobs after a lease, and would meet the same handler, one after the other.
        """
        liveness = self._plan.liveness
        for child in self.consumers:
            silence = child.silence(time.monotonic())
            if silence > liveness.lease + liveness.max_batch_time and child.process is not None:
                fields = {"event": PROCESS_SILENT, "consumer": child.number, "seconds": round(silence, 1)}
                words = "process %s has not reported for %.0f s, so its handler hangs and runs no thread: it is killed"
                log.error(words, child.process.pid, silence, extra=fields)
                child.kill()

    @property
    def ends(self) -> bool:
        """Whether the run was told to stop, or has ended."""
        return "stop" in self._requested or self._phase == "ended"

    def _started(self, child: ProcessSlot) -> bool:
        """Start a process of this slot. If the system refuses it, it is tried again later, with longer pauses."""
        try:
            child.start()
        except FileNotFoundError:
            self._give_up(child, GaveUp("folder", FOLDER_GONE, at_once=False))
            return False
        except OSError as error:
            child.was_ready = True  # the run's clock does not wait for it
            if child in self.consumers:  # without it the queue may be drained by now
                child.finished = any(other.finished and other.gave_up is None for other in self.consumers)
            pause = child.start_later()
            fields = {"event": PROCESS_REFUSED, "consumer": child.number, "error": str(error)}
            words = "a process cannot be started (%s): raise the limit, or give fewer; tried again in %.1f s"
            log.warning(words, error, pause, extra=fields)
            return False
        return True

    def _receive(self) -> Iterator[Message]:
        """Wait until a process sends a message or ends, then read the messages of all."""
        living = [child for child in self._children if child.process is not None]
        pipes = (child.pipe for child in living if child.pipe is not None)
        ready = wait([*pipes, *(child.process.sentinel for child in living if child.process)], TICK)
        for child in living:
            if child.pipe in ready:
                yield from islice(_messages_of(child), AT_ONCE)

    def _note(self, message: Message) -> None:
        if isinstance(message, LogRecord):
            message.log()
        elif isinstance(message, State) and message.batch:
            self._exits.clear()

    def _collect(self, child: ProcessSlot) -> None:
        for message in _messages_of(child):
            self._note(message)
        pid = child.process.pid if child.process is not None else None
        code = child.reap()
        how = how_ended(code)
        owner, child.owner_id = child.owner_id, None
        if code == 0 and child.ended_normally and (child.ending or not child.ended_unasked):
            child.finished = True
            return
        if owner is not None:
            self._reclaim_thread.add(owner, f"process {pid} ended {how}")
        if child.gave_up is not None:
            self._give_up(child, child.gave_up)
            return
        if child.ending:
            child.finished = True
            log.warning("process %s ended %s while it was stopping", pid, how, extra=child.end_fields(code))
        elif self._ends_again(child, code):
            words = f"{STRIKES} consumers in a row ended themselves {how}: does the handler exit its process?"
            self._give_up(child, GaveUp("exit", words))
        else:
            pause = child.replace_later()
            why = "because of a SIGTERM of its own" if child.ended_unasked else how
            words = "process %s ended %s; replaced in %.1f s"
            log.warning(words, pid, why, pause, extra=child.end_fields(code))

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
        run = self._run
        generated = all(child.finished for child in self._generators)
        late = self._late()
        if late >= 0 and run.drain and not generated:
            self._send([child for child in self._generators if not child.ending], "stop")
        elif late >= 0 and not run.drain:
            self._requested.add("stop")
            if late >= run.grace and "cancel" not in self._requested:  # such a handler may never end
                words = f"a batch was not finished {run.grace:g} s after the duration, and was released"
                self._gave_up = GaveUp("duration", words)
                self._release_batches(LAST_GRACE)
        if time.monotonic() >= self._stop_deadline and "cancel" not in self._requested:
            log.warning(
                "what is not finished %g s after the stop is released", run.stop_timeout, extra={"event": RUN_LATE}
            )
            self._release_batches(REACTION)
        if run.drain and generated:
            self._requested.add("drain retries" if run.drain_retries else "drain")
        if run.idle is not None and "stop" not in self._requested and self._idle_seconds() >= run.idle:
            log.info("no consumer had a job for %g s", run.idle, extra={"event": RUN_IDLE, "seconds": run.idle})
            self.stop()

    def _late(self) -> float:
        """Seconds since `duration` was over; negative before."""
        if self._run.duration is None or self._ready_at is None:
            return -math.inf
        return time.monotonic() - self._ready_at - self._run.duration

    def _idle_seconds(self) -> float:
        """Seconds since a consumer last held a job, or since all were ready."""
        if self._ready_at is None or any(child.busy for child in self.consumers):
            return 0.0
        return time.monotonic() - max(self._ready_at, *(child.active for child in self.consumers))

    def _send_requested(self) -> None:
        for command, (phase, words) in PHASES.items():
            if command in self._requested and command not in self._sent:
                self._sent.add(command)
                self._phase = phase
                self._send(self._children, command)
                log.info("%s: %s", phase, words, extra={"event": RUN_PHASE, "phase": phase})
        if "cancel" in self._sent:
            self._forced_end.tick(self._children)

    def _send(self, children: list[ProcessSlot], *commands: Command) -> None:
        for child, command in product(children, commands):
            child.send(command)
            child.ending = child.ending or command in ("stop", "cancel")
            child.finished = child.finished or (child.ending and child.process is None)

    @contextmanager
    def _no_process_left(self) -> Iterator[None]:
        """For a `with` block: at its end every process is killed, and its jobs are reclaimed."""
        try:
            yield
        finally:
            for child in self._children:
                child.kill()
            for child in self._children:
                if child.process is not None:
                    child.process.join()
                    self._collect(child)
            self._queue.close()

    # --- display ---------------------------------------------------------------------------------------

    def _show(self) -> None:
        self.latest = self._snapshot()
        if self.display_error is not None:
            return
        try:
            self._watch(self.latest)
        except OSError as error:
            self.display_error = error
            fields = {"event": OUTPUT_FAILED, "error": str(error)}
            log.warning("the output cannot be written any more (%s): the run ends", error, extra=fields)
            self.stop()

    def _snapshot(self) -> Snapshot:
        total, run, waiting = self._total(), self._run, self._backlog.left
        to_come = None
        if waiting is not None and (run.jobs is not None or (run.drain and not run.generators)):
            to_come = waiting + max(0, (run.jobs or 0) - total.enqueued if run.generators else 0)
        return Snapshot(
            phase="paused" if self._phase in ("running", "draining") and self._backlog.paused else self._phase,
            elapsed=time.monotonic() - self._began,
            consumers=tuple(child.line() for child in self.consumers),
            generators=tuple(child.line() for child in self._generators),
            total=total,
            waiting=waiting,
            rate=self._rate.at(total.done),
            ready=sum(child.was_ready for child in self.consumers),
            to_come=to_come,
            pause_reason=self._backlog.pause_reason,
        )

    def _total(self) -> Report:
        return sum((child.report for child in self._children), Report())

    def _summary(self) -> Summary:
        seconds = time.monotonic() - (self._ready_at or self._began)
        total, left, word = self._total(), self._backlog.count_once_more(), self._gave_up
        retries = Retries(0, None)
        if left:
            with suppress(ClaimjobsError, sa.exc.SQLAlchemyError):
                retries = self._queue.retries()
        self._phase = "ended"
        self._show()
        gave_up = word is not None and not (word.at_once and left == 0)  # other consumers may have done these jobs
        return Summary(
            before=self._before,
            generated=total.enqueued,
            done=total.done,
            failed=total.dead,
            left=left,
            seconds=seconds,
            total=total,
            replaced=sum(child.restarts for child in self._children),
            handed_back=total.reclaimed + self._reclaim_thread.reclaimed + self._forced_end.released,
            retries=retries.jobs,
            next_retry=retries.next_in,
            gave_up=word.error if word is not None and gave_up else None,
            table_missing=word is not None and word.table_missing,
        )


def _messages_of(child: ProcessSlot) -> Iterator[Message]:
    for message in child.messages():
        child.note(message)
        yield message
