"""Keys of any type: a row that was read is found again by its key, or the table is refused."""

from __future__ import annotations

import pytest

from tests.flavours import Family
from tests.foreign import keys
from tests.foreign.cases import Case, Way, each
from tests.foreign.harness import Places, run

# SQLAlchemy's, about types that it does not know, or that its own next version wants described otherwise.
pytestmark = pytest.mark.filterwarnings("ignore:Did not recognize type", "ignore:Type object")


@each(keys.ALL)
@pytest.mark.each_value("case", "each table is a case of its own", step=2)
def test_a_key(places: Places, family: Family, way: Way, case: Case) -> None:
    run(places, family, way, case)
