"""For Alembic: autogenerate neither drops nor alters the tables that claimjobs makes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.table.definitions import OWN_TABLES, job_table, version_of


def include_object(  # noqa: PLR0917 - Alembic calls it so
    object_: Any, name: str | None, type_: str, reflected: bool, compare_to: Any
) -> bool:
    """Whether autogenerate may compare an object: `include_object` of `context.configure`.

    It leaves out each table that claimjobs made and that only the database has. Of a `job_table` in your metadata it
    leaves out the columns and the index of claimjobs; columns of your payload are compared. `claimjobs upgrade-tables`
    changes ours.
    """
    table = object_ if isinstance(object_, sa.Table) else object_.table
    if table.name in OWN_TABLES:
        return False
    if version_of(table.comment) is None:
        return True
    if type_ == "table":
        return _may_compare(object_, reflected, compare_to)
    return name not in _names(table)


def _may_compare(table: sa.Table, reflected: bool, compare_to: sa.Table | None) -> bool:
    """A table with an earlier schema is not compared, because autogenerate would write its comment."""
    if compare_to is None:
        return not reflected
    return version_of(table.comment) == version_of(compare_to.comment)


def _names(table: sa.Table) -> set[str]:
    """Our columns and our index, of a table of jobs."""
    key = sa.Column("claimjobs_key", sa.Integer, primary_key=True)
    ours = job_table(table.name, sa.MetaData(), key).columns
    return {f"{table.name}_claim", *(column.name for column in ours if not column.primary_key)}
