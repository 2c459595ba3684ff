"""Triggers that write down what becomes of jobs and owners, in the SQL of Postgres and of MySQL."""

from __future__ import annotations

from typing import Final

POSTGRES_NOW: Final = "extract(epoch FROM clock_timestamp())"
MYSQL_NOW: Final = "unix_timestamp(sysdate(6))"
"""The database's clock, in seconds since 1970."""

_OUTCOME: Final = "status", "attempts", "suspect"
_ROW: Final = (*_OUTCOME, "owner_id")
"""Columns of a job, or of an entry in a side-car. A change of one of them is a move."""


def _changed(names: tuple[str, ...], *, postgres: bool) -> str:
    if postgres:
        old, new = (", ".join(f"{version}.{name}" for name in names) for version in ("OLD", "NEW"))
        return f"({old}) IS DISTINCT FROM ({new})"
    return f"NOT ({' AND '.join(f'OLD.{name} <=> NEW.{name}' for name in names)})"


# --- owners --------------------------------------------------------------------------------------------------

_POSTGRES_OWNERS: Final = (
    # Behind a pooler a client's name goes with it from session to session.
    """CREATE FUNCTION chaos_session() RETURNS integer LANGUAGE sql AS $$
      SELECT coalesce(substring(current_setting('application_name') FROM '^client ([0-9]+)$')::int, pg_backend_pid())
    $$""",
    f"""CREATE FUNCTION chaos_owner() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      IF TG_OP = 'DELETE' THEN
        INSERT INTO chaos_deaths (owner, at) VALUES (OLD.id, {POSTGRES_NOW});
      ELSIF NEW.died IS NULL THEN
        INSERT INTO chaos_sessions (owner, session, pid) VALUES (NEW.id, chaos_session(), NEW.pid)
          ON CONFLICT DO NOTHING;
      ELSE
        INSERT INTO chaos_deaths (owner, at) VALUES (NEW.id, {POSTGRES_NOW});
      END IF;
      RETURN NULL;
    END $$""",
    """CREATE TRIGGER chaos_owners AFTER INSERT OR UPDATE OR DELETE ON claimjobs_owners
       FOR EACH ROW EXECUTE FUNCTION chaos_owner()""",
)
_MYSQL_OWNERS: Final = (
    """CREATE TRIGGER chaos_came AFTER INSERT ON claimjobs_owners FOR EACH ROW
      INSERT IGNORE INTO chaos_sessions (owner, session, pid) VALUES (NEW.id, connection_id(), NEW.pid)""",
    f"""CREATE TRIGGER chaos_lived AFTER UPDATE ON claimjobs_owners FOR EACH ROW
      IF NEW.died IS NULL THEN
        INSERT IGNORE INTO chaos_sessions (owner, session, pid) VALUES (NEW.id, connection_id(), NEW.pid);
      ELSE
        INSERT INTO chaos_deaths (owner, at) VALUES (NEW.id, {MYSQL_NOW});
      END IF""",
    f"""CREATE TRIGGER chaos_left AFTER DELETE ON claimjobs_owners FOR EACH ROW
      INSERT INTO chaos_deaths (owner, at) VALUES (OLD.id, {MYSQL_NOW})""",
)


def on_owners(*, postgres: bool) -> tuple[str, ...]:
    """Sessions and deaths of owners. On Postgres also the function that all others call for their session."""
    return _POSTGRES_OWNERS if postgres else _MYSQL_OWNERS


# --- jobs of a table of claimjobs ----------------------------------------------------------------------------

_POSTGRES_JOBS: Final = (
    f"""CREATE FUNCTION chaos_move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      IF TG_OP = 'INSERT' THEN
        INSERT INTO chaos_moves (job, new_owner, new_status, session, at, e)
          VALUES (NEW.id, NEW.owner_id, NEW.status, chaos_session(), {POSTGRES_NOW}, NEW.e);
      ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO chaos_moves (job, old_owner, old_status, session, at)
          VALUES (OLD.id, OLD.owner_id, OLD.status, chaos_session(), {POSTGRES_NOW});
      ELSIF {_changed(_ROW, postgres=True)} THEN
        INSERT INTO chaos_moves (job, old_owner, new_owner, old_status, new_status, session, at)
          VALUES (NEW.id, OLD.owner_id, NEW.owner_id, OLD.status, NEW.status, chaos_session(), {POSTGRES_NOW});
      END IF;
      RETURN NULL;
    END $$""",
    "CREATE TRIGGER chaos_jobs AFTER INSERT OR UPDATE OR DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION chaos_move()",
)
_MYSQL_JOBS: Final = (
    f"""CREATE TRIGGER chaos_enqueued AFTER INSERT ON jobs FOR EACH ROW
      INSERT INTO chaos_moves (job, new_owner, new_status, session, at, e)
        VALUES (NEW.id, NEW.owner_id, NEW.status, connection_id(), {MYSQL_NOW}, NEW.e)""",
    f"""CREATE TRIGGER chaos_gone AFTER DELETE ON jobs FOR EACH ROW
      INSERT INTO chaos_moves (job, old_owner, old_status, session, at)
        VALUES (OLD.id, OLD.owner_id, OLD.status, connection_id(), {MYSQL_NOW})""",
    f"""CREATE TRIGGER chaos_moved AFTER UPDATE ON jobs FOR EACH ROW
      IF {_changed(_ROW, postgres=False)} THEN
        INSERT INTO chaos_moves (job, old_owner, new_owner, old_status, new_status, session, at)
          VALUES (NEW.id, OLD.owner_id, NEW.owner_id, OLD.status, NEW.status, connection_id(), {MYSQL_NOW});
      END IF""",
)


