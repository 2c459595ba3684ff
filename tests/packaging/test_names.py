"""No module outside dialects/ names a database, and none decides by a database's name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.packaging.conftest import REPOSITORY

PACKAGE = REPOSITORY / "claimjobs"
NAMES = re.compile(r"mysql|mariadb|postgres|innodb", re.IGNORECASE)

MAY_NAME = {
    "database/connect.py": "which driver a URL means that names none, and examples of a URL",
    "embedded/server.py": "the embedded Postgres: its programs, its wheel, its URL",
    "embedded/keeper.py": "the embedded Postgres: its programs",
}
MAY_SAY = {
    "cli/options.py": "the help of --url",
    "cli/tables.py": "the DDL of the embedded database, where no URL was given",
}
"""Strings only: nothing there may be called after a database."""


def modules() -> dict[str, ast.Module]:
    """Each module outside dialects/, by its path in the package."""
    paths = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    return {path.as_posix(): ast.parse((PACKAGE / path).read_text()) for path in paths if path.parts[0] != "dialects"}


MODULES = modules()


def test_no_module_names_a_database() -> None:
    found = [
        f"{module}: {name}"
        for module, code in MODULES.items()
        for name, is_string in named(code)
        if module not in MAY_NAME and not (is_string and module in MAY_SAY)
    ]
    assert not found, "ask the dialect, or move it to dialects/"


def test_each_exception_is_needed() -> None:
    idle = [module for module in (*MAY_NAME, *MAY_SAY) if not list(named(MODULES[module]))]
    assert not idle, "take them off the list"


def test_no_module_decides_by_name() -> None:
    decided = [
        f"{module}: {ast.unparse(node)}"
        for module, code in MODULES.items()
        for node in ast.walk(code)
        if decides_by_name(node)
    ]
    assert not decided, "let a fact of the dialect decide"


def named(module: ast.Module) -> Iterator[tuple[str, bool]]:
    """What in the code (not in comments and docstrings) names a database, and whether it is a string."""
    prose = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if id(node) not in prose:
            is_string = isinstance(node, ast.Constant)
            yield from ((text, is_string) for text in texts(node) if NAMES.search(text))


def texts(node: ast.AST) -> Iterator[str]:
    """Every string that stands in a node itself: identifiers, attributes, modules, constants."""
    for _, value in ast.iter_fields(node):
        values = value if isinstance(value, list) else [value]
        yield from (item for item in values if isinstance(item, str))


def decides_by_name(node: ast.AST) -> bool:
    """Whether a comparison or a match looks at `....dialect.name`, `.drivername` or the like."""
    if isinstance(node, ast.Compare):
        return any(map(is_a_name, [node.left, *node.comparators]))
    return isinstance(node, ast.Match) and is_a_name(node.subject)


def is_a_name(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute):
        return False
    owner = ast.unparse(node.value)
    return (node.attr in ("name", "title") and owner.endswith("dialect")) or node.attr in ("drivername", "is_mariadb")


# --- and the check itself ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import pymysql",
        "from sqlalchemy.dialects import postgresql",
        "x = 'MariaDB'",
        "x = f'on {y} Postgres'",
        "engine.is_mysql()",
        "def for_postgres(): pass",
        "call(mysql_engine='InnoDB')",
    ],
)
def test_a_name_is_found(code: str) -> None:
    assert list(named(ast.parse(code)))


@pytest.mark.parametrize("code", ["'''On MySQL.'''", "x = 1\n'''As Postgres does.'''", "x = 1  # MariaDB"])
def test_prose_may_name(code: str) -> None:
    assert not list(named(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "if engine.dialect.name == x: pass",
        "y = dialect.name in ('a', 'b')",
        "match connection.dialect.name:\n  case _: pass",
        "url.drivername != x",
    ],
)
def test_a_decision_is_found(code: str) -> None:
    assert any(map(decides_by_name, ast.walk(ast.parse(code))))


def test_paths_are_seen() -> None:
    assert {"queue/queue.py", "statements/find.py", "cli/main.py"} <= set(MODULES)
