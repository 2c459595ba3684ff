"""ClaimsCheck: all consumers of a table must see each other's claims."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from claimjobs.database.savepoint import savepoint
from claimjobs.errors import ClaimsDiffer, LocksDiffer, MapsDiffer
from claimjobs.lease.registry import OwnerState, read_owners
from claimjobs.table.backend import Backend
from claimjobs.table.claim_records import NOTHING, ClaimRecords
from claimjobs.table.definitions import OWNER_TABLE


class ClaimsCheck:
    """Looks for owners of the queue whose claims this program would not see, or that would not see its own."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._ours = ClaimRecords.of(backend)

    def run(self, connection: sa.Connection) -> None:
        """Raises ClaimsDiffer."""
        seen = filter(_counts, self._owners(connection))
        others = [other for other in seen if not self._ours.agree_with(other.records)]
        if not others:
            return
        name = self._backend.source.name
        theirs = others[0].records
        if not (theirs.sees and self._ours.sees):
            raise LocksDiffer(name, len(others), ours=bool(theirs.sees))
        if self._has_side_car(theirs) or _is_per_batch(theirs) == _is_per_batch(self._ours):
            raise MapsDiffer(name, self._ours.sees[0], theirs.sees[0], len(others))
        ours = "transaction" if self._ours.kind == NOTHING else str(self._ours.kind)
        raise ClaimsDiffer(name, ours, len(others))

    def _has_side_car(self, theirs: ClaimRecords) -> bool:
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


def _is_per_batch(records: ClaimRecords) -> bool:
    return records.sees[0].startswith('{"batches"')
