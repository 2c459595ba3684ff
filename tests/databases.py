"""A database of a test, from outside of it: made, emptied and removed; its sessions, and the locks in it."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql

from tests.flavours import Family

_OURS = "tests.databases"
_OF_CLIENTS = f"datname = :database AND backend_type = 'client backend' AND application_name <> '{_OURS}'"
"""The server's own vacuum comes and goes as it likes."""


class Database:
    """One database of a server, with sessions that are in no test's database."""

    def __init__(self, family: Family, outside: sa.Engine, name: str) -> None:
        self._family = family
        self._outside = outside
        self.name = name
        self._kept: psycopg.Connection[tuple[str]] | None = None

    def create(self) -> None:
        self._run(f"CREATE DATABASE {self.name}")

    def drop(self) -> None:
        if self._kept is not None:
            self._kept.close()
        self._run(f"DROP DATABASE {self.name}")

    def end_sessions(self) -> None:
        """End those that a test left behind: they would hold the tables."""
        if self._family == "postgres":
            self._ask(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_OF_CLIENTS}")
            return
        for session in self._ask("SELECT id FROM information_schema.processlist WHERE db = :database"):
            with contextlib.suppress(sa.exc.DBAPIError):
                self._run(f"KILL {session.id}")

    def empty(self) -> None:
        """Remove everything in the database. Postgres takes a tenth of a second and more to make one, the others a
        thousandth."""
        if self._family != "postgres":
            self.drop()
            self.create()
            return
        try:
            self._empty_schemas()
        except psycopg.OperationalError:  # the server was started again since the last time
            self._kept = None
            self._empty_schemas()

    def _empty_schemas(self) -> None:
        connection = self._kept = self._kept or self._inside()
        ours = "SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'"
        for (schema,) in connection.execute(ours).fetchall():
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
        connection.execute("CREATE SCHEMA public")

    def sessions(self) -> list[str]:
        if self._family == "postgres":
            asked = f"SELECT pid, state, query FROM pg_stat_activity WHERE {_OF_CLIENTS}"
        else:
            asked = "SELECT id, command, info FROM information_schema.processlist WHERE db = :database"
        return [" ".join(str(value) for value in row) for row in self._ask(asked)]

    def interrupt(self, session: int) -> None:
        cancel = "SELECT pg_cancel_backend({})" if self._family == "postgres" else "KILL QUERY {}"
        self._run(cancel.format(session))

    def someone_waits(self) -> bool:
        if self._family == "postgres":
            asked = f"SELECT 1 FROM pg_stat_activity WHERE {_OF_CLIENTS} AND wait_event_type = 'Lock'"
        else:
            time.sleep(0.11)  # InnoDB shows the same again to whoever asks twice within a tenth of a second
            asked = (
                "SELECT 1 FROM information_schema.innodb_trx JOIN information_schema.processlist "
                "ON id = trx_mysql_thread_id WHERE db = :database AND trx_state = 'LOCK WAIT'"
            )
        return bool(self._ask(asked))

    def advisory_locks(self, names: list[Any]) -> int:
        if self._family == "postgres":
            # objsubid is 2 for those of two numbers, as an owner's is.
            asked = (
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 "
                "AND database = (SELECT oid FROM pg_database WHERE datname = :database)"
            )
        elif self._family == "mysql":
            asked = (
                "SELECT count(*) FROM performance_schema.metadata_locks WHERE object_type = 'USER LEVEL LOCK' "
                "AND lock_status = 'GRANTED' AND object_name LIKE concat('cj.', :database, '.%')"
            )
        else:
            listed = "json_table(:names, '$[*]' columns (name varchar(64) path '$')) AS listed"
            asked = f"SELECT count(*) FROM {listed} WHERE is_used_lock(name) IS NOT NULL AND :database <> ''"
        with self._outside.connect() as connection:
            return int(connection.scalar(sa.text(asked), {"database": self.name, "names": json.dumps(names)}) or 0)

    def row_locks(self) -> list[tuple[str, str]]:
        asked = (
            "SELECT index_name, lock_mode FROM performance_schema.data_locks "
            "WHERE object_schema = :database AND lock_type = 'RECORD' AND object_name <> 'claimjobs_owners'"
        )
        return [(row[0], row[1]) for row in self._ask(asked)]

    def _ask(self, statement: str) -> list[Any]:
        with self._outside.connect() as connection:
            return list(connection.execute(sa.text(statement), {"database": self.name}))

    def _run(self, statement: str) -> None:
        with self._outside.connect() as connection:
            connection.exec_driver_sql(statement).close()

    def _inside(self) -> psycopg.Connection[tuple[str]]:
        """A session in the database itself, of the plain driver: an engine would cost more than what it is for. To
        begin one and learn the catalogue is a quarter of what the server does for a small test, so it is kept."""
        url = self._outside.url.set(drivername="postgresql", database=self.name)
        return psycopg.connect(url.render_as_string(hide_password=False), autocommit=True, application_name=_OURS)
