"""ClaimsCheck: all consumers of a table must record their claims in one way, or they would not see each other's."""

from __future__ import annotations

import sqlalchemy as sa

from claimjobs.database.savepoint import savepoint
from claimjobs.errors import ClaimsDiffer
from claimjobs.statements import batches as statements
from claimjobs.table.backend import Backend


class ClaimsCheck:
    """Looks for owners of the queue whose claims this program would not see."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def run(self, connection: sa.Connection) -> None:
        """Raises ClaimsDiffer."""
        backend, batches = self._backend, self._backend.roles.batches
        if batches is None:
            ours, others = "rows", owners_by_batch(connection, backend)
        else:
            ours, others = "batches", connection.scalar(statements.owners_by_row(batches, backend.owners))
        if others:
            raise ClaimsDiffer(backend.roles.name, ours, others)


def owners_by_batch(connection: sa.Connection, backend: Backend) -> int:
    """How many owners record their claims per batch. 0 for a user who may not read the table of batches: who records
    claims in rows needs no right on it.
    """
    if backend.batches is None:
        return 0
    try:
        with savepoint(connection):
            return int(connection.scalar(statements.owners_by_batch(backend.batches, backend.roles.name)) or 0)
    except sa.exc.DBAPIError as error:
        if not backend.dialect.errors.refuses_account(error):
            raise
        return 0
