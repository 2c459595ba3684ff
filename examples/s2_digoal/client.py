"""What a client of the pools can call, and the outcomes."""

from __future__ import annotations

from typing import Protocol

ASSIGNED = "assigned"
ALREADY = "already assigned"
NOTHING = "nothing free"
BUSY = "busy"

Result = tuple[str, int | None]
"""The outcome and, if it is `assigned`, the other half of the pair."""


class Client(Protocol):
    """One client, with a connection of its own."""

    def __init__(self, url: str) -> None: ...

    def close(self) -> None: ...

    def pick_worker(self, task: int) -> Result:
        """Example 1: given a task, pick any free worker of `java_pool`."""

    def release(self, worker: int) -> bool:
        """Example 1: release the worker; return whether it had a task."""

    def pick_task(self, worker: int) -> Result:
        """Example 2: given a worker, pick any free task of `task_pool`."""

    def insert(self, worker: int, task: int) -> Result:
        """Example 3: insert a pair of which neither half exists."""
