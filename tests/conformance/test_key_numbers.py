"""The numbers of a key: a table that claimjobs makes has enough of them."""

from __future__ import annotations

import sqlalchemy as sa

from claimjobs.table.acceptance import integer_range
from claimjobs.table.definitions import article_table
from tests.backends import Backend


def test_a_table_that_claimjobs_makes_has_a_key_of_64_bits(backend: Backend) -> None:
    backend.make(article_table())
    found = {column["name"]: column["type"] for column in sa.inspect(backend.engine).get_columns("jobs")}
    key = found["id"]
    assert isinstance(key, sa.Integer)
    assert integer_range(key)[1] == 2**63 - 1
