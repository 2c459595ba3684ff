"""How an owner that waits for work is woken: by a notification, or by the end of the statement that it sleeps in."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import sqlalchemy as sa


class Listener(Protocol):
    """Waits on the session of one connection, which does nothing else meanwhile."""

    def __init__(self, connection: sa.Connection) -> None: ...

    def wait(self, seconds: float) -> bool:
        """Wait for at most so many seconds; whether the session was woken, or `end` was called."""

    def end(self) -> None:
        """End `wait` soon, from another thread. It has no effect if `wait` has not begun: call it again then."""

    def close(self) -> None:
        """Free what the listener holds. `wait` is not called any more."""


class Waking(Protocol):
    """How idle owners are woken."""

    listener: ClassVar[type[Listener]]
    """The listener of a connection's session."""

    def listen(self, owner: int) -> sa.Executable | None:
        """The statement that a session sends once so that it is woken with this owner; None: it needs none."""
        return None

    def wake(self, owners: sa.Table, owner: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
        """Wake an owner when this transaction is committed. If the database `interrupts`: the session to interrupt
        after the commit, or NULL."""

    def interrupt(self, session: int) -> sa.Executable:
        """End the statement that another session of the same user sleeps in, if that session is in `autocommit`."""
        raise LookupError("sleepers of this database are not interrupted")

    def autocommit(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Let each statement commit itself for a `with` block, which saves a round trip each. If the database
        `interrupts`, the session can be interrupted in this block only.

        It must be inside a transaction of SQLAlchemy. If the session cannot be reset, it is ended.
        """
