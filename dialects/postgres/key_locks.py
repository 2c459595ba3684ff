"""Advisory locks of Postgres have numbers of 64 bits."""

from __future__ import annotations

import re
import zlib
from hashlib import blake2b
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects.key_locks import KeyLocks
from claimjobs.dialects.postgres.names import PREPARER

_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


class PostgresKeyLocks(KeyLocks):
    def schema_of(self, table: sa.Table) -> sa.Executable:
        return sa.text(
            "SELECT nspname FROM pg_namespace JOIN pg_class ON relnamespace = pg_namespace.oid "
            "WHERE pg_class.oid = to_regclass(:name)"
        ).bindparams(name=PREPARER.format_table(table))

    def lock_of(self, table: str, key: str) -> int:
        """pg_locks shows the table's half as classid and the key's half as objid: a whole number as it is."""
        place = int(key) if _NUMBER.fullmatch(key) else int.from_bytes(blake2b(key.encode(), digest_size=4).digest())
        number = zlib.crc32(table.encode()) << 32 | place & 0xFFFFFFFF
        return number - (1 << 64) if number >> 63 else number

    def each_lock(self) -> sa.ColumnElement[int]:
        locks: sa.BindParameter[Any] = sa.bindparam("locks", type_=sa.ARRAY(sa.BigInteger))
        wanted = sa.func.unnest(locks).table_valued(sa.column("lock", sa.BigInteger))
        return wanted.render_derived(name="wanted").c.lock

    def try_lock(self, lock: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        return sa.func.pg_try_advisory_lock(lock, type_=sa.Boolean)

    def unlock(self, lock: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        return sa.func.pg_advisory_unlock(lock, type_=sa.Boolean)
