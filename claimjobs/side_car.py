"""The side-car: a table of claims beside a table that must not be altered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SideCar:
    """How the claims on a table are kept in a table of their own, `<table>_claims` unless `table` names another.

    `lock_source=True`: a claim locks the rows that it takes for the moment in which their keys are inserted, so that
    no two consumers insert the same key, and none waits. It needs the right to lock rows, which comes with the right
    to update them. `False`: rows are only read. Consumers that insert the same key then wait for each other, and the
    second one goes without it: for few consumers, or a table that this user may only read. All consumers of a table
    must use the same.

    The row of a done job stays, and its key is kept as done, so that it is not found again; claims walk over done keys
    at the head of the order, a tenth of a second for 100,000 of them. A key that comes to be used again is a new job
    only where done keys are not kept.
    """

    lock_source: bool = True
    table: str | None = None

    def name_for(self, source: str) -> str:
        """The name of the table of claims on this one, both with their schema, if any."""
        return self.table or f"{source}_claims"
