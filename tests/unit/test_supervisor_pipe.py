"""What a process sends to its supervisor."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import threading
from typing import Any

from claimjobs.workers.supervisor_pipe import LogToSupervisor, SupervisorPipe

log = logging.getLogger("tests.supervisor_pipe")


class Task:
    """As one of asyncio that is destroyed before its end."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        log.warning("it was destroyed")


class Collects:
    """While it is pickled, the garbage collector runs."""

    def __reduce__(self) -> Any:
        Task()
        gc.collect()
        return str, ("sent",)


def test_what_is_logged_by_the_garbage_collector_in_the_middle_of_a_message_is_sent_after_it() -> None:
    ours, theirs = multiprocessing.Pipe()
    supervisor = SupervisorPipe(theirs, None)
    log.addHandler(LogToSupervisor(supervisor, "text"))
    sender = threading.Thread(target=supervisor.send, args=({"message": Collects()},), daemon=True)
    with ours, theirs:
        sender.start()
        sender.join(20)
        assert not sender.is_alive()
        assert [ours.recv()["message"], ours.recv()["msg"]] == ["sent", "it was destroyed"]
