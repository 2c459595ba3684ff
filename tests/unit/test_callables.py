"""Which functions work when they are called, and which only return what would."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from claimjobs import Job
from claimjobs.callables import COROUTINE, deferred, in_thread, unfinished
from claimjobs.errors import BadHandler
from claimjobs.workers.handlers import handler_of


async def sends(job: Any) -> None:
    """A coroutine."""


async def sends_many(job: Any) -> AsyncIterator[int]:
    yield 1


def yields(job: Any) -> Iterator[int]:
    yield 1


class Sender:
    """Async, and callable."""

    async def send(self, job: Any) -> None:
        pass

    async def __call__(self, job: Any) -> None:
        pass

    @staticmethod
    async def alone(job: Any) -> None:
        pass


@functools.wraps(sends)
async def decorated(*words: Any) -> None:
    await sends(*words)


@functools.wraps(sends)
def run_by_asyncio(*words: Any) -> None:
    asyncio.run(sends(*words))


class Promise:
    """As a future of any library."""

    def __await__(self) -> Iterator[None]:
        yield


WORK_LATER = {
    "async def": sends,
    "async generator": sends_many,
    "generator": yields,
    "method": Sender().send,
    "static method": Sender.alone,
    "object": Sender(),
    "partial": functools.partial(sends),
    "partial of a partial": functools.partial(functools.partial(yields)),
    "partial of an object": functools.partial(Sender()),
    "decorated": decorated,
}


@pytest.mark.parametrize("function", WORK_LATER.values(), ids=WORK_LATER)
@pytest.mark.parametrize("per", ["batch", "job", None])
def test_a_function_that_does_not_work_when_called_is_no_handler(function: Callable[..., Any], per: Any) -> None:
    kind = deferred(function)
    assert kind
    if kind != COROUTINE:
        with pytest.raises(
            BadHandler, match=r"'shop:send' is an? (async )?\w+.* function, and calling it runs nothing"
        ):
            handler_of(function, "shop:send", per)
    elif per == "batch":
        with pytest.raises(BadHandler, match="'shop:send' is async, and takes a batch"):
            handler_of(function, "shop:send", per)
    elif per == "job":
        assert handler_of(function, "shop:send", per).concurrency == 10
        with pytest.raises(BadHandler, match="'shop:send' is async, and `--hold transaction` handles one job after"):
            handler_of(function, "shop:send", per, in_transaction=True)


def test_a_plain_function_of_a_job_is_called_for_many_at_once_if_that_is_asked_for() -> None:
    assert handler_of(run_by_asyncio, "shop:send", "job", concurrency=3).concurrency == 3
    assert handler_of(run_by_asyncio, "shop:send", "job", concurrency=1).concurrency is None
    with pytest.raises(BadHandler, match="'shop:send' is called for many jobs at once, and takes a batch"):
        handler_of(run_by_asyncio, "shop:send", "batch", concurrency=2)


@pytest.mark.parametrize("function", [print, len, Sender, functools.partial(print), run_by_asyncio, lambda job: job])
def test_other_functions_work_when_called(function: Callable[..., Any]) -> None:
    assert deferred(function) is None


def test_a_plain_function_that_runs_an_async_one_is_a_handler() -> None:
    handler_of(run_by_asyncio, "shop:send")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: sends(1), "a coroutine"),
        (lambda: yields(1), "a generator"),
        (lambda: sends_many(1), "an async generator"),
        (Promise, "an awaitable"),
        (lambda: None, None),
        (lambda: [1], None),
    ],
)
def test_what_was_not_run_is_named_and_closed(make: Callable[[], Any], kind: str | None) -> None:
    assert unfinished(make()) == kind


# --- in a thread, for asyncio ----------------------------------------------------------------------------------


def test_a_task_that_is_cancelled_twice_waits_for_its_thread_all_the_same() -> None:
    gate, ended = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait(5)
        ended.set()

    async def cancelled_twice() -> None:
        task = asyncio.create_task(in_thread(work))
        for _ in range(2):
            await asyncio.sleep(0.05)
            task.cancel()
        await asyncio.wait([task], timeout=0.1)
        assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled_twice())
    assert ended.is_set()


def test_an_error_after_a_cancel_is_not_logged_as_one_that_nobody_has_seen(caplog: pytest.LogCaptureFixture) -> None:
    begun, gate = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        gate.wait(5)
        raise ValueError("it came too late")

    async def cancelled() -> None:
        task = asyncio.create_task(in_thread(fail))
        await asyncio.to_thread(begun.wait, 5)
        task.cancel()
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    gc.collect()
    assert not caplog.records


# --- signatures ------------------------------------------------------------------------------------------------


def two(job: Any, other: Any) -> None: ...
def only_named(*, job: Any) -> None: ...
def batch_and_more(batch: Any, connection: Any) -> None: ...
def in_between(job: Any, connection: Any, other: Any) -> None: ...
def by_position(job: Any, connection: Any, /) -> None: ...
def nothing() -> None: ...


@pytest.mark.parametrize("function", [two, only_named, batch_and_more, in_between, by_position])
def test_a_function_that_cannot_be_called_so_is_refused(function: Any) -> None:
    with pytest.raises(BadHandler, match=r"'shop:send' has the parameters \(.+, and is called with \((job|batch).*\)"):
        handler_of(function, "shop:send", in_transaction=True)


@pytest.mark.parametrize("function", [nothing, only_named, two])
@pytest.mark.parametrize("per", ["batch", "job"])
def test_what_is_declared_must_fit_too(function: Any, per: Any) -> None:
    with pytest.raises(BadHandler, match="and is called with"):
        handler_of(function, "shop:send", per)


def with_default(job: Any, other: Any = 1, *more: Any, key: Any = 2, **rest: Any) -> None: ...
def with_all(*job: Any) -> None: ...
def given_more(f: Any) -> Any:
    @functools.wraps(f)
    def inner(job: Job) -> None:
        f(job, "the database")

    return inner


@pytest.mark.parametrize("function", [with_default, with_all, given_more(two), functools.partial(two, other=1)])
def test_a_function_that_can_be_called_so_is_a_handler(function: Any) -> None:
    handler_of(function, "shop:send")


def test_a_function_that_tells_no_parameters_is_refused() -> None:
    with pytest.raises(BadHandler, match=r"the parameters of handler .* cannot be read"):
        handler_of(min, "builtins:min")
