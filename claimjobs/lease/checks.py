"""Checks before the first claim: all consumers of a table must see each other's claims, and the server takes writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from claimjobs.database.error_translation import reason
from claimjobs.database.transactions import savepoint
from claimjobs.dialects.error_codes import READ_ONLY
from claimjobs.errors import ClaimsDiffer, ReadOnly, session_read_only
from claimjobs.lease.registry import OwnerState, read_owners
from claimjobs.statements import owners
from claimjobs.table.backend import Backend
from claimjobs.table.definitions import OWNER_TABLE
from claimjobs.table.record_description import RecordDescription

NOBODY: Final = {"claimjobs_me": 0, "claimjobs_host": "", "claimjobs_pid": 0}
"""An owner that is in no table."""


def check_claims(connection: sa.Connection, backend: Backend, *, only_reads: bool = False) -> None:
    """Look for owners of the queue whose claims this program would not see, or that would not see its own.

    Raises ClaimsDiffer. `only_reads`: this program claims nothing, so limits per key are not its concern.
    """
    ours = RecordDescription.of(backend)
    # An owner that records no claims counts while it has its session lock: while it lives.
    seen = [one.records for one in _owners(connection, backend) if one.records.are_claims or one.holder is not None]
    if only_reads:
        others = [theirs for theirs in seen if not ours.without_limits.agree_with(theirs.without_limits)]
    else:
        others = [theirs for theirs in seen if not ours.agree_with(theirs)]
    if others:
        name = backend.source.name
        differs = ours.difference_from(others[0], name, beside=backend.user_table is not None)
        raise ClaimsDiffer(
            f"table {name!r} has {len(others)} {'owner' if len(others) == 1 else 'owners'} {differs.how}: "
            f"{differs.step}, or end those consumers first, and run {differs.reclaim} if one of them died"
        )


def _owners(connection: sa.Connection, backend: Backend) -> Sequence[OwnerState]:
    """All owners of the queue. A transaction as a hold needs no table of owners, and no right to read it."""
    if backend.by_lease:
        return read_owners(connection, backend)
    try:
        with savepoint(connection):
            is_there = sa.inspect(connection).has_table(OWNER_TABLE, schema=backend.schema)
            return read_owners(connection, backend) if is_there else ()
    except sa.exc.DBAPIError as error:
        if not backend.dialect.errors.refuses_account(error):
            raise
        return ()


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
