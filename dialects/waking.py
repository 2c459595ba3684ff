"""How an owner that waits for work is woken: by a notification, or by the end of the statement that it sleeps in."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final, Protocol

import sqlalchemy as sa

CHANNEL: Final = "claimjobs_"
"""The channel of an owner is this, then the owner's number."""
FULL: Final = 0.5
"""The part of the server's queue of notifications from which nobody is woken.

A full queue fails every transaction that notifies, at its commit. It fills while a session that listens has an open
transaction (8 GB; since Postgres 17 `max_notify_queue_pages`).
"""


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


# --- a trigger of Postgres, whose NOTIFY waits for the commit, wakes idle owners whoever inserts -------------

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
    jobs regclass := '{{table}}';
    place text;
    claimed text;
BEGIN
    SELECT quote_ident(n.nspname), CASE WHEN there.oid = n.oid THEN '' ELSE there.nspname || '.' END || t.relname
        INTO STRICT place, claimed
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
            pg_class t JOIN pg_namespace there ON there.oid = t.relnamespace
        WHERE c.oid = '{{claims}}'::regclass AND t.oid = jobs;
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
        statement = _MAKE.replace("{owner_table}", owners)
        for name, value in {"{table}": table, "{claims}": claims}.items():
            statement = statement.replace(name, value.replace("'", "''"))
        return statement.strip()

    def drop(self, table: str) -> str:
        """The statement that drops the trigger, if it is there."""
        return f"DROP TRIGGER IF EXISTS {TRIGGER} ON {table}"

    def is_there(self, table: str) -> sa.ColumnElement[bool]:
        """Whether the table has the trigger, and it is enabled."""
        triggers = sa.table("pg_trigger", *map(sa.column, ("tgrelid", "tgname", "tgenabled")))
        ours = triggers.c.tgrelid == sa.func.to_regclass(sa.literal(str(table), sa.String))
        return sa.exists().where(ours, triggers.c.tgname == TRIGGER, triggers.c.tgenabled != "D")
