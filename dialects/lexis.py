"""Lexis: finds where strings, names and comments of a piece of SQL begin and end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

STANDARD_QUOTES: Final = r"""'(?:[^']|'')*+'|"(?:[^"]|"")*+\""""
LETTER: Final = r"A-Za-z_\x80-\U0010ffff"
"""The characters that may begin a name, among them all outside ASCII."""


@dataclass(frozen=True)
class Lexis:
    """The lexical rules of a database, as regular expressions. The defaults are the standard's."""

    quoted: str = STANDARD_QUOTES
    """A string or a name in quotes, from the opening quote to the closing one."""
    opening: str = "['\"]"
    """What begins a string or a name in quotes."""
    comment: str = r"--[^\r\n]*+(?P<end>[\r\n])?"
    """A comment up to the end of its line."""
    nests_comments: bool = True
    """Whether a comment in /* */ may stand within another one."""
    runs_comments: bool = False
    """Whether the server executes the content of some comments."""
    quoted_without_escapes: str | None = None
    """As `quoted`, if a setting of the server may turn off escapes by a backslash."""

    def flaw(self, text: str) -> str | None:
        """Why a text is not one whole expression with any setting of the server; None: it is one."""
        found = self._flaw(text)
        if found is None and self.quoted_without_escapes is not None and "\\" in text:
            found = replace(self, quoted=self.quoted_without_escapes)._flaw(text)
            found = found and f"{found} where no backslash escapes a quote (NO_BACKSLASH_ESCAPES): write '' for one"
        return found

    def words(self, text: str) -> set[str]:
        """The words outside strings, names in quotes and comments, in small letters, with any setting of the server."""
        found = {word.lower() for kind, _, word in self._tokens(text) if kind == "word"}
        if self.quoted_without_escapes is not None and "\\" in text:
            found |= replace(self, quoted=self.quoted_without_escapes, quoted_without_escapes=None).words(text)
        return found

    def _flaw(self, text: str) -> str | None:
        if "\0" in text:
            return "it holds a NUL character"
        opened: list[int] = []
        says = False
        for kind, at, _ in self._tokens(text):
            says = says or kind not in ("space", "comment")
            if kind in _FLAWS:
                return _FLAWS[kind].format(at + 1)
            if kind == "open":
                opened.append(at)
            elif kind == "close" and not opened:
                return f"the parenthesis at character {at + 1} closes none"
            elif kind == "close":
                opened.pop()
        if opened:
            return f"the parenthesis at character {opened[-1] + 1} is never closed"
        return None if says else "it is empty"

    def _tokens(self, text: str) -> Iterator[tuple[str, int, str]]:
        """The kind of each token, where it begins, and its text. A block comment is one token."""
        at = 0
        while found := self._token.match(text, at):
            kind, end = str(found.lastgroup), found.end()
            if kind == "block":
                kind, end = self._block(text, at)
            elif kind == "comment" and found["end"] is None:
                kind = "endless"
            yield kind, at, text[at:end]
            at = end

    def _block(self, text: str, at: int) -> tuple[str, int]:
        """The kind of what begins with /* there, and where it ends."""
        if self.runs_comments and _RUN.match(text, at):
            return "run", at + 2
        depth = 0
        for edge in _EDGE.finditer(text, at):
            depth += 1 if edge[0] == "/*" and (self.nests_comments or depth == 0) else -1 if edge[0] == "*/" else 0
            if depth == 0:
                return "comment", edge.end()
        return "endless", len(text)

    @cached_property
    def _token(self) -> re.Pattern[str]:
        parts = {
            "space": r"\s+",
            "comment": self.comment,
            "block": r"/\*",
            "quoted": self.quoted,
            "unclosed": self.opening,
            "word": rf"[{LETTER}][{LETTER}0-9$]*+",
            "open": r"\(",
            "close": r"\)",
            "separator": ";",
            "other": ".",
        }
        return re.compile("|".join(f"(?P<{name}>{part})" for name, part in parts.items()), re.DOTALL)


_EDGE: Final = re.compile(r"/\*|\*/")
_RUN: Final = re.compile(r"/\*M?!")
_FLAWS: Final = {
    "unclosed": "the quote at character {} is never closed",
    "endless": "the comment at character {} never ends",
    "run": "the comment at character {} would be executed",
    "separator": "the semicolon at character {} would end the statement",
}
