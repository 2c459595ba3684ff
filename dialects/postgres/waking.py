"""Waking an owner on Postgres: NOTIFY, which a commit delivers and a rollback does not; and a trigger that notifies."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects.waking import Waking

CHANNEL: Final = "claimjobs_"
"""The channel of an owner is this, then the owner's number."""
FULL: Final = 0.5
"""The part of the server's queue of notifications from which nobody is woken.

A full queue fails every transaction that notifies, at its commit. It fills while a session that listens has an open
transaction (8 GB; since Postgres 17 `max_notify_queue_pages`).
"""


class _NotificationListener:
    """Waits until data arrive on the socket of the connection. It takes all data for a notification, and reads them:
    if no statement follows before the next sleep, they must not end that one, too.
    """

    def __init__(self, connection: sa.Connection) -> None:
        driver: Any = connection.connection.driver_connection
        self._driver = driver
        self._arrived: list[Any] | None = connection.info.get(CHANNEL)
        """Notifications of the connection: one may arrive with the answer to a statement."""
        if self._arrived is None:
            self._arrived = connection.info[CHANNEL] = []
            driver.add_notify_handler(self._arrived.append)
        self._arrived.clear()
        self._end_reader, self._end_writer = socket.socketpair()
        self._end_writer.setblocking(False)

    def wait(self, seconds: float) -> bool:
        if self._arrived:
            return True
        both = select.poll()
        both.register(self._driver.fileno(), select.POLLIN)
        both.register(self._end_reader, select.POLLIN)
        ended = bool(both.poll(seconds * 1000))
        with contextlib.suppress(self._driver.Error):  # a broken connection: the next statement raises it
            self._driver.pgconn.consume_input()
            while self._driver.pgconn.notifies():
                pass
        return ended

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._end_writer.send(b".")

    def close(self) -> None:
        self._end_reader.close()
        self._end_writer.close()


class PostgresWaking(Waking):
    listener = _NotificationListener

    def listen(self, owner: int) -> sa.Executable:
        # Each owner has a channel: one for all would wake all. LISTEN takes no parameter; an owner is a number.
        return sa.text(f"LISTEN {CHANNEL}{owner:d}")

    def wake(self, owners: sa.Table, owner: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
        # The function that tells how full the queue is also removes what all have read.
        is_free = sa.func.pg_notification_queue_usage() < FULL
        return sa.case((is_free, sa.func.pg_notify(sa.func.concat(CHANNEL, owner), "")))

    @contextlib.contextmanager
    def autocommit(self, connection: sa.Connection) -> Iterator[None]:
        driver: Any = connection.connection.driver_connection
        driver.autocommit = True  # the driver sends nothing for this, and no BEGIN and COMMIT while it is set
        try:
            yield
        finally:
            if not driver.closed:
                driver.autocommit = False


# --- a trigger that wakes idle owners at each INSERT, whoever inserts ------------------------------------------

TRIGGER: Final = "claimjobs_wake"
"""The name of the trigger, and of its function."""

_BODY: Final = f"""
DECLARE
    wakes integer;
BEGIN
    IF EXISTS (SELECT FROM {{owners}} o WHERE o.asleep IS NOT NULL AND o.claims = TG_ARGV[0])
    THEN
        IF pg_notification_queue_usage() >= {FULL} THEN
            RETURN NULL; -- a full queue would fail this transaction at its commit, whoever's it is
        END IF;
        SELECT (count(*) + 99) / 100 + least(count(*), 1) INTO wakes
        FROM (SELECT FROM claimjobs_inserted LIMIT 10000) counted;
        PERFORM pg_notify('{CHANNEL}' || chosen.id, '')
        FROM (SELECT o.id FROM {{owners}} o WHERE o.asleep IS NOT NULL AND o.claims = TG_ARGV[0]
            ORDER BY random() LIMIT wakes) chosen;
    END IF;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL; -- a wake that fails must not fail the INSERT: consumers poll
END
"""  # noqa: S608 - constants
"""As many owners as the rows make batches, and one more, as `enqueue` does. If nobody sleeps it reads a small table."""

_MAKE: Final = f"""
DO $make$
DECLARE
    jobs regclass := {{table}};
    place text;
    claimed text;
BEGIN
    SELECT quote_ident(n.nspname), CASE WHEN there.oid = n.oid THEN '' ELSE there.nspname || '.' END || t.relname
        INTO STRICT place, claimed
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
            pg_class t JOIN pg_namespace there ON there.oid = t.relnamespace
        WHERE c.oid = {{claims}}::regclass AND t.oid = jobs;
    EXECUTE 'CREATE OR REPLACE FUNCTION ' || place || '.{TRIGGER}() RETURNS trigger LANGUAGE plpgsql '
        'SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS '
        || quote_literal(replace($body${_BODY}$body$, '{{owners}}', place || '.{{owner_table}}'));
    EXECUTE 'REVOKE ALL ON FUNCTION ' || place || '.{TRIGGER}() FROM PUBLIC';
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = jobs AND tgname = '{TRIGGER}') THEN
        EXECUTE 'CREATE TRIGGER {TRIGGER} AFTER INSERT ON ' || jobs || ' REFERENCING NEW TABLE AS claimjobs_inserted '
            'FOR EACH STATEMENT EXECUTE FUNCTION ' || place || '.{TRIGGER}(' || quote_literal(claimed) || ')';
    END IF;
END $make$
"""  # noqa: S608 - constants


class WakeTrigger:
    """A trigger on a user's table that wakes idle owners, whoever inserts. Names are given as statements write them.

    It is a trigger for each statement, not for each row: COPY of 100,000 rows calls it once.

    Its function runs with the rights of who made it (SECURITY DEFINER), with a fixed search_path and qualified names:
    so a producer needs no right on the table of owners, and can put no object of its own in the function's way.
    """

    def make(self, table: str, claims: str, owners: str) -> str:
        """The statement that makes the trigger, if it is not there. `claims`: the table with the claims of this
        queue. `owners`: the table of owners, beside that.
        """
        named = {"{owner_table}": owners, "{table}": _literal(table), "{claims}": _literal(claims)}
        statement = _MAKE
        for name, value in named.items():
            statement = statement.replace(name, value)
        return statement.strip()

    def drop(self, table: str) -> str:
        """The statement that drops the trigger, if it is there."""
        return f"DROP TRIGGER IF EXISTS {TRIGGER} ON {table}"

    def is_there(self, table: str) -> sa.ColumnElement[bool]:
        """Whether the table has the trigger, and it is enabled."""
        triggers = sa.table("pg_trigger", *map(sa.column, ("tgrelid", "tgname", "tgenabled")))
        ours = triggers.c.tgrelid == sa.func.to_regclass(sa.literal(str(table), sa.String))
        return sa.exists().where(ours, triggers.c.tgname == TRIGGER, triggers.c.tgenabled != "D")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
