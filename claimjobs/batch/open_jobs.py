"""Takes jobs out of open batches, which is how a settle makes sure that its owner still holds them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import sqlalchemy as sa

from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects import Key
from claimjobs.job import key_of
from claimjobs.statements import batches as statements
from claimjobs.table.batches import OpenBatches


class OpenJobs:
    """The jobs in the open batches of an owner."""

    def __init__(self, batches: OpenBatches) -> None:
        self._close = CompiledStatement(statements.close(batches))
        self._locked = statements.locked(batches)
        self._numbered = statements.numbered(batches)
        self._shorten = statements.shorten(batches)
        self._close_all = statements.close_all(batches)
        self._seized, self._count = statements.seized(batches), statements.count(batches)

    def take_out(self, connection: sa.Connection, owner: int, keys: Sequence[Key], number: int = 0) -> set[Key]:
        """Take these jobs out of the owner's batches, whose rows stay locked until the commit: the keys that it held.

        `number`: of their batch; 0: they may be from several. A batch of which these are all jobs is closed by one
        statement.
        """
        whole = {"claimjobs_me": owner, "claimjobs_number": number, "claimjobs_meant": len(keys)}
        if number and self._close.count(connection, whole) == 1:
            return set(keys)
        wanted, held = set(keys), self._by_batch(connection, owner)
        for batch, jobs in held.items():
            if wanted & set(jobs):
                self._shrink(connection, {"claimjobs_me": owner, "claimjobs_number": batch}, jobs, wanted)
        return wanted & {key for jobs in held.values() for key in jobs}

    def seize(self, connection: sa.Connection, owner: int) -> bool:
        """Lock all batches of the owner, without a wait; return False if another session has one locked.

        That session may be its own, with a settle that is not committed. It takes the locks in this order: the batch
        first, then its jobs.
        """
        me = {"claimjobs_me": owner}
        seized = len(connection.execute(self._seized, me).all())
        return bool(seized == connection.scalar(self._count, me))

    def close_all(self, connection: sa.Connection, owner: int) -> None:
        """Delete the owner's batches: what is left in them are jobs whose rows are gone."""
        connection.execute(self._close_all, {"claimjobs_me": owner})

    def _by_batch(self, connection: sa.Connection, owner: int) -> dict[int, list[Key]]:
        """The keys in each batch of the owner. The batches are locked before they are read."""
        me = {"claimjobs_me": owner}
        connection.execute(self._locked, me).all()
        found: defaultdict[int, list[Key]] = defaultdict(list)
        for number, *key in connection.execute(self._numbered, me):
            found[number].append(key_of(key))
        return found

    def _shrink(self, connection: sa.Connection, batch: dict[str, int], jobs: list[Key], wanted: set[Key]) -> None:
        """Take the wanted jobs out of a batch of these jobs; delete it if no other is left."""
        if rest := [key for key in jobs if key not in wanted]:
            connection.execute(self._shorten, {**batch, "claimjobs_json": rest, "claimjobs_meant": len(rest)})
        else:
            self._close.count(connection, {**batch, "claimjobs_meant": len(jobs)})
