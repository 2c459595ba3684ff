"""Jobs that are read, and changed, by their keys or by a predicate: what DeadJobs and JobList have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.claim.row_reader import RowReader
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import predicate_errors
from claimjobs.dialects import Key
from claimjobs.errors import BadArgument
from claimjobs.job import Job
from claimjobs.statements.job_rows import job_rows
from claimjobs.table.backend import Backend

AT_ONCE: Final = 1_000
"""Jobs of one statement and one transaction: no lock is held for long, and an error undoes no earlier chunk."""


class StoredJobs:
    """The jobs of a queue in its table, for an operator."""

    def __init__(
        self,
        backend: Backend,
        now: sa.ColumnElement[Any],
        connect: Callable[[], AbstractContextManager[Connector]],
    ) -> None:
        self._backend, self._roles, self._now, self._connect = backend, backend.roles, now, connect
        self._rows = RowReader(backend.roles, backend.dialect)
        self._job_rows = job_rows(backend, now)

    def _checked(self, keys: Iterable[Key]) -> Sequence[Key]:
        """All of these keys, once each. Raises BadArgument before anything is written."""
        columns = [column.name for column in self._roles.key]
        found = list(keys)
        for key in found:
            values = len(key) if isinstance(key, tuple) else 1
            if values != len(columns) or isinstance(key, Mapping | list):
                form = "a value" if len(columns) == 1 else f"a tuple of {len(columns)} values"
                raise BadArgument(
                    f"{key!r} is no key of a job of table {self._roles.name!r}, whose key is {', '.join(columns)}: "
                    f"give {form}, such as `job.key`"
                )
        return list(dict.fromkeys(found))

    def _jobs(self, connector: Connector, reader: RowReader, statement: Any, **values: Any) -> Sequence[Job]:
        """The jobs of a statement. A column that cannot be read does not hide the others."""
        return self._jobs_and_rows(connector, reader, statement, **values)[1]

    def _jobs_and_rows(
        self, connector: Connector, reader: RowReader, statement: Any, **values: Any
    ) -> tuple[Sequence[Sequence[Any]], Sequence[Job]]:
        """The same, and the rows of which they were made."""
        compiled = CompiledStatement(statement)
        with predicate_errors(self._backend.dialect):
            rows = connector.transaction(lambda connection: compiled.rows(connection, values, reader))
            return rows, reader.jobs(rows)


def chunks_of(keys: Sequence[Key], limit: int | None) -> Iterator[Sequence[Key]]:
    """The keys, at most `limit`, as many at a time as are written at once."""
    each = islice(keys, limit)
    while chunk := list(islice(each, AT_ONCE)):
        yield chunk
