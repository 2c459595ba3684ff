"""Upgrade the tables that claimjobs made to the schema of this version, while consumers work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from claimjobs.database.connect import connected, dialect_for
from claimjobs.database.error_translation import reason
from claimjobs.database.session_sharing import why_shared
from claimjobs.dialects import Dialect
from claimjobs.dialects.online_ddl import LOCK_TIMEOUT, Change
from claimjobs.errors import AccessDenied, ClaimjobsError, SessionsShared, UpgradeRunning, UpgradeStopped
from claimjobs.table.definitions import owner_table
from claimjobs.table.versions import OutdatedTable, outdated


def plan(engine: sa.Engine, names: Sequence[str] = ()) -> list[OutdatedTable]:
    """The outdated tables, with the changes that `upgrade` would make; of the tables of jobs, only these names.

    Raises ConnectionFailed, TableMissing, TablesNewer, and UnfitTable for a table that claimjobs did not make.
    """
    dialect = dialect_for(engine)
    with connected(engine) as connection:
        return outdated(connection, dialect, names)


def upgrade(engine: sa.Engine, names: Sequence[str] = ()) -> Iterator[OutdatedTable]:
    """Upgrade the outdated tables, and yield each one when it is done. No change is in a transaction with another.

    Raises what `plan` raises; UpgradeRunning if another upgrade works in this database; UpgradeStopped if the database
    refuses a change, or its lock, and AccessDenied if this user lacks the right; SessionsShared behind a pooler by
    transaction, where others would inherit the settings and the lock of the upgrade.
    """
    dialect = dialect_for(engine)
    with connected(engine) as connection:
        if why := why_shared(engine, dialect, connection):
            raise SessionsShared("an upgrade", why)
        session = connection.execution_options(isolation_level="AUTOCOMMIT")
        session.detach()  # its settings and its lock must not come back to the pool
        owners = owner_table()
        if session.scalar(sa.select(dialect.sessions.try_leader_lock(owners, owners))) is False:  # None: no such table
            raise UpgradeRunning
        for table in outdated(session, dialect, names):
            for change in table.changes:
                _make(session, dialect, table, change=change)
            yield table


def _make(session: sa.Connection, dialect: Dialect, table: OutdatedTable, *, change: Change) -> None:
    try:
        session.exec_driver_sql(dialect.online_ddl.lock_timeout(change)).close()
        # Without parameters a driver leaves a percent sign as it is.
        session.exec_driver_sql(change.statement, execution_options={"no_parameters": True}).close()
    except sa.exc.DBAPIError as error:
        if dialect.errors.broken_kind(error):
            raise
        raise _explained(error, dialect, table, change=change) from error


def _explained(error: sa.exc.DBAPIError, dialect: Dialect, table: OutdatedTable, *, change: Change) -> ClaimjobsError:
    said = reason(error)
    if dialect.errors.refuses_account(error):
        return AccessDenied(
            f"this user may not alter table {table.table!r} ({said}): ask for the right to, or give the output of "
            "`claimjobs upgrade-tables --sql` to somebody who has it"
        )
    step = "mend that, then run `claimjobs upgrade-tables` again."
    if dialect.errors.transient_kind(error):
        step = (
            f"others use the table, and it was not free within {LOCK_TIMEOUT} s; run `claimjobs upgrade-tables` again."
        )
    if dialect.errors.code(error) in dialect.errors.not_online:
        step = "run it without ALGORITHM and LOCK when the table may be locked, then `claimjobs upgrade-tables` again."
    return UpgradeStopped(table.table, change.statement, said, step)
