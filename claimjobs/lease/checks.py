"""Checks before the first claim: all consumers of a table must see each other's claims, and the server takes writes."""

from __future__ import annotations

import shlex
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
from claimjobs.table.record_description import NOTHING, RecordDescription

NOBODY: Final = {"claimjobs_me": 0, "claimjobs_host": "", "claimjobs_pid": 0}
"""An owner that is in no table."""


class ClaimsCheck:
    """Looks for owners of the queue whose claims this program would not see, or that would not see its own."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._ours = RecordDescription.of(backend)

    def run(self, connection: sa.Connection) -> None:
        """Raises ClaimsDiffer."""
        seen = filter(_counts, self._owners(connection))
        others = [other for other in seen if not self._ours.agree_with(other.records)]
        if others:
            difference, step, reclaim = self._difference(others[0].records)
            raise ClaimsDiffer(
                f"table {self._backend.source.name!r} has {len(others)} {'owner' if len(others) == 1 else 'owners'} "
                f"{difference}: {step}, or end those consumers first, and run {reclaim} if one of them died"
            )

    def _difference(self, theirs: RecordDescription) -> tuple[str, str, str]:
        """How their claims differ from ours, the next step, and the command that reclaims the jobs of a dead owner."""
        ours, reclaim = self._ours, "`claimjobs reclaim`"
        if not (theirs.sees and ours.sees):
            who = "with hold='lease'" if theirs.sees else "whose Locking locks no rows"
            here = "a Locking that locks no rows" if theirs.sees else "a claim by lease"
            step = "give all consumers of a table the same hold and locking"
            return f"{who}, and {here} excludes no claim of theirs", step, reclaim
        if self._has_side_car(theirs) or _is_per_batch(theirs) == _is_per_batch(ours):
            who = f"with another map of its columns, or another side-car ({theirs.sees[0]}, and here {ours.sees[0]})"
            step = "give all consumers of a table the same Columns and the same side_car"
            return f"{who}, so their claims are not seen", step, f"{reclaim} with theirs"
        claims = "rows" if ours.kind == "batches" else "batches"
        way, options, python = f"claims={ours.kind!r}", f"--claims {claims}", f"claims={claims!r}"
        if ours.kind == NOTHING:
            way, options, python = "hold='transaction'", f"{options} --hold lease", f"{python}, hold='lease'"
        who = f"with claims={claims!r}, whose claims are not seen with {way}"
        table = "" if self._backend.source.name == "jobs" else f" --table {shlex.quote(self._backend.source.name)}"
        return who, f"add {options} ({python})", f"`claimjobs reclaim {options}{table}`"

    def _has_side_car(self, theirs: RecordDescription) -> bool:
        """Whether one of the two has a side-car: another way to claim would not help."""
        return self._backend.user_table is not None or '"side_car"' in theirs.sees[0]

    def _owners(self, connection: sa.Connection) -> Sequence[OwnerState]:
        """All owners of the queue. A transaction as a hold needs no table of owners, and no right to read it."""
        backend = self._backend
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


def _counts(seen: OwnerState) -> bool:
    """Whether it may claim, or has left claims. One that records none has its session lock while it lives."""
    return seen.kind != NOTHING or seen.holder is not None


def _is_per_batch(records: RecordDescription) -> bool:
    return records.sees[0].startswith('{"batches"')


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
