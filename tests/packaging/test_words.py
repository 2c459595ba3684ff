"""The words of the glossary are used, and the private words that they replaced are gone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PRIVATE = """
    works rounds relay hand hands grip look looks told lean wire turn
    company ring nap glance wish lull bell bury graveyard undertaker janitor heart
    doomed loner loners doubts dispel wrest yawn stirring walk beyond orders taking
    census gauge lifeline greet unwanted
"""
REPLACED = frozenset(_PRIVATE.split())
KEPT = {
    "handed_back": "a key of the JSON that commands print",
    "GaugeMetricFamily": "a class of prometheus_client: its authors chose the name",
}
"""Names that other programs read or have, with the reason."""


def identifiers(path: Path) -> Iterator[str]:
    """Every name that a module defines or uses, and its own."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for field in ("name", "id", "arg", "attr", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield name


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_words_are_found_in_names_of_any_form() -> None:
    assert words_of("_HandOver.takes_turn") == {"hand", "over", "takes", "turn"}


def test_no_replaced_word_is_left_in_a_name() -> None:
    modules = [*(ROOT / "claimjobs").rglob("*.py"), *(ROOT / "dialects").rglob("*.py")]
    assert modules
    left = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules
        for name in identifiers(path)
        if name not in KEPT and words_of(name) & REPLACED
    }
    assert sorted(left) == []


def test_the_glossary_has_twenty_words_at_most() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    glossary = page.split("## Words")[1].split("\n## ")[0]
    assert 0 < len(re.findall(r"\*\*(\w[\w ]*)\*\*", glossary)) <= 20
