"""Advisory locks on the keys of jobs, for `claimjobs.contrib.advisory_locks` alone.

Postgres names such locks by numbers of 64 bits, MySQL and MariaDB by texts.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol

import sqlalchemy as sa

Lock = Any
"""An advisory lock: a number or a name."""
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


class KeyLocks(Protocol):
    """A lock can be held several times by one session, and needs as many unlocks."""

    def lock_of(self, table: str, key: str) -> Lock:
        """The lock on a key, given as text, of the table with this full name. Every session computes the same lock.

        Two keys may have the same lock: then one claim waits for the other. Two tables hardly ever do.
        """

    def parameter(self, locks: Sequence[Lock]) -> Any:
        """Locks as the value of the parameter of `each_lock`."""

    def each_lock(self) -> sa.ColumnElement[Any]:
        """The column of a table with one row for each lock of the parameter `locks`, read in its order."""

    def try_lock(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Take this lock for the session if it is free: true or false at once."""

    def unlock(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Release it once."""


class NumberedKeyLocks(KeyLocks):
    """Those of Postgres."""

    def lock_of(self, table: str, key: str) -> int:
        """pg_locks shows the table's half as classid and the key's half as objid: a whole number as it is."""
        place = int(key) if _NUMBER.fullmatch(key) else int.from_bytes(blake2b(key.encode(), digest_size=4).digest())
        number = zlib.crc32(table.encode()) << 32 | place & 0xFFFFFFFF
        return number - (1 << 64) if number >> 63 else number

    def parameter(self, locks: Sequence[Lock]) -> list[int]:
        return list(locks)

    def each_lock(self) -> sa.ColumnElement[int]:
        locks: sa.BindParameter[Any] = sa.bindparam("locks", type_=sa.ARRAY(sa.BigInteger))
        wanted = sa.func.unnest(locks).table_valued(sa.column("lock", sa.BigInteger))
        return wanted.render_derived(name="wanted").c.lock

    def try_lock(self, lock: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        return sa.func.pg_try_advisory_lock(lock, type_=sa.Boolean)

    def unlock(self, lock: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        return sa.func.pg_advisory_unlock(lock, type_=sa.Boolean)


class NamedKeyLocks(KeyLocks):
    """Those of MySQL and MariaDB."""

    def lock_of(self, table: str, key: str) -> str:
        # A name has at most 64 characters, and case makes no difference; on some servers that is so for tables, too.
        table = table.lower()
        digest = blake2b(f"{table}\0{key}".encode(), digest_size=16).hexdigest()
        return f"cj.{table[:28]}.{digest}"

    def parameter(self, locks: Sequence[Lock]) -> str:
        return json.dumps(list(locks))

    def each_lock(self) -> sa.ColumnElement[str]:
        names = sa.bindparam("locks", type_=sa.Text)
        shape = sa.text("'$[*]' columns (name varchar(64) path '$')")
        return sa.func.json_table(names, shape).table_valued(sa.column("name", sa.String(64)), name="wanted").c.name

    def try_lock(self, lock: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        return sa.func.get_lock(lock, 0, type_=sa.Boolean)

    def unlock(self, lock: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        return sa.func.release_lock(lock, type_=sa.Boolean)
