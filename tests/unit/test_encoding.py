"""Which columns of a job are returned as one text, and in which order."""

from __future__ import annotations

from claimjobs.dialects.mysql.dialect import MySQL
from claimjobs.statements.claim import parts_of
from claimjobs.table.definitions import article_table
from claimjobs.table.roles import roles_of

JOBS = article_table()


def test_whether_a_job_is_a_suspect_stands_first_in_the_text() -> None:
    """A claim looks there without splitting it."""
    roles = roles_of(JOBS)
    parts = parts_of(list(JOBS.columns), MySQL(), roles)
    assert len(parts.joined) > 1
    assert parts.joined[0] is roles.suspect
    assert not {column.name for column in parts.joined} & {column.name for column in roles.key}
