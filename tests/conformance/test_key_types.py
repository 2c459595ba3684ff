"""Types of keys around those of the database: what a type of the user's may do, and what it may not."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import job_table
from claimjobs.errors import KeyUnfit
from tests.backends import Backend


class Lower(sa.TypeDecorator[str]):
    """The database converts its values."""

    impl = sa.String(20)
    cache_ok = True

    def bind_expression(self, bindparam: Any) -> Any:
        return sa.func.lower(bindparam, type_=self)


def test_a_key_whose_type_converts_by_sql_is_refused(backend: Backend) -> None:
    queue = backend.queue(job_table("jobs", sa.MetaData(), sa.Column("code", Lower, primary_key=True)))
    with pytest.raises(KeyUnfit, match=r"column 'code' of table 'jobs'.*Lower.*, whose values are changed by SQL"):
        queue.claim()
