"""What a consumer process reports to its supervisor, and when."""

from __future__ import annotations

import pickle

import pytest

from claimjobs import Queue
from claimjobs.workers.supervisor_pipe import Message, OpenJobs, ProcessState, Reporter, SupervisorPipe
from tests.backends import Backend
from tests.process.command import rows
from tests.process.dear import dear

pytestmark = pytest.mark.one_server("the processes are the same on each")


class Kept(SupervisorPipe):
    """A pipe that keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def send(self, message: Message) -> None:
        self.messages.append(pickle.loads(pickle.dumps(message)))

    @property
    def done(self) -> list[int]:
        """The counts of done jobs that were reported."""
        return [message.report.done for message in self.messages if isinstance(message, ProcessState)]


def filled(backend: Backend) -> Queue:
    queue = backend.queue()
    queue.enqueue(rows(20))
    return queue


def drained(queue: Queue, reporter: Reporter) -> None:
    for batch in queue.batches(5, drain=True):
        with batch:
            batch.done()
        reporter.settled(batch)


@dear
def test_batches_that_follow_fast_are_reported_together_and_nothing_is_left_at_the_end(anywhere: Backend) -> None:
    queue, pipe = filled(anywhere), Kept()
    with Reporter(queue, pipe, OpenJobs(), soonest=600.0) as reporter:
        drained(queue, reporter)
        assert pipe.done == [5]
    assert pipe.done == [5, 20]
    last = pipe.messages[-1]
    assert isinstance(last, ProcessState)
    assert (last.batch, last.owner_id) == (5, queue.owner_id)


@dear
def test_they_are_reported_soon_without_another_batch(anywhere: Backend) -> None:
    queue, pipe = filled(anywhere), Kept()
    with Reporter(queue, pipe, OpenJobs()) as reporter:
        drained(queue, reporter)
        anywhere.wait_for(lambda: pipe.done[-1] == 20, "the last batch is reported")
        assert pipe.done[0] == 5


@dear
def test_each_batch_is_reported_at_once_if_that_is_asked_for(anywhere: Backend) -> None:
    queue, pipe = filled(anywhere), Kept()
    with Reporter(queue, pipe, OpenJobs(), soonest=0.0) as reporter:
        drained(queue, reporter)
        assert pipe.done == [5, 10, 15, 20]
