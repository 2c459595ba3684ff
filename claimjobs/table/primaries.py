"""Which claims need a server that is the only one to take writes."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from claimjobs.errors import SeveralPrimaries
from claimjobs.table.backend import Backend

BATCHES: Final = ("claims='batches'", "--claims rows (claims='rows')")
TRANSACTION: Final = ("hold='transaction'", "--hold lease (hold='lease')")


def check_primaries(connection: sa.Connection, backend: Backend) -> None:
    """Raises SeveralPrimaries if two primaries would let two claims of one job pass.

    A claim that writes the row of its job, or a row with its key, is safe: one of two such commits is refused. A batch
    and an open transaction protect their jobs by locks, which other primaries do not see.
    """
    way = TRANSACTION if not backend.by_lease else BATCHES if backend.roles.batches is not None else None
    if way and backend.dialect.sessions.is_one_of_several_primaries(connection):
        raise SeveralPrimaries(backend.source.name, *way)
