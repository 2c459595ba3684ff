"""A check that the server takes writes: a member that is read-only answers every question of a consumer but these."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from claimjobs.database.error_translation import reason
from claimjobs.database.savepoint import savepoint
from claimjobs.dialects.error_codes import READ_ONLY
from claimjobs.errors import ReadOnly, session_read_only
from claimjobs.statements import owners
from claimjobs.table.backend import Backend

NOBODY: Final = {"claimjobs_me": 0, "claimjobs_host": "", "claimjobs_pid": 0}
"""An owner that is in no table."""


def require_writes(connection: sa.Connection, backend: Backend) -> None:
    """Try a write that reaches no row. Raises ReadOnly, or SettingUnfit if the engine is the reason.

    Whether an account may write on a read-only server, only a write tells. Any other error is for other checks to find,
    so it is undone.
    """
    setting = backend.dialect.sessions.read_only_setting(connection)
    try:
        with savepoint(connection):
            connection.execute(owners.beat(backend.owners), NOBODY)
    except sa.exc.DBAPIError as error:
        if backend.dialect.errors.broken_kind(error) == READ_ONLY:
            name = backend.source.name
            raise (session_read_only(name, *setting) if setting else ReadOnly(name, reason(error))) from error
