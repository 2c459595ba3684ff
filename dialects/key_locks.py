"""Advisory locks on the keys of jobs, for `claimjobs.contrib.advisory_locks` alone.

Postgres names such locks by numbers of 64 bits, MySQL and MariaDB by texts.
"""

from __future__ import annotations

import re
import zlib
from hashlib import blake2b
from typing import Any, ClassVar, Final, Protocol

import sqlalchemy as sa

Lock = Any
"""An advisory lock: a number or a name."""
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


class KeyLocks(Protocol):
    """A lock can be held several times by one session, and needs as many unlocks."""

    try_each: ClassVar[sa.Select[Any]]
    """Takes each lock of the parameter `locks` for the session, if it is free: the lock, and whether it was taken.

    This statement reads no jobs. In the WHERE of a statement that reads jobs, a lock would be taken for every row that
    the plan reads before the LIMIT.
    """
    unlock_each: ClassVar[sa.Select[Any]]
    """Releases each lock of the parameter `locks` once."""

    def lock_of(self, table: str, key: str) -> Lock:
        """The lock on a key, given as text, of the table with this full name. Every session computes the same lock.

        Two keys may have the same lock: then one claim waits for the other. Two tables hardly ever do.
        """


class NumberedKeyLocks(KeyLocks):
    """Those of Postgres."""

    _wanted = sa.func.unnest(sa.bindparam("locks", type_=sa.ARRAY(sa.BigInteger)))
    _lock = _wanted.table_valued(sa.column("lock", sa.BigInteger)).render_derived(name="wanted").c.lock
    try_each = sa.select(_lock, sa.func.pg_try_advisory_lock(_lock, type_=sa.Boolean))
    unlock_each = sa.select(sa.func.pg_advisory_unlock(_lock, type_=sa.Boolean))

    def lock_of(self, table: str, key: str) -> int:
        # pg_locks shows the table's half as classid and the key's half as objid: a whole number as it is.
        place = int(key) if _NUMBER.fullmatch(key) else int.from_bytes(blake2b(key.encode(), digest_size=4).digest())
        number = zlib.crc32(table.encode()) << 32 | place & 0xFFFFFFFF
        return number - (1 << 64) if number >> 63 else number


class NamedKeyLocks(KeyLocks):
    """Those of MySQL and MariaDB."""

    _wanted = sa.func.json_table(
        sa.bindparam("locks", type_=sa.JSON), sa.text("'$[*]' columns (name varchar(64) path '$')")
    )
    _lock = _wanted.table_valued(sa.column("name", sa.String(64)), name="wanted").c.name
    try_each = sa.select(_lock, sa.func.get_lock(_lock, 0, type_=sa.Boolean))
    unlock_each = sa.select(sa.func.release_lock(_lock, type_=sa.Boolean))

    def lock_of(self, table: str, key: str) -> str:
        # A name has at most 64 characters, and case makes no difference; on some servers that is so for tables, too.
        table = table.lower()
        digest = blake2b(f"{table}\0{key}".encode(), digest_size=16).hexdigest()
        return f"cj.{table[:28]}.{digest}"
