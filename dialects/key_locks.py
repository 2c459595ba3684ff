"""Advisory locks on the keys of jobs. Databases name such locks by numbers, or by texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

Lock = Any
"""An advisory lock: a number or a name."""


class KeyLocks:
    """The locks of `claimjobs.contrib.advisory_locks`."""

    def schema_of(self, table: sa.Table) -> sa.Executable:
        """Asks in which schema, or database, the server finds a table: tables of several schemas may share a name."""
        raise NotImplementedError

    def lock_of(self, table: str, key: str) -> Lock:
        """The lock on a key, given as text, of the table with this full name. Every session computes the same lock.

        Two keys may have the same lock: then one claim waits for the other. Two tables hardly ever do.
        """
        raise NotImplementedError

    def parameter(self, locks: Sequence[Lock]) -> Any:
        """Locks as the value of the parameter of `each_lock`."""
        return list(locks)

    def each_lock(self) -> sa.ColumnElement[Any]:
        """The column of a table with one row for each lock of the parameter `locks`, read in its order."""
        raise NotImplementedError

    def try_lock(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Take this lock for the session if it is free: true or false at once. A lock can be held several times."""
        raise NotImplementedError

    def unlock(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Release it once."""
        raise NotImplementedError
