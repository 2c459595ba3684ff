"""Altering tables of InnoDB: an ALTER TABLE names its algorithm, so that the server refuses to do more."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.engine import Dialect as SQLAlchemyDialect

from claimjobs.dialects.mysql.keys import PREPARER
from claimjobs.dialects.online_ddl import LOCK_TIMEOUT, Change, OnlineDDL, create_index

_NAMED_WITH: Final = sa.text(
    "SELECT table_name FROM information_schema.tables WHERE table_schema = database() "
    "AND table_type = 'BASE TABLE' AND locate(:words, table_comment) > 0 ORDER BY table_name"
)
_EXCLUSIVE: Final = "an exclusive metadata lock: it waits for open transactions; reads and writes wait"


_HOLDER: Final = sa.text(
    "SELECT processlist_id AS id, processlist_user AS user, processlist_host AS host "
    "FROM performance_schema.metadata_locks JOIN performance_schema.threads ON thread_id = owner_thread_id "
    "WHERE object_type = 'TABLE' AND object_schema = coalesce(:schema, database()) AND object_name = :name "
    "AND lock_status = 'GRANTED' AND processlist_id <> connection_id() LIMIT 1"
)
_OLDEST: Final = sa.text(
    "SELECT id, user, host FROM information_schema.innodb_trx "
    "JOIN information_schema.processlist ON id = trx_mysql_thread_id "
    "WHERE id <> connection_id() ORDER BY trx_started LIMIT 1"
)


class MySQLOnlineDDL(OnlineDDL):
    online: ClassVar[str] = ", ALGORITHM=INPLACE, LOCK=NONE"
    """The clause of an ALTER TABLE that builds an index while rows are written, or is refused."""

    def alter(self, statement: str, *, computes: bool = False) -> Change:
        if computes:  # no server adds such a column instantly
            return Change(statement, _EXCLUSIVE, "copies the table")
        return Change(f"{statement}, ALGORITHM=INSTANT", _EXCLUSIVE)

    def comment(self, statement: str) -> Change:
        # MySQL changes a comment in place, also metadata only, but does not call that instant.
        return Change(f"{statement}{self.online}", _EXCLUSIVE)

    def lock_timeout(self, change: Change) -> str:
        # Its default is a year on MySQL and a day on MariaDB. Every later statement waits behind the ALTER TABLE.
        del change
        return f"SET SESSION lock_wait_timeout = {LOCK_TIMEOUT}"

    @contextmanager
    def limited(self, connection: sa.Connection) -> Iterator[None]:
        before = connection.exec_driver_sql("SELECT @@SESSION.lock_wait_timeout").scalar_one()
        connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {LOCK_TIMEOUT}").close()
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {before}").close()

    def lock_holder(self, connection: sa.Connection, table: sa.Table) -> str | None:
        found = connection.execute(_HOLDER, {"schema": table.schema, "name": table.name}).first()
        return None if found is None else f"session {found.id} ({found.user}@{found.host})"

    def named_with(self, connection: sa.Connection, words: str) -> Sequence[str]:
        return connection.scalars(_NAMED_WITH, {"words": words}).all()

    def index_changes(
        self, wanted: sa.Index, fits: Collection[str], there: Collection[str], *, dialect: SQLAlchemyDialect
    ) -> list[Change]:
        """One ALTER TABLE replaces the index, so that it is never missing. A server that dies undoes it."""
        if fits or wanted.table is None:
            return []
        name = PREPARER.quote(str(wanted.name))
        made = create_index(wanted, str(wanted.name), dialect)
        drop = f"DROP INDEX {name}, " if wanted.name in there else ""
        add = f"ADD INDEX {name} {made[made.index('(') :]}"
        alter = f"ALTER TABLE {PREPARER.format_table(wanted.table)} {drop}{add}{self.online}"
        locks = "an exclusive metadata lock at its beginning and its end; reads and writes go on between them"
        return [Change(alter, locks, "reads the table once")]


class MariaDBOnlineDDL(MySQLOnlineDDL):
    # INPLACE allows MariaDB to rebuild the whole table; NOCOPY does not.
    online: ClassVar[str] = ", ALGORITHM=NOCOPY, LOCK=NONE"

    def lock_holder(self, connection: sa.Connection, table: sa.Table) -> str | None:
        # Metadata locks are shown by a plugin that few servers have. A transaction that has a lock is not sure either.
        found = connection.execute(_OLDEST).first()
        return None if found is None else f"perhaps session {found.id} ({found.user}@{found.host})"
