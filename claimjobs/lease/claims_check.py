"""ClaimsCheck: all consumers of a table must record their claims in one way, or they would not see each other's."""

from __future__ import annotations

import sqlalchemy as sa

from claimjobs.database.savepoint import savepoint
from claimjobs.errors import ClaimsDiffer
from claimjobs.statements import batches as statements
from claimjobs.table.backend import Backend
from claimjobs.table.definitions import BATCHES_TABLE


class ClaimsCheck:
    """Looks for owners of the queue whose claims this program would not see."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def run(self, connection: sa.Connection) -> None:
        """Raises ClaimsDiffer."""
        backend, batches = self._backend, self._backend.roles.batches
        if batches is None and backend.source.batches is not None:
            return  # an open transaction, whose claims look at a side-car and at open batches
        if batches is None:
            ours, others = "rows" if backend.by_lease else "transaction", owners_by_batch(connection, backend)
        else:
            ours, others = "batches", connection.scalar(statements.owners_by_row(batches, backend.owners))
        if others:
            raise ClaimsDiffer(backend.source.name, ours, others, side_car=backend.user_table is not None)


def owners_by_batch(connection: sa.Connection, backend: Backend) -> int:
    """How many owners record their claims per batch. 0 without the table of batches, which an earlier version did not
    make; and for a user who may not read it, whose rights were granted by an earlier version.
    """
    try:
        with savepoint(connection):
            if not sa.inspect(connection).has_table(BATCHES_TABLE, schema=backend.schema):
                return 0
            return int(connection.scalar(statements.owners_by_batch(backend.batches, backend.roles.claims)) or 0)
    except sa.exc.DBAPIError as error:
        if not backend.dialect.errors.refuses_account(error):
            raise
        return 0
