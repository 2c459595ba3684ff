"""What makes jobs of rows."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs.claim import row_reader
from claimjobs.claim.row_reader import RowReader
from claimjobs.dialects import DIALECTS
from claimjobs.table.definitions import article_table
from claimjobs.table.roles import roles_of


def test_a_thread_that_comes_while_another_one_learns_the_columns_reads_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = RowReader(roles_of(article_table()), DIALECTS["mysql"]())
    here, row = sa.create_engine("mysql+pymysql://").dialect, list(range(1, 20))
    described, real, keys = [(None, 0)] * 20, row_reader._reader, list[Any]()

    def interrupted(*given: Any) -> Any:
        monkeypatch.setattr(row_reader, "_reader", real)
        reader.describe(here, described)
        keys.extend(job.key for job in reader.jobs([row]))
        return real(*given)

    monkeypatch.setattr(row_reader, "_reader", interrupted)
    reader.describe(here, described)
    assert keys == [job.key for job in reader.jobs([row])] == [1]
