"""Probe: checks whether rows that are found again and again, and never claimed, can be claimed at all."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from claimjobs.dialects import Key
from claimjobs.errors import key_unequal
from claimjobs.job import key_of
from claimjobs.statements.find import Selection
from claimjobs.statements.settle import still_there
from claimjobs.table.backend import Backend

SOME: Final = 10
"""How many rows are checked."""


class Probe:
    """Reads the keys of some rows that are ready, then reads the rows by these keys. It locks nothing."""

    def __init__(self, backend: Backend, selection: Selection) -> None:
        source = backend.source
        self._name = source.name
        self._first = sa.select(*source.key).where(selection.found).order_by(*selection.order).limit(SOME)
        self._by_key = still_there(source, backend.dialect)

    def run(self, connection: sa.Connection) -> None:
        """Raises KeyUnfit for rows that are there before and after, and are not found by their own key."""
        keys = self._keys(connection)
        if keys:
            found = {key_of(row) for row in connection.execute(self._by_key, {"claimjobs_keys": keys})}
            missing = [key for key in keys if key not in found]
            missing = [key for key in self._keys(connection) if key in missing] if missing else missing
            if missing:
                raise key_unequal(self._name, missing)

    def _keys(self, connection: sa.Connection) -> list[Key]:
        return [key_of(row) for row in connection.execute(self._first)]
