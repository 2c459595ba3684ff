"""What a user raises, logs and answers is not trusted: the job fails, and nothing stays claimed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from claimjobs import Batch, Job, Queue, Retry
from claimjobs.settle.failures import Hooks
from claimjobs.workers.consumer import consume
from claimjobs.workers.handlers import Handler
from tests.backends import Backend
from tests.conformance.jobs import jobs


class Unsaid(Exception):
    """It has no text, and claims to be false, equal to all, and not of this world."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("neither equal nor different")

    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Textless(Exception):
    def __str__(self) -> str:
        number: Any = 42
        return number  # type: ignore[no-any-return]


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


STRANGE: dict[str, Callable[[], Exception]] = {"raises": Unsaid, "is no text": Textless, "leaves": Leaving}


def filled(backend: Backend, count: int = 2, **options: Any) -> Queue:
    queue = backend.queue(**{"retry": Retry(attempts=3, base=0.0), **options})
    queue.enqueue(jobs(count))
    return queue


def states(backend: Backend) -> list[tuple[str, int]]:
    return [(row["status"], row["attempts"]) for row in backend.rows()]


@pytest.mark.parametrize("kind", STRANGE)
def test_an_exception_without_a_text_makes_its_job_fail(anywhere: Backend, kind: str) -> None:
    queue = filled(anywhere, retry=Retry(attempts=1))

    def handle(job: Job) -> None:
        if job.d == "0000":
            raise STRANGE[kind]()

    queue.drain()
    consume(queue, Handler(handle, "handle", "job"))
    [row] = anywhere.rows()
    assert (row["d"], row["status"], row["attempts"]) == ("0000", "dead", 1)
    assert row["last_error"].startswith(STRANGE[kind].__name__)


def test_an_exception_without_a_text_makes_its_batch_suspects(anywhere: Backend) -> None:
    queue = filled(anywhere, 2)

    def handle(batch: Batch) -> None:
        raise Unsaid

    queue.drain(retries=True)
    consume(queue, Handler(handle, "handle", "batch"))
    assert states(anywhere) == [("dead", 3)] * 2


@pytest.mark.parametrize("wait", ["soon", 10**400], ids=["a word", "endless"])
def test_a_wait_that_is_no_number_is_refused_before_anything_is_decided(anywhere: Backend, wait: Any) -> None:
    queue = filled(anywhere)
    batch = queue.claim()
    with batch:
        with pytest.raises(ValueError, match=r"retry_in is .*give seconds"):
            batch.fail(batch[0], "broken", retry_in=wait)
        assert batch[0] in batch.undecided
    assert states(anywhere) == [("unclaimed", 0)] * 2


def test_a_job_that_is_decided_and_has_no_outcome_is_released(anywhere: Backend) -> None:
    """As after an exception between the two, such as Ctrl-C."""
    queue = filled(anywhere)
    with queue.claim() as batch:
        del batch._undecided[batch[0].key]
        batch.done(batch[1])
    assert states(anywhere) == [("unclaimed", 0)]


@pytest.fixture
def broken_filter() -> Iterator[None]:
    """A filter of the user's that raises."""

    def broken(record: logging.LogRecord) -> bool:
        raise RuntimeError(record.name)

    logs = [logging.getLogger(f"claimjobs.{name}") for name in ("settle", "consumer")]
    for log in logs:
        log.addFilter(broken)
    yield
    for log in logs:
        log.removeFilter(broken)


@pytest.mark.usefixtures("broken_filter")
def test_a_failure_is_recorded_whatever_logging_does(anywhere: Backend) -> None:
    queue = filled(anywhere)

    def handle(job: Job) -> None:
        raise ValueError(job.d)

    queue.drain(retries=True)
    consume(queue, Handler(handle, "handle", "job"))
    assert states(anywhere) == [("dead", 3)] * 2


class Gone(BaseException):
    """As `asyncio.CancelledError`."""


def test_a_hook_gets_the_exception_itself_and_what_it_raises_ends_nothing(anywhere: Backend) -> None:
    queue = filled(anywhere, 2)
    got: list[BaseException | str] = []

    def hook(job: Job, error: BaseException | str) -> None:
        got.append(error)
        raise Gone(job.d)

    queue.use_hooks(Hooks(on_retry=hook))
    error = Unsaid()
    with queue.claim() as batch:
        batch.fail(batch[0], error)
    assert [each is error for each in got] == [True]
    assert queue.report.retried == 1
