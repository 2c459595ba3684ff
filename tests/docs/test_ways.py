"""The lists of calls in docs/design.md are those of today's code, and nothing on them is called indirectly."""

from __future__ import annotations

import re

from docs import make_ways
from tests.backends import Servers

INDIRECT = ("__call__", "<lambda>", "<locals>", "partial")


def test_the_lists_are_those_of_today_and_name_nothing_indirect(servers: Servers) -> None:
    parts = {}
    for family in make_ways.FAMILIES:
        backend = servers.lend(family)
        parts[family] = make_ways.lists(backend)
        backend.close()
    page = make_ways.PAGE.read_text(encoding="utf-8")
    assert page == make_ways.filled(page, parts), "run `python -m docs.make_ways`"
    names = re.findall(r"\w+\.py: (\S+)", make_ways.made(parts))
    assert names
    assert [name for name in names if any(word in name for word in INDIRECT)] == []
