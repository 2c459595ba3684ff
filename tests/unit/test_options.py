"""Numbers that describe a queue: which are refused, and what a column of a type holds."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from claimjobs import Liveness
from claimjobs.table.acceptance import integer_range


@pytest.mark.parametrize("given", [{"lease": 1.9}, {"max_batch_time": 0}, {"patience": -0.1}], ids=str)
def test_seconds_out_of_range_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="lease from 2, max_batch_time above 0, patience from 0 seconds"):
        Liveness(**given)  # type: ignore[arg-type]


def test_the_least_seconds_are_accepted() -> None:
    assert Liveness(lease=2, max_batch_time=0.001, patience=0).lease == 2


def test_a_type_that_knows_no_sign_has_one() -> None:
    assert integer_range(sa.SmallInteger()) == (-(2**15), 2**15 - 1)
    assert integer_range(mysql.SMALLINT(unsigned=True)) == (0, 2**16 - 1)
