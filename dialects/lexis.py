"""Lexis: finds where strings and names in quotes begin and end in a piece of SQL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

STANDARD_QUOTES: Final = r"""'(?:[^']|'')*+'|"(?:[^"]|"")*+\""""
LETTER: Final = r"A-Za-z_\x80-\U0010ffff"
"""The characters that may begin a name, among them all outside ASCII."""
CHANGES_NOTHING: Final = re.compile(
    r"(?:[\s(]|(?>/\*.*?\*/))*+"
    r"(?:SELECT|SHOW|SET|SAVEPOINT|RELEASE|ROLLBACK|WITH(?!.*\b(?:INSERT|UPDATE|DELETE|MERGE)\b))\b",
    re.I | re.S,
)
"""Finds a statement that writes no row, unless by a function that it calls."""
_FLAWS: Final = {
    "comment": "the comment at character {} may hide a part of it: leave it out",
    "unclosed": "the quote at character {} is never closed",
    "separator": "the semicolon at character {} would end the statement",
}


@dataclass(frozen=True)
class Lexis:
    """The lexical rules of a database, as regular expressions. The defaults are the standard's."""

    quoted: str = STANDARD_QUOTES
    """A string or a name in quotes, from the opening quote to the closing one."""
    opening: str = "['\"]"
    """What begins a string or a name in quotes."""
    comment: str = r"--|/\*"
    """What begins a comment."""
    quoted_without_escapes: str | None = None
    """As `quoted`, if a setting of the server may turn off escapes by a backslash."""

    def flaw(self, text: str) -> str | None:
        """Why a text is not one whole expression with any setting of the server; None: it is one."""
        if "\0" in text or not text.strip():
            return "it holds a NUL character" if "\0" in text else "it is empty"
        found, *others = [_flaw(token, text) for token in self._readings]
        if found is None and any(others):
            return f"{others[0]} where no backslash escapes a quote (NO_BACKSLASH_ESCAPES): write '' for one"
        return found

    def words(self, text: str) -> set[str]:
        """The words outside strings and names in quotes, in small letters, with any setting of the server."""
        found = (token for reading in self._readings for token in reading.finditer(text))
        return {token[0].lower() for token in found if token.lastgroup == "word"}

    @cached_property
    def _readings(self) -> list[re.Pattern[str]]:
        """What finds the tokens of a text, with each setting of the server."""
        readings = []
        for quoted in filter(None, (self.quoted, self.quoted_without_escapes)):
            parts = {
                "comment": self.comment,
                "quoted": quoted,
                "unclosed": self.opening,
                "word": rf"[{LETTER}][{LETTER}0-9$]*+",
                "open": r"\(",
                "close": r"\)",
                "separator": ";",
            }
            readings.append(re.compile("|".join(f"(?P<{name}>{part})" for name, part in parts.items()), re.DOTALL))
        return readings


def _flaw(tokens: re.Pattern[str], text: str) -> str | None:
    opened: list[int] = []
    for found in tokens.finditer(text):
        kind, at = str(found.lastgroup), found.start() + 1
        if kind in _FLAWS:
            return _FLAWS[kind].format(at)
        if kind == "open":
            opened.append(at)
        elif kind == "close" and not opened:
            return f"the parenthesis at character {at} closes none"
        elif kind == "close":
            opened.pop()
    return f"the parenthesis at character {opened[-1]} is never closed" if opened else None
