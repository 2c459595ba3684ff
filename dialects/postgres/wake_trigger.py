"""A trigger on Postgres that wakes idle owners at each INSERT, whoever inserts."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from claimjobs.dialects.postgres.waking import CHANNEL, FULL
from claimjobs.dialects.waking import WakeTrigger

NAME: Final = "claimjobs_wake"
"""The name of the trigger, and of its function."""

_BODY: Final = """
DECLARE
    wakes integer;
BEGIN
    IF EXISTS (SELECT FROM {owners} o WHERE o.asleep IS NOT NULL AND o.claims = TG_ARGV[0])
    THEN
        IF pg_notification_queue_usage() >= {full} THEN
            RETURN NULL; -- a full queue would fail this transaction at its commit, whoever's it is
        END IF;
        SELECT (count(*) + 99) / 100 + least(count(*), 1) INTO wakes
        FROM (SELECT FROM claimjobs_inserted LIMIT 10000) counted;
        PERFORM pg_notify('{channel}' || chosen.id, '')
        FROM (SELECT o.id FROM {owners} o WHERE o.asleep IS NOT NULL AND o.claims = TG_ARGV[0]
            ORDER BY random() LIMIT wakes) chosen;
    END IF;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL; -- a wake that fails must not fail the INSERT: consumers poll
END
"""
"""As many owners as the rows make batches, and one more, as `enqueue` does. If nobody sleeps it reads a small table."""

_MAKE: Final = """
DO $make$
DECLARE
    jobs regclass := {table};
    place text;
    claimed text;
BEGIN
    SELECT quote_ident(n.nspname), CASE WHEN there.oid = n.oid THEN '' ELSE there.nspname || '.' END || t.relname
        INTO STRICT place, claimed
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
            pg_class t JOIN pg_namespace there ON there.oid = t.relnamespace
        WHERE c.oid = {claims}::regclass AND t.oid = jobs;
    EXECUTE 'CREATE OR REPLACE FUNCTION ' || place || '.{name}() RETURNS trigger LANGUAGE plpgsql '
        'SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS '
        || quote_literal(replace($body${body}$body$, '{owners}', place || '.{owner_table}'));
    EXECUTE 'REVOKE ALL ON FUNCTION ' || place || '.{name}() FROM PUBLIC';
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = jobs AND tgname = '{name}') THEN
        EXECUTE 'CREATE TRIGGER {name} AFTER INSERT ON ' || jobs || ' REFERENCING NEW TABLE AS claimjobs_inserted '
            'FOR EACH STATEMENT EXECUTE FUNCTION ' || place || '.{name}(' || quote_literal(claimed) || ')';
    END IF;
END $make$
"""


class PostgresWakeTrigger(WakeTrigger):
    """A trigger for each statement, not for each row: COPY of 100,000 rows calls it once.

    Its function runs with the rights of who made it (SECURITY DEFINER), with a fixed search_path and qualified names:
    so a producer needs no right on the table of owners, and can put no object of its own in the function's way.
    """

    def make(self, table: str, claims: str, owners: str) -> str:
        body = _BODY.replace("{channel}", CHANNEL).replace("{full}", str(FULL))
        named = {"body": body, "table": _literal(table), "claims": _literal(claims), "name": NAME}
        statement = _MAKE.replace("{owner_table}", owners)
        for name, value in named.items():
            statement = statement.replace(f"{{{name}}}", value)
        return statement.strip()

    def drop(self, table: str) -> str:
        return f"DROP TRIGGER IF EXISTS {NAME} ON {table}"

    def is_there(self, table: str) -> sa.ColumnElement[bool]:
        triggers = sa.table("pg_trigger", *map(sa.column, ("tgrelid", "tgname", "tgenabled")))
        ours = triggers.c.tgrelid == sa.func.to_regclass(sa.literal(str(table), sa.String))
        return sa.exists().where(ours, triggers.c.tgname == NAME, triggers.c.tgenabled != "D")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
