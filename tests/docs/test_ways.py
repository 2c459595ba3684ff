"""The lists of calls in docs/design.md are those of today's code, and nothing on them is called indirectly."""

from __future__ import annotations

import re

import pytest

from docs import make_ways
from tests.backends import Servers

pytestmark = pytest.mark.thorough("what the page says is run as a whole")

INDIRECT = ("__call__", "<lambda>", "<locals>", "partial")
TRIES = 5
"""On a busy machine a thread that waits may send one more check, which a list would show."""


def traced(servers: Servers) -> dict[str, dict[str, str]]:
    parts = {}
    for family in make_ways.FAMILIES:
        backend = servers.lend(family)
        parts[family] = make_ways.lists(backend)
        backend.close()
    return parts


def test_the_lists_are_those_of_today_and_name_nothing_indirect(servers: Servers) -> None:
    page = make_ways.PAGE.read_text(encoding="utf-8")
    parts = traced(servers)
    for _ in range(TRIES - 1):
        if page == make_ways.filled(page, parts):
            break
        for family, lists in traced(servers).items():  # a list that is that of the page stays
            parts[family] |= {way: text for way, text in lists.items() if parts[family][way] not in page}
    assert page == make_ways.filled(page, parts), "run `python -m docs.make_ways`"
    names = re.findall(r"\w+\.py: (\S+)", make_ways.made(parts))
    assert names
    assert [name for name in names if any(word in name for word in INDIRECT)] == []
