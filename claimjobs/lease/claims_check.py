"""ClaimsCheck: all consumers of a table must record their claims in one way, or they would not see each other's."""

from __future__ import annotations

import sqlalchemy as sa

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
        if batches is not None:
            self._must_be_none("batches", connection.scalar(statements.owners_by_row(batches, backend.owners)))
        elif backend.batches is not None:
            others = statements.owners_by_batch(backend.batches, backend.roles.name)
            self._must_be_none("rows", connection.scalar(others))

    def _must_be_none(self, ours: str, others: int | None) -> None:
        if others:
            raise ClaimsDiffer(self._backend.roles.name, ours, others)