def on_jobs(*, postgres: bool) -> tuple[str, ...]:
    """Moves of jobs whose rows say their state."""
    return _POSTGRES_JOBS if postgres else _MYSQL_JOBS


# --- jobs of a table that must not be altered ----------------------------------------------------------------

_POSTGRES_SIDE_CAR: Final = (
    f"""CREATE FUNCTION chaos_user_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      IF TG_OP = 'INSERT' THEN
        INSERT INTO chaos_moves (job, new_status, session, at, e)
          VALUES (NEW.id, 'unclaimed', chaos_session(), {POSTGRES_NOW}, NEW.e);
      ELSE
        INSERT INTO chaos_writes (job, session, at) VALUES (OLD.id, chaos_session(), {POSTGRES_NOW});
      END IF;
      RETURN NULL;
    END $$""",
    """CREATE TRIGGER chaos_jobs AFTER INSERT OR UPDATE OR DELETE ON jobs
       FOR EACH ROW EXECUTE FUNCTION chaos_user_row()""",
    f"""CREATE FUNCTION chaos_entry() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      IF TG_OP = 'INSERT' AND NEW.status <> 'unclaimed' THEN
        INSERT INTO chaos_moves (job, old_status, new_status, session, at)
          VALUES (NEW.id, 'unclaimed', nullif(NEW.status, 'done'), chaos_session(), {POSTGRES_NOW});
      ELSIF TG_OP = 'UPDATE' AND {_changed(_OUTCOME, postgres=True)} THEN
        INSERT INTO chaos_moves (job, old_status, new_status, session, at)
          VALUES (NEW.id, OLD.status, nullif(NEW.status, 'done'), chaos_session(), {POSTGRES_NOW});
      ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO chaos_moves (job, old_status, new_status, session, at)
          VALUES (OLD.id, OLD.status, 'unclaimed', chaos_session(), {POSTGRES_NOW});
      END IF;
      RETURN NULL;
    END $$""",
    """CREATE TRIGGER chaos_entries AFTER INSERT OR UPDATE OR DELETE ON jobs_claims
       FOR EACH ROW EXECUTE FUNCTION chaos_entry()""",
)
_MYSQL_SIDE_CAR: Final = (
    f"""CREATE TRIGGER chaos_enqueued AFTER INSERT ON jobs FOR EACH ROW
      INSERT INTO chaos_moves (job, new_status, session, at, e)
        VALUES (NEW.id, 'unclaimed', connection_id(), {MYSQL_NOW}, NEW.e)""",
    *(
        f"""CREATE TRIGGER chaos_{verb} AFTER {verb} ON jobs FOR EACH ROW
      INSERT INTO chaos_writes (job, session, at) VALUES (OLD.id, connection_id(), {MYSQL_NOW})"""
        for verb in ("UPDATE", "DELETE")
    ),
    *(
        f"""CREATE TRIGGER chaos_entry_{verb} AFTER {verb} ON jobs_claims FOR EACH ROW
      IF {condition} THEN
        INSERT INTO chaos_moves (job, old_status, new_status, session, at)
          VALUES ({version}.id, {before}, nullif({after}, 'done'), connection_id(), {MYSQL_NOW});
      END IF"""
        for verb, version, before, after, condition in (
            ("INSERT", "NEW", "'unclaimed'", "NEW.status", "NEW.status <> 'unclaimed'"),
            ("UPDATE", "NEW", "OLD.status", "NEW.status", _changed(_OUTCOME, postgres=False)),
            ("DELETE", "OLD", "OLD.status", "'unclaimed'", "TRUE"),
        )
    ),
)


def on_a_side_car(*, postgres: bool) -> tuple[str, ...]:
    """Moves of jobs whose state is in a side-car, and whatever is written in the table that must not be altered."""
    return _POSTGRES_SIDE_CAR if postgres else _MYSQL_SIDE_CAR
