"""Supervisor: generators and consumers as processes; none of them lost, none left behind."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from multiprocessing.connection import Connection, wait
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.admin.stats import Retries
from claimjobs.errors import ClaimjobsError
from claimjobs.report import Report
from claimjobs.workers.backlog_gauge import BacklogGauge
from claimjobs.workers.process_main import HUNG, Plan, run_consumer, run_generator
from claimjobs.workers.process_slot import STRIKES, ProcessSlot, Rate
from claimjobs.workers.progress import Snapshot, Summary
from claimjobs.workers.reclaim_thread import ReclaimThread
from claimjobs.workers.supervisor_pipe import LAST_GRACE, GaveUp, Message, Order, Progress, Said

TICK: Final = 0.1
"""Seconds between two looks at the clock; everything else wakes the supervisor at once."""

PHASES: Final[dict[Order, tuple[str, str]]] = {
    "drain": ("draining", "the generators have ended; consumers go on while a job is due"),
    "drain retries": ("draining", "the generators have ended; consumers go on while a job is due, or to be retried"),
    "stop": ("stopping", "consumers finish the batch in hand; another Ctrl-C or SIGTERM gives it back"),
    "take back": ("taking back", "consumers give back the batch in hand"),
}
"""What each order means for the run, in the order they come."""

log = logging.getLogger("claimjobs.supervisor")


@dataclass(frozen=True)
class Run:
    """How many processes, and until when."""

    consumers: int = 10
    generators: int = 0
    jobs: int | None = None
    """Jobs to generate, all generators together; None: no end."""
    rate: float | None = None
    """Jobs per second to generate, all generators together."""
    duration: float | None = None
    """Seconds, from when all consumers are ready, until generators and consumers are told to stop (with `drain`: the
    generators alone)."""
    grace: float = 60.0
    """Seconds that a batch in hand may go on after `duration`, until it is given back."""
    drain: bool = False
    """End when the generators have ended and no job is due."""
    drain_retries: bool = False
    """With `drain`: and no job that failed waits for its next attempt."""
    idle: float | None = None
    """End when no consumer had a job in hand for so many seconds."""


class Supervisor:
    """Runs the processes of a plan until they are done, or told to stop; then says what it came to.

    A process that dies is replaced, after a pause that grows while replacements die young, and what it held is
    handed back. `stop` and `take_back` may be called from a signal handler. Where `watch` raises an OSError nobody sees
    the run: that is a `stop`.
    """

    def __init__(self, plan: Plan, run: Run, watch: Callable[[Snapshot], None] = lambda _: None) -> None:
        self._plan = plan
        self._run = run
        self._watch = watch
        self._queue = plan.queue()
        tells = run.idle is not None
        self._consumers = [ProcessSlot(n, run_consumer, lambda _: (plan, tells)) for n in range(1, run.consumers + 1)]
        self._generators = [self._generator(n) for n in range(1, run.generators + 1)]
        self._phase = "starting"
        self._told: set[Order] = set()
        self._wanted: set[Order] = set()
        self._rate = Rate()
        self._kill_at: float | None = None
        self._began = self._looked = 0.0
        self._before = 0
        self.taken_back = False
        """Whether `take_back` was called: work was taken back rather than finished."""
        self.unseen: OSError | None = None
        """Why what the run looks like could not be shown any more."""
        self._ready_at: float | None = None
        self._gave_up: GaveUp | None = None
        self._exits: list[int] = []
        """Exit codes of the last processes that ended by themselves, with no batch in between."""

    def _generator(self, number: int) -> ProcessSlot:
        count, jobs, rate = self._run.generators, self._run.jobs, self._run.rate
        share = None if jobs is None else jobs // count + (number <= jobs % count)

        def arguments(before: Report) -> tuple[Any, ...]:
            left = None if share is None else max(0, share - before.enqueued)
            return self._plan, left, None if rate is None else rate / count

        return ProcessSlot(number, run_generator, arguments)

    # --- from outside ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let every process finish the batch in hand."""
        self._wanted.add("stop")

    def take_back(self) -> None:
        """Let every process give back the batch in hand."""
        self.taken_back = True
        self._wanted |= {"stop", "take back"}

    def check(self) -> None:
        """Find out whether the run could work, and what there is to do. Raises ClaimjobsError."""
        try:
            self._plan.check(self._run.generators)
            self._before = self._queue.stats().left
        finally:
            self._queue.engine.dispose()

    def run(self) -> Summary:
        """Run to the end, after `check`."""
        try:
            return self._run_to_the_end()
        finally:
            self._queue.engine.dispose()

    def _run_to_the_end(self) -> Summary:
        log.info("%s", self._queue.done_jobs)
        self._began = time.monotonic()
        with BacklogGauge(self._queue) as self._gauge:
            with ReclaimThread(self._queue) as self._undertaker, self._never_an_orphan():
                while self._alive():
                    self._tick()
            return self._summary()

    # --- one turn --------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._start_due()
        for message in self._hear():
            self._heed(message)
        self._reap()
        self._notice_readiness()
        self._decide()
        self._pass_on()
        self._look()

    def _children(self) -> list[ProcessSlot]:
        return [*self._generators, *self._consumers]

    def _alive(self) -> bool:
        return any(child.process is not None or not child.finished for child in self._children())

    def _start_due(self) -> None:
        for child in self._children():
            if child.due:
                child.start()
                self._tell([child], *self._told)

    def _hear(self) -> Iterator[Message]:
        """Wait for the first who speaks or ends, then read what everyone has said."""
        living = [child for child in self._children() if child.process is not None]
        ready = wait([*_pipes(living), *(c.process.sentinel for c in living if c.process)], TICK)
        for child in living:
            if child.pipe in ready:
                yield from _said_by(child)

    def _heed(self, message: Message) -> None:
        if isinstance(message, Said):
            log.log(message.level, "%s", message.text)
        elif isinstance(message, Progress) and message.batch:
            self._exits = []

    def _reap(self) -> None:
        for child in self._children():
            if child.process is not None and child.process.exitcode is not None:
                self._take_leave(child)

    def _take_leave(self, child: ProcessSlot) -> None:
        for message in _said_by(child):
            self._heed(message)
        code = child.reap()
        owner, child.owner_id = child.owner_id, None
        if code == 0 and child.said_goodbye:
            child.finished = True
            return
        if owner is not None:
            self._undertaker.take(owner)
        if child.gave_up is not None:
            self._give_up(child, child.gave_up)
            return
        if child.ending:
            child.finished = True
            log.warning("a process ended %s while it was stopping", _how(code))
        elif self._ends_again(child, code):
            words = f"{STRIKES} consumers in a row ended themselves {_how(code)}: does the handler exit its process?"
            self._give_up(child, GaveUp("exit", words))
        else:
            pause = child.replace_later()
            log.warning("a process ended %s; replaced in %.1f s", _how(code), pause)

    def _ends_again(self, child: ProcessSlot, code: int) -> bool:
        """Whether so many processes have ended by themselves, with the same exit code and no batch in between.

        A signal and a hang are no choice of theirs: there the jobs are found out that processes die of.
        """
        if child.said_goodbye or code < 0 or code == HUNG:
            return False
        self._exits = [before for before in self._exits if before == code] + [code]
        return len(self._exits) >= STRIKES

    def _give_up(self, child: ProcessSlot, word: GaveUp) -> None:
        """Another process in its place would end like it. So would all others, unless it was about the jobs it had."""
        child.finished = True
        self._gave_up = word
        if not word.at_once:
            log.error("%d processes in a row ended by the same error: the run ends", STRIKES)
            self.stop()

    def _notice_readiness(self) -> None:
        """All consumers have registered once, or died trying: the run's clock begins."""
        if self._ready_at is None and all(child.was_ready for child in self._consumers):
            self._ready_at = time.monotonic()
            self._phase = "running" if self._phase == "starting" else self._phase

    # --- deciding --------------------------------------------------------------------------------------

    def _decide(self) -> None:
        run = self._run
        generated = all(child.finished for child in self._generators)
        late = self._late()
        if late >= 0 and run.drain and not generated:
            self._end(self._generators)
        elif late >= 0 and not run.drain:
            self.stop()
            if late >= run.grace:
                self._cut_short()
        if run.drain and generated:
            self._wanted.add("drain retries" if run.drain_retries else "drain")
        if run.idle is not None and "stop" not in self._wanted and self._quiet() >= run.idle:
            log.info("no consumer had a job for %g s", run.idle)
            self.stop()

    def _late(self) -> float:
        """Seconds since `duration` was over; negative before."""
        if self._run.duration is None or self._ready_at is None:
            return -math.inf
        return time.monotonic() - self._ready_at - self._run.duration

    def _cut_short(self) -> None:
        """A handler that does not come to its end would keep the run open for ever."""
        if "take back" not in self._wanted:
            words = f"a batch was still in hand {self._run.grace:g} s after the duration, and was given back"
            self._gave_up = GaveUp("duration", words)
            self._wanted.add("take back")

    def _quiet(self) -> float:
        """Seconds since a consumer last had a job in hand, or all were ready."""
        if self._ready_at is None or any(child.busy for child in self._consumers):
            return 0.0
        return time.monotonic() - max(self._ready_at, *(child.active for child in self._consumers))

    def _end(self, children: list[ProcessSlot]) -> None:
        for child in children:
            if not child.ending:
                self._tell([child], "stop")

    def _pass_on(self) -> None:
        for order, (phase, words) in PHASES.items():
            if order in self._wanted and order not in self._told:
                self._told.add(order)
                self._phase = phase
                self._tell(self._children(), order)
                log.info("%s: %s", phase, words)
        if "take back" in self._told:
            self._kill_late()

    def _tell(self, children: list[ProcessSlot], *orders: Order) -> None:
        for child, order in product(children, orders):
            child.order(order)
            child.ending = child.ending or order in ("stop", "take back")
            child.finished = child.finished or (child.ending and child.process is None)

    def _kill_late(self) -> None:
        """A handler that does not even let go when its work is taken back is ended with its process."""
        now = time.monotonic()
        self._kill_at = self._kill_at or now + LAST_GRACE + 1.0
        if now >= self._kill_at:
            for child in self._children():
                child.kill()

    @contextmanager
    def _never_an_orphan(self) -> Iterator[None]:
        """Whatever goes wrong in here: no process outlives it, and what they held is handed back."""
        try:
            yield
        finally:
            for child in self._children():
                child.kill()
            for child in self._children():
                if child.process is not None:
                    child.process.join()
                    self._take_leave(child)
            self._queue.close()

    # --- looking ---------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Show how things stand, now and then: messages may come in thousands a second."""
        if time.monotonic() - self._looked >= TICK:
            self._looked = time.monotonic()
            self._show()

    def _show(self) -> None:
        if self.unseen is not None:
            return
        try:
            self._watch(self._snapshot())
        except OSError as error:
            self.unseen = error
            log.warning("the output cannot be written any more (%s): the run ends", error)
            self.stop()

    def _snapshot(self) -> Snapshot:
        total = self._total()
        return Snapshot(
            phase=self._phase,
            elapsed=time.monotonic() - self._began,
            consumers=tuple(child.line() for child in self._consumers),
            generators=tuple(child.line() for child in self._generators),
            total=total,
            waiting=self._gauge.left,
            rate=self._rate.at(total.done),
            ready=sum(child.was_ready for child in self._consumers),
            to_come=self._to_come(total),
        )

    def _to_come(self, total: Report) -> int | None:
        run, waiting = self._run, self._gauge.left
        if waiting is None or (run.jobs is None and (run.generators or not run.drain)):
            return None
        return waiting + max(0, (run.jobs or 0) - total.enqueued if run.generators else 0)

    def _retries(self) -> Retries:
        try:
            return self._queue.retries()
        except (ClaimjobsError, sa.exc.SQLAlchemyError):
            return Retries(0, None)

    def _total(self) -> Report:
        return sum((child.report for child in self._children()), Report())

    def _summary(self) -> Summary:
        seconds = time.monotonic() - (self._ready_at or self._began)
        total, left, word = self._total(), self._gauge.once_more(), self._gave_up
        retries = self._retries() if left else Retries(0, None)
        self._phase = "ended"
        self._show()
        in_vain = word is not None and not (word.at_once and left == 0)  # others may have done what it could not
        return Summary(
            before=self._before,
            generated=total.enqueued,
            done=total.done,
            failed=total.dead,
            left=left,
            seconds=seconds,
            total=total,
            replaced=sum(child.restarts for child in self._children()),
            handed_back=self._undertaker.handed_back,
            retries=retries.jobs,
            next_retry=retries.next_in,
            gave_up=word.error if word is not None and in_vain else None,
        )


def _said_by(child: ProcessSlot) -> Iterator[Message]:
    for message in child.messages():
        child.take(message)
        yield message


def _pipes(children: list[ProcessSlot]) -> list[Connection]:
    return [child.pipe for child in children if child.pipe is not None]


def _how(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"with exit code {code}"
