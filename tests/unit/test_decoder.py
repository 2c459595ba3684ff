"""What Postgres sends as binary, and Python cannot hold, is an error: it never becomes None in silence."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from claimjobs.dialects import DIALECTS
from claimjobs.dialects.types import Instant


@pytest.mark.parametrize(
    ("microseconds", "told"), [(2**63 - 1, "'infinity'"), (-(2**63), "'-infinity'"), (2**62, "'a year'")]
)
def test_an_instant_beyond_pythons_is_told(microseconds: int, told: str) -> None:
    decode = DIALECTS["postgresql"]().encoding.decoder(sa.Column("due", Instant()))
    assert decode is not None
    with pytest.raises(ValueError, match=told):
        decode(microseconds.to_bytes(8, "big", signed=True))
