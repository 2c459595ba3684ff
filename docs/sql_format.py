"""SQL as a person reads it: sqlparse, with one clause a line and its brackets as blocks. No token is changed."""

from __future__ import annotations

import re
import textwrap
from typing import Any, Final

from sqlparse import sql, tokens
from sqlparse.engine import FilterStack
from sqlparse.filters import ReindentFilter, SerializerUnicode
from sqlparse.utils import indent

WIDTH: Final = 110
CLAUSES: Final = (
    r"^(FROM|USING|(LEFT OUTER |INNER )?JOIN|STRAIGHT_JOIN|SET|VALUES|AND|GROUP BY|ORDER BY|LIMIT|FOR|RETURNING)$"
)
TOGETHER: Final = (
    "DELETE FROM",
    "FOR UPDATE",
    "FOR NO KEY UPDATE",
    "FOR SHARE",
    "SELECT STRAIGHT_JOIN",
    "SELECT DISTINCT",
)
"""What sqlparse takes for two clauses."""
TABLE: Final = r"\w+ AS (?:MATERIALIZED )?\("
"""A common table expression."""


def formatted(statement: str) -> str:
    """A statement with a clause on each line; each common table expression begins after an empty line."""
    stack = FilterStack()
    stack.enable_grouping()
    stack.stmtprocess.append(_Blocks(width=4))
    stack.postprocess.append(SerializerUnicode())
    text = "".join(stack.run(" ".join(statement.split()))).strip()
    for words in TOGETHER:
        text = re.sub(r"\s+".join(words.split()), words, text)
    text = re.sub(rf"\), ({TABLE})", r"),\n\n\1", text)
    text = re.sub(r"^( *)(WHERE .*(?:\n\1    AND .*)*)\n\1    (FOR .*)$", r"\1\2\n\1\3", text, flags=re.MULTILINE)
    return "\n".join(folded for line in text.splitlines() for folded in _folded(line.rstrip()))


class _Blocks(ReindentFilter):  # type: ignore[misc]
    """What a bracket with a statement in it holds is a block. A list has a line for each item if one is a CASE."""

    def _next_token(self, tlist: Any, idx: int = -1) -> Any:
        return tlist.token_next_by(m=(tokens.Keyword, CLAUSES, True), idx=idx)

    def _process_parenthesis(self, tlist: Any) -> None:
        if tlist.token_next_by(t=tokens.Keyword.DML)[1] is None:
            self._process_parts(tlist)
            return
        with indent(self):
            self._process_default(tlist)
        tlist.insert_before(tlist.token_next_by(m=sql.Parenthesis.M_CLOSE)[0], self.nl())

    def _process_parts(self, tlist: Any) -> None:
        for part in tlist.get_sublists():
            self._process(part)

    _process_case = _process_function = _process_parts

    def _process_identifierlist(self, tlist: Any) -> None:
        with indent(self, 1 if _is_long(tlist) else 0):
            for item in list(tlist.get_identifiers())[1:] if _is_long(tlist) else ():
                tlist.insert_before(item, self.nl())
            self._process_parts(tlist)


def _is_long(tlist: Any) -> bool:
    """A list of columns with a CASE; not one of common table expressions."""
    text = str(tlist)
    return "CASE" in text and not re.match(TABLE, text) and not tlist.within(sql.Function)


def _folded(line: str) -> list[str]:
    begin = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(
        line, WIDTH, subsequent_indent=begin, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    ) or [""]
