"""The numbers of a key: a table that claimjobs makes has enough of them, and `explain` says when they are used up."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from claimjobs.findings import Finding
from claimjobs.table.definitions import article_table
from claimjobs.table.value_ranges import integer_range
from tests.backends import Backend
from tests.conformance.test_explain import of


def has_finding(backend: Backend) -> bool:
    return any(finding.check == "key" for finding in backend.queue().explain().findings)


def test_a_table_that_claimjobs_makes_has_a_key_of_64_bits(backend: Backend) -> None:
    backend.make(article_table())
    found = {column["name"]: column["type"] for column in sa.inspect(backend.engine).get_columns("jobs")}
    key = found["id"]
    assert isinstance(key, sa.Integer)
    assert integer_range(key)[1] == 2**63 - 1
    backend.insert("jobs", [{"id": 2**40, "d": "", "e": ""}])
    assert not has_finding(backend)


@pytest.mark.parametrize(("kind", "most"), [("INTEGER", 2**31 - 1), ("SMALLINT", 2**15 - 1)])
def test_a_key_of_which_half_is_used_up_is_a_warning(backend: Backend, kind: str, most: int) -> None:
    backend.run(f"CREATE TABLE jobs (nr {kind} PRIMARY KEY, status VARCHAR(16) NOT NULL, owner_id INTEGER)")
    queue = backend.queue()
    assert of(queue.explain(), "key").verdict == "not known", "done jobs are deleted, and their numbers are used up"
    backend.insert("jobs", [{"nr": most // 2, "status": "unclaimed"}])
    says = f"the highest nr is {most // 2:,}, and the column holds numbers up to {most:,}"
    assert of(queue.explain(), "key") == Finding("key", "ok", says)
    backend.insert("jobs", [{"nr": most // 2 + 1, "status": "unclaimed"}])
    found = of(queue.explain(), "key")
    assert found.verdict == "warning"
    assert f"the highest nr is {most // 2 + 1:,}," in found.says
    assert "Make a table whose key is BIGINT" in found.says


def test_a_key_of_several_columns_is_not_read(backend: Backend) -> None:
    """The highest number of its second column is not at the end of an index."""
    backend.run(
        "CREATE TABLE jobs (shop SMALLINT, nr INTEGER, status VARCHAR(16) NOT NULL, owner_id INTEGER, "
        "PRIMARY KEY (shop, nr))"
    )
    assert not has_finding(backend)
