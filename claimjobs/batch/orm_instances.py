"""Instances: the jobs of a batch as objects of a mapped class, bound to a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from claimjobs.job import Job
from claimjobs.key_text import key_in_message
from claimjobs.table.roles import ColumnRoles


def instances(session: Session, entity: type[Any], roles: ColumnRoles, jobs: Sequence[Job]) -> tuple[Any, ...]:
    """The instance of each job, in the order of the jobs; one statement reads them as they are now.

    Raises LookupError if the row of a job was deleted while it was claimed.
    """
    mapper = sa.inspect(entity)
    names = [mapper.get_property_by_column(mapper.local_table.c[column.name]).key for column in roles.key]
    columns = [getattr(entity, name) for name in names]
    keys = [job.key for job in jobs]
    chosen = columns[0].in_(keys) if len(columns) == 1 else sa.tuple_(*columns).in_(keys)
    statement = sa.select(entity).where(chosen).execution_options(populate_existing=True)
    found = {_key(instance, names): instance for instance in session.scalars(statement).unique()}
    gone = [key for key in keys if key not in found]
    if gone:
        raise LookupError(f"the row of job {key_in_message(gone[0])} is gone: it was deleted while the job was claimed")
    return tuple(found[key] for key in keys)


def _key(instance: Any, names: Sequence[str]) -> Any:
    parts = tuple(getattr(instance, name) for name in names)
    return parts if len(parts) > 1 else parts[0]
