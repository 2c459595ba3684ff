"""What is changed in a file, and that the rest stays as it is written."""

from __future__ import annotations

import pytest

from tests.mutants.explained import EXPLAINED
from tests.mutants.mutations import mutants
from tests.mutants.targets import ROOT, files


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("if a < b: f()", ["if (a >= b): f()", "if a < b: pass"]),
        ("if a: x = 1", ["if not (a): x = 1", "if a: x = 2"]),
        ("x = a and b", ["x = (b)", "x = (a)"]),
        ("x = a if b else c", ["x = (c if b else a)"]),
        ("x = f(skip=True)", ["x = f(skip=False)"]),
        ("x = rows.where(a, b)", ["x = (rows.where(b))", "x = (rows.where(a))", "x = rows"]),
        ("x = rows.with_for_update(of=t)", ["x = rows"]),
        ("return f(a)", ["return None"]),
        ("raise E", ["pass"]),
        ("self.x += y", ["pass"]),
        ("self.x = y", ["pass"]),
        ("log.info('told')", []),
        ("'a word'", []),
    ],
)
def test_each_mutant_changes_one_thing(line: str, changed: list[str]) -> None:
    source = f"LIMIT = 3\n\ndef f(a: int = 0) -> None:\n    # Why: ä.\n    {line}\n"
    found = list(mutants("file.py", source))
    assert sorted(mutant.after for mutant in found) == sorted(changed)
    assert {mutant.before for mutant in found} <= {line}
    for mutant in found:
        assert mutant.source == source.replace(line, mutant.after)


def test_a_statement_of_several_lines_is_told_of_on_one() -> None:
    [mutant] = mutants("file.py", "def f(a):\n    x = g(\n        skip=True,\n    )\n")
    assert (mutant.line, mutant.before, mutant.after) == (3, "skip=True,", "skip=False,")
    [mutant] = mutants("file.py", "def f(a):\n    raise E(\n        a,\n    )\n")
    assert (mutant.before, mutant.source) == ("raise E( a, )", "def f(a):\n    pass\n")


def test_every_file_and_every_test_is_there() -> None:
    for file, tests in files().items():
        assert [path for path in (file, *tests) if not (ROOT / path).exists()] == []


def test_every_explained_mutant_is_there() -> None:
    there = {mutant.key for file in files() for mutant in mutants(file, (ROOT / file).read_text("utf-8"))}
    assert EXPLAINED.keys() <= there
