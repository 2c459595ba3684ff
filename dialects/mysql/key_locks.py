"""Advisory locks of MySQL have names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b

import sqlalchemy as sa

from claimjobs.dialects.key_locks import KeyLocks, Lock


class MySQLKeyLocks(KeyLocks):
    def schema_of(self, table: sa.Table) -> sa.Executable:
        return sa.select(sa.func.database() if table.schema is None else sa.literal(table.schema))

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
