"""Mutations of a source file: each changes one expression or statement, and leaves the rest as it is written."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

OPPOSITE: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
CLAUSES: Final = frozenset({"where", "and_", "or_", "order_by"})
"""Functions of SQL of whose arguments each is a clause."""
PARTS: Final = frozenset({"where", "limit", "order_by", "with_for_update", "with_hint", "prefix_with", "distinct"})
"""Methods of a statement that return it with one part more."""
SPARED: Final = ("log.", "warnings.")
"""What is only told."""


@dataclass(frozen=True)
class Mutant:
    """A file with one change."""

    file: str
    line: int
    operator: str
    before: str
    """The lines that are changed, on one line."""
    after: str
    source: str
    """The whole file, changed."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it, wherever in the file it stands."""
        return self.file, self.before, self.after


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines. No two of them are the same text."""
    seen = {source}
    for change in sorted(_changes(ast.parse(source)), key=lambda change: _place(change[0])):
        mutant = _changed(file, source, change)
        if mutant.source not in seen:
            seen.add(mutant.source)
            yield mutant


Change = tuple[ast.expr | ast.stmt, str, str]
"""What is changed, the name of that, and what stands there afterwards."""


def _changes(tree: ast.Module) -> Iterator[Change]:
    """What could be changed within functions: constants of a module and of a class are the tuning."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                yield from _within(statement)


def _within(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.Expr) and _is_spared(node)):
        return  # it is found by itself; or nothing would be seen
    if isinstance(node, ast.Raise):
        yield from _statement(node)
        return  # the rest is the error's text
    if isinstance(node, ast.stmt):
        yield from _statement(node)
    if isinstance(node, ast.expr):
        yield from _expression(node)
    for name, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for child in children:
            if (
                isinstance(child, ast.AST)
                and not _is_strict(child)
                and name not in ("annotation", "returns", "ctx", "format_spec")
            ):
                yield from _within(child)


def _is_strict(node: ast.AST) -> bool:
    """Of `zip`: a check that nothing is forgotten, which fails in no program that is right."""
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _is_spared(statement: ast.Expr) -> bool:
    """A docstring, or a word to somebody who reads."""
    return isinstance(statement.value, ast.Constant) or ast.unparse(statement).startswith(SPARED)


def _statement(node: ast.stmt) -> Iterator[Change]:
    if isinstance(node, ast.If | ast.While) and not _is_plain_comparison(node.test):
        yield node.test, "condition negated", f"not ({ast.unparse(node.test)})"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "call deleted", "pass"
    if isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break):
        yield node, "statement deleted", "pass"
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript):
        yield node, "assignment deleted", "pass"
    if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield node, "None returned", "return None"


def _is_plain_comparison(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and len(test.ops) == 1


def _expression(node: ast.expr) -> Iterator[Change]:
    if isinstance(node, ast.Compare) and _is_plain_comparison(node):
        yield node, "comparison turned", _with(node, ops=[OPPOSITE[type(node.ops[0])]()])
    if isinstance(node, ast.IfExp):
        yield node, "condition negated", _with(node, body=node.orelse, orelse=node.body)
    if isinstance(node, ast.BoolOp):
        for each in node.values:
            rest = [value for value in node.values if value is not each]
            yield node, "operand dropped", f"({_with(node, values=rest) if len(rest) > 1 else ast.unparse(rest[0])})"
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
        yield node, "constant changed", str(not node.value if isinstance(node.value, bool) else node.value + 1)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        yield node, "negation dropped", ast.unparse(node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _clauses(node, node.func)


def _clauses(node: ast.Call, function: ast.Attribute) -> Iterator[Change]:
    if function.attr in CLAUSES and len(node.args) > 1:
        for each in node.args:
            yield node, "clause dropped", _with(node, args=[other for other in node.args if other is not each])
    if function.attr in PARTS:
        yield node, "part of a statement dropped", ast.unparse(function.value)


def _with(node: ast.expr, **fields: object) -> str:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return f"({ast.unparse(changed)})"


# --- text ----------------------------------------------------------------------------------------------------


def _place(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _changed(file: str, source: str, change: Change) -> Mutant:
    node, operator, text = change
    lines = source.encode().splitlines(keepends=True)  # columns are counted in bytes
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    changed = lines[first][: node.col_offset] + text.encode() + lines[last][node.end_col_offset :]
    before, after = _one_line(b"".join(lines[first : last + 1])), _one_line(changed)
    whole = b"".join([*lines[:first], changed, *lines[last + 1 :]]).decode()
    return Mutant(file, node.lineno, operator, before, after, whole)


def _one_line(text: bytes) -> str:
    return " ".join(text.decode().split())
