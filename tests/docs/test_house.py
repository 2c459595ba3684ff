"""docs/internals/house.md says how large the library is, and a bound that was kept once is kept from then on."""

from __future__ import annotations

import ast

from docs import make_house
from tests.docs.markdown import table

GROWN, SHRUNK = 1.02, 0.90
"""The page is made again after more than that: it need not be part of each change."""


def said() -> dict[str, int]:
    rows = table(make_house.PAGE, "figure", "before", "today", "at most")
    return {name: int(count.replace(",", "")) for name, _, count, _ in rows}


def test_the_page_is_about_right_and_no_bound_is_exceeded_anew() -> None:
    text, today = make_house.PAGE.read_text(encoding="utf-8"), make_house.figures(make_house.house())
    assert text.startswith(make_house.HEAD), "run `python -m docs.make_house`"
    assert said().keys() == today.keys()
    assert len(table(make_house.PAGE, "room", "lines", "files", "classes", "functions")) > 10
    for name in (make_house.LINES, make_house.FILES, make_house.CLASSES, make_house.FUNCTIONS):
        assert SHRUNK * said()[name] <= today[name] <= GROWN * said()[name], f"{name}: run `python -m docs.make_house`"
    # What is beyond its bound does not grow.
    most = {name: max(bound, said()[name] * GROWN) for name, bound in make_house.BOUNDS.items()}
    assert {name: today[name] for name in most if today[name] > most[name]} == {}


SEVERAL = """
def waits(self, batches, seconds):
    if seconds and not (batches is None or self.by_lease):
        return 1 if self.hold == "transaction" else 2
    return [row for row in batches if row] or seconds
"""


def test_a_conditional_by_kind_is_found_outside_the_seams_only() -> None:
    tree = ast.parse(SEVERAL)
    assert list(make_house.asks_for_kind({"claimjobs/queue/queue.py": tree})) == [
        "claimjobs/queue/queue.py:3: seconds and (not (batches is None or self.by_lease))",
        "claimjobs/queue/queue.py:4: self.hold == 'transaction'",
    ]
    assert list(make_house.asks_for_kind(dict.fromkeys(make_house.SEAMS, tree))) == []


def test_a_circle_is_counted_once_and_that_of_types_apart() -> None:
    files = {
        "claimjobs/__init__.py": "",
        "claimjobs/one.py": "from claimjobs import two",
        "claimjobs/two.py": "def late():\n    import claimjobs.one",
        "claimjobs/three.py": "if TYPE_CHECKING:\n    from claimjobs.four import Four",
        "claimjobs/four.py": "from claimjobs.three import Three\nfrom claimjobs.one import One",
    }
    figures = make_house.figures(files)
    assert (figures[make_house.CIRCLES], figures[make_house.TYPE_CIRCLES]) == (1, 2)


LINES = '''"""A module."""

import os


class Named:
    """It has a name."""

    name = os.name  # a comment beside code is code


@staticmethod
def longer(
    number: int,
) -> int:
    # why
    return number + 1
'''


def test_each_line_is_of_one_kind() -> None:
    assert make_house.kinds_of_lines(LINES) == {
        "docstrings": 2,
        "imports": 1,
        "signatures": 5,
        "bodies": 2,
        "comments": 1,
        "blank": 6,
    }
