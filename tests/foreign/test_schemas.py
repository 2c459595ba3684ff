"""See tests/foreign/schemas.py."""

from __future__ import annotations

import pytest

from tests.flavours import Family
from tests.foreign import schemas
from tests.foreign.cases import Case, Way, each
from tests.foreign.harness import Places, run

# SQLAlchemy's, about types that it does not know, or that its own next version wants described otherwise.
pytestmark = pytest.mark.filterwarnings("ignore:Did not recognize type", "ignore:Type object")


@each(schemas.ALL)
@pytest.mark.each_value("case", "each table is a case of its own", step=2)
def test_a_table(places: Places, family: Family, way: Way, case: Case) -> None:
    run(places, family, way, case)
