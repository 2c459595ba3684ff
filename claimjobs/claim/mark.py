"""Mark: writes the owner into jobs that are locked, and notices what the database does not write."""

from __future__ import annotations

import sqlalchemy as sa

from claimjobs.claim.candidates import key_not_unique
from claimjobs.claim.strategy import Phase, Unmarked
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects import Key
from claimjobs.job import Job
from claimjobs.statements.mark import mark
from claimjobs.table.backend import Backend


class Mark:
    """The UPDATE of a claim for jobs whose rows this transaction has locked."""

    def __init__(self, backend: Backend, now: sa.ColumnElement[object]) -> None:
        self._name = backend.roles.name
        self._update = CompiledStatement(mark(backend.roles, backend.dialect, now, backend.owners))

    def write(self, connection: sa.Connection, owner: int, jobs: list[Job]) -> None:
        """Mark these jobs as the owner's. Raises KeyUnfit, and Unmarked where fewer rows were written."""
        if not jobs:
            return
        marked = self._update.count(connection, {"claimjobs_keys": [job.key for job in jobs], "claimjobs_me": owner})
        if marked > len(jobs):
            raise key_not_unique(self._name)
        if marked < len(jobs):
            raise Unmarked(marked, jobs)

    def phase(self, owner: int, keys: list[Key]) -> Phase:
        """The UPDATE, for `explain`."""
        return Phase("mark", self._update.statement, {"claimjobs_keys": keys, "claimjobs_me": owner})
