"""MariaDB 10.6 and later: a MySQL but for its version and its error codes.

It has no FOR UPDATE OF (SQLAlchemy leaves the clause out by itself); the candidate table of phase 2 holds
no rows that could be locked, so nothing is lost by that.
"""

from __future__ import annotations

from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from claimjobs.dialects.mysql import MySQL


class MariaDB(MySQL):
    title: ClassVar[str] = "MariaDB"
    # SKIP LOCKED and JSON_TABLE both came with 10.6.
    oldest: ClassVar[tuple[int, ...]] = (10, 6)
    # Without FOR UPDATE OF a locking read locks what its subqueries read, too.
    finds_and_locks_at_once: ClassVar[bool] = False
    # It wants an index for the keys too, which come as a table of JSON; MySQL asks for that of the written table alone.
    refuses_joined_deletes: ClassVar[bool] = True

    # Its JSON_TABLE has no ENUM, and makes other bits of a number; a text would not find a row through the index.
    inexact_types: ClassVar[tuple[type[sa.types.TypeEngine[Any]], ...]] = (*MySQL.inexact_types, sa.Enum, mysql.BIT)

    transient: ClassVar[dict[Any, str]] = {
        **MySQL.transient,
        # Since 11 a snapshot that met a newer row is refused (innodb_snapshot_isolation).
        1020: "serialization",
    }

    def is_elsewhere(self, error: BaseException) -> bool:
        return "is not a MariaDB variant" in str(error)
