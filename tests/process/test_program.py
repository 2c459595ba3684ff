"""A program of one's own, told to stop by real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from claimjobs import stop_on_signals
from claimjobs.signals import STOPPING, shielded
from tests.backends import Backend
from tests.process.command import ROOT, rows, statuses
from tests.process.dear import dear

pytestmark = pytest.mark.one_server("the processes are the same on each")

THE_END = "stopping True\nrestored True\n"


@contextmanager
def program(backend: Backend, gate: Path, module: str = "program", **env: str) -> Iterator[subprocess.Popen[str]]:
    """The program, running; killed if it has not ended by itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.process.{module}"],
        cwd=ROOT,
        env={**os.environ, "CLAIMJOBS_URL": backend.url, "GATE": str(gate), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said(process, "ready")
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str], word: str) -> None:
    """Wait for the next word of a program, which is to be this one."""
    assert process.stdout is not None
    assert process.stdout.readline() == f"{word}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_the_batch_in_hand_finish(anywhere: Backend, tmp_path: Path, number: int) -> None:
    queue, gate = anywhere.queue(), tmp_path / "gate"
    queue.enqueue(rows(30))
    with program(anywhere, gate) as process:
        said(process, "begun")
        process.send_signal(number)
        said(process, "told")
        gate.touch()
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, THE_END, "")
    assert statuses(anywhere) == ["unclaimed"] * 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@dear
def test_the_second_signal_gives_it_back(database: Backend, tmp_path: Path, number: int) -> None:
    database.queue().enqueue(rows(30))
    with program(database, tmp_path / "gate") as process:
        said(process, "begun")
        process.send_signal(signal.SIGINT)
        said(process, "told")
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, THE_END, "")
    assert statuses(database) == ["unclaimed"] * 30


@pytest.mark.parametrize("by", ["second signal", pytest.param("timeout", marks=pytest.mark.pair("a timer sends it"))])
def test_in_asyncio_the_second_signal_and_the_timeout_end_the_block(anywhere: Backend, tmp_path: Path, by: str) -> None:
    anywhere.queue().enqueue(rows(30))
    env = {"TIMEOUT": "0.1"} if by == "timeout" else {}
    with program(anywhere, tmp_path / "gate", "program_async", **env) as process:
        said(process, "begun")
        process.send_signal(signal.SIGINT)
        said(process, "told")
        if by == "second signal":
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, THE_END, "")
    assert statuses(anywhere) == ["unclaimed"] * 30


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@dear
def test_a_signal_ends_an_idle_loop_at_once(anywhere: Backend, tmp_path: Path, number: int) -> None:
    anywhere.make()
    with program(anywhere, tmp_path / "gate") as process:
        anywhere.wait_for(lambda: anywhere.rows("claimjobs_owners"), "the loop has begun")
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, THE_END, "")


class Told:
    """Something that can be stopped."""

    stopped = 0
    timeout: float | None = None

    def stop(self, timeout: float | None = None) -> None:
        self.timeout = timeout
        self.stopped += 1


def test_in_a_thread_it_says_where_it_belongs() -> None:
    with ThreadPoolExecutor(1) as threads:
        entered = threads.submit(lambda: stop_on_signals(Told()).__enter__())
        with pytest.raises(ValueError, match="enter it in the main thread, and run the loops in threads"):
            entered.result()


@pytest.mark.parametrize("leave", [True, False])
def test_a_forked_process_has_the_signal_handlers_from_before(leave: bool) -> None:
    """It must not stop a Queue that is its parent's; and whoever ends it by SIGTERM must not wait for ever."""
    with stop_on_signals(Told()):
        if leave:
            with stop_on_signals(Told()):
                pass
        child = os.fork()
        if not child:
            os._exit(0 if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_signal_right_after_the_fork_ends_the_forked_process() -> None:
    """As that of a `multiprocessing.Pool` which ends as soon as it has begun."""
    with stop_on_signals(Told()):
        child = os.fork()
        if not child:
            os._exit(0 if signal.sigtimedwait((), 120) is None else 1)
        os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def test_a_cancel_of_somebody_else_goes_on_its_way_in_asyncio() -> None:
    async def work(*, signals: int) -> None:
        with stop_on_signals(Told()):
            for _ in range(signals):
                signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(120)

    async def cancelled(*, signals: int) -> bool:
        task = asyncio.create_task(work(signals=signals))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(cancelled(signals=0))
    assert asyncio.run(cancelled(signals=2)), "both have cancelled it"


def test_all_queues_are_stopped_and_other_errors_go_on_their_way() -> None:
    one, other, before = Told(), Told(), signal.getsignal(signal.SIGTERM)

    def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), stop_on_signals(one, other):
        work()
    assert (one.stopped, other.stopped, one.timeout) == (1, 1, None)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_in_a_transaction_that_fails_has_no_effect_after_the_block() -> None:
    def work() -> None:
        with shielded():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), stop_on_signals(Told()):
        work()
    with shielded():  # as in the transactions of the code that follows
        pass


def test_a_first_signal_at_the_end_of_the_block_sends_none_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when the block is left, before the former signal handlers are back."""
    sent, restore, told = list[int](), signal.signal, Told()
    monkeypatch.setattr("claimjobs.signals._send_to_main_thread", sent.append)

    def restore_late(number: int, react: Any) -> Any:
        if react is before and not told.stopped:
            signal.raise_signal(signal.SIGTERM)
        return restore(number, react)

    before = signal.getsignal(signal.SIGTERM)
    known = set(threading.enumerate())
    with stop_on_signals(told, timeout=0.0):
        monkeypatch.setattr(signal, "signal", restore_late)
    for thread in {*threading.enumerate()} - known:
        thread.join()
    assert (told.stopped, sent) == (1, [])


def test_a_second_signal_at_the_end_of_the_block_does_not_keep_the_former_handlers_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes when the block is left, and one of the two handlers is back."""
    restore, told, before = signal.signal, Told(), [signal.getsignal(number) for number in STOPPING]

    def restore_late(number: int, react: Any) -> Any:
        former = restore(number, react)
        if number == signal.SIGINT:
            signal.raise_signal(signal.SIGTERM)
        return former

    with stop_on_signals(told):
        signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr(signal, "signal", restore_late)
    assert told.stopped == 1
    assert [signal.getsignal(number) for number in STOPPING] == before
