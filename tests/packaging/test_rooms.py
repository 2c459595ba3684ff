"""The docstring of each folder of the library names files and methods that are there."""

import ast
import re
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[2] / "claimjobs"
ROOMS = [path.parent for path in sorted(LIBRARY.glob("*/__init__.py")) if path.parent.name != "dialects"]


def said_by(room: Path) -> str:
    return ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""


def methods() -> set[str]:
    trees = (ast.parse(path.read_text()) for path in LIBRARY.glob("*/*.py"))
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    own = {f"{each.name}.{part.name}" for each in classes for part in each.body if isinstance(part, ast.FunctionDef)}
    return own | {each.name for each in classes}


@pytest.mark.parametrize("room", [LIBRARY, *ROOMS], ids=lambda room: room.name)
def test_what_a_folder_says_of_itself_is_there(room: Path) -> None:
    said = said_by(room)
    files = [name for name in re.findall(r"[\w/]+\.py\b", said) if name != "__init__.py"]
    assert [name for name in files if not any((top / name).exists() for top in (room, LIBRARY, LIBRARY.parent))] == []
    named = [name for name in re.findall(r"`([A-Z]\w+(?:\.\w+)?)`", said) if name != "Queue"]
    assert [name for name in named if name not in methods()] == []
