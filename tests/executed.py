"""`python -m tests.executed`: which functions of the library a run under coverage has not executed; 1 if there are any.

`make test-all` asks it about the tests of `make test`, with all processes that they started.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import coverage

ROOT = Path(__file__).parents[1]
FOLDERS = ("claimjobs", "dialects")


def main() -> int:
    """Combine what the processes wrote, and say what none of them executed."""
    measured = coverage.Coverage(data_file=ROOT / ".coverage", config_file=str(ROOT / "pyproject.toml"))
    measured.combine(strict=True)
    measured.save()
    lines = executed_lines(measured.get_data())
    missed = [told for file in sources() for told in _missed(file, lines.get(file.resolve(), set()))]
    for told in missed:
        print(told)
    print(f"{len(missed)} functions are executed by no test of `make test`", file=sys.stderr)
    return 1 if missed else 0


def executed_lines(data: coverage.CoverageData) -> dict[Path, set[int]]:
    """The lines of each file, whatever way its processes came to it: claimjobs/dialects is a link."""
    found: dict[Path, set[int]] = {}
    for name in data.measured_files():
        found.setdefault(Path(name).resolve(), set()).update(data.lines(name) or ())
    return found


def sources() -> Iterator[Path]:
    """Every file of the library."""
    for folder in FOLDERS:
        yield from sorted(path for path in (ROOT / folder).rglob("*.py") if not path.parent.is_symlink())


def _missed(file: Path, executed: set[int]) -> Iterator[str]:
    for function in functions(file.read_text(encoding="utf-8")):
        if executed.isdisjoint(range(function.body[0].lineno, (function.end_lineno or 0) + 1)):
            yield f"{file.relative_to(ROOT)}:{function.lineno}: {function.name}"


def functions(source: str) -> Iterator[ast.FunctionDef]:
    """The functions and methods of a file that do something."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and not all(_is_nothing(statement) for statement in node.body):
            yield node


def _is_nothing(statement: ast.stmt) -> bool:
    """A docstring, `...`, `return`, or what says that others implement it."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Return):
        return statement.value is None or (isinstance(statement.value, ast.Constant) and statement.value.value is None)
    return isinstance(statement, ast.Pass | ast.Raise)


if __name__ == "__main__":
    sys.exit(main())
