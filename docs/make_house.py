"""Make docs/internals/house.md: how large the library is. Run `python -m docs.make_house` in the repository.

`python -m docs.make_house lines` prints of which kinds the lines are, `kinds` where a conditional asks for a kind of
queue, and `python -m docs.make_house COMMIT` the figures of that commit. So those of `BEFORE` were counted.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "internals" / "house.md"
FOLDERS: Final = ("claimjobs", "dialects")

SEAMS: Final = frozenset(
    {
        "claimjobs/options.py",
        "claimjobs/claim/claim_plan.py",
        "claimjobs/batch/open_transaction.py",
        "claimjobs/claim/record.py",
        "claimjobs/lease/lease_hold.py",
        "claimjobs/lease/transaction_hold.py",
        "claimjobs/settle/outcome_table.py",
        "claimjobs/statements/claim_rows.py",
        "claimjobs/statements/job_rows.py",
        "claimjobs/statements/side_car.py",
        "claimjobs/table/claim_rows.py",
        "claimjobs/table/record_description.py",
    }
)
"""The files that are one kind of queue each, or choose among the kinds: what they ask about kinds is not counted."""
KIND_NAMES: Final = frozenset(
    {
        # the lease and the open transaction
        *("by_lease", "_transaction", "_is_guarded_by_row"),
        # claims in rows and per batch
        *("per_batch", "in_batches", "claim_rows", "_claim_rows", "records_claims", "names_owner"),
        *("settle_batch", "_settle_batch", "is_per_batch", "_is_per_batch", "are_claims"),
        # the jobs' own table and a side-car
        *("side_car", "is_side_car", "has_side_car", "pair", "beside", "lock_source"),
        *("_note", "_remove", "_still_there", "NOTHING"),
    }
)
"""Names of what only some kinds have, or of the kind itself."""
KIND_WORDS: Final = frozenset({"lease", "transaction", "rows", "batches", "side_car", "hold"})
"""Values that name a kind, in a comparison or as the key of a setting."""
KIND_CLASSES: Final = frozenset({"LeaseHold", "TransactionHold"})
"""Classes of some kinds, in a call of isinstance."""

LINES, FILES, CLASSES, FUNCTIONS = "lines", "files", "classes", "functions"
ERRORS: Final = "error classes"
CONTRIB: Final = "lines of the longest file of contrib"
CIRCLES: Final = "circles of imports at run time"
TYPE_CIRCLES: Final = "circles of imports, with those for types"
KINDS: Final = "conditionals by kind outside the seams"

COMMIT: Final = "38e516f"
BEFORE: Final[Mapping[str, int]] = {
    LINES: 31_707,
    FILES: 285,
    CLASSES: 425,
    FUNCTIONS: 2_655,
    ERRORS: 95,
    CONTRIB: 0,
    CIRCLES: 0,
    TYPE_CIRCLES: 3,
    KINDS: 147,
}
"""The figures of `COMMIT`, the last one before whole features were dropped."""
BOUNDS: Final[Mapping[str, int]] = {
    LINES: 20_000,
    FILES: 170,
    CLASSES: 260,
    FUNCTIONS: 1_600,
    ERRORS: 45,
    CONTRIB: 250,
    CIRCLES: 0,
    TYPE_CIRCLES: 0,
    KINDS: 20,
}
"""What the plan allows."""

HEAD: Final = f"""\
# How large the library is

Made by `python -m docs.make_house` from the files of `claimjobs/` and `dialects/`. A test fails if a bound that is kept
here is exceeded, if the library has grown by more than 2 % since the page was made, or if it has shrunk by more than
10 %.

"Before" is commit {COMMIT}. Error classes are `ClaimjobsError` and all that derive from it. A circle is a set of files
that import each other, at their beginning or in a function. A conditional by kind is a test (of `if`, `while`, a
conditional expression, a comprehension), or a value made of `and` and `or`, that asks which kind of queue this is: by
lease or by an open transaction, claims in rows or per batch, with a side-car or without one. The script lists the names
by which it knows such a test, and the files that are one kind each, in which it counts none;
`python -m docs.make_house kinds` prints where the others are.
"""

# --- the files -------------------------------------------------------------------------------------------------------


def house() -> dict[str, str]:
    """The text of each file of the library, by its path."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    names = {path.relative_to(ROOT).as_posix(): path for path in paths}
    return {name: path.read_text(encoding="utf-8") for name, path in sorted(names.items()) if not _is_linked(name)}


def house_at(commit: str) -> dict[str, str]:
    """Those of a commit."""
    command = ["git", "archive", commit, *FOLDERS]
    packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout  # noqa: S603
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        return {name: file.read().decode() for name, file in members.items() if file and name.endswith(".py")}


def _is_linked(name: str) -> bool:
    """Whether it is a file of `dialects/` once more."""
    return name.startswith("claimjobs/dialects/")


# --- the figures -----------------------------------------------------------------------------------------------------


def figures(texts: Mapping[str, str]) -> dict[str, int]:
    """All figures of these files."""
    trees = {name: ast.parse(text) for name, text in texts.items()}
    contrib = [text.count("\n") for name, text in texts.items() if name.startswith("claimjobs/contrib/")]
    return {
        **sizes(texts),
        ERRORS: len(_error_classes(trees)),
        CONTRIB: max(contrib, default=0),
        CIRCLES: _circles(trees, for_types=False),
        TYPE_CIRCLES: _circles(trees, for_types=True),
        KINDS: len(list(asks_for_kind(trees))),
    }


def sizes(texts: Mapping[str, str]) -> dict[str, int]:
    """How much code these files are."""
    nodes = [node for text in texts.values() for node in ast.walk(ast.parse(text))]
    return {
        LINES: sum(text.count("\n") for text in texts.values()),
        FILES: len(texts),
        CLASSES: sum(isinstance(node, ast.ClassDef) for node in nodes),
        FUNCTIONS: sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes),
    }


def rooms(texts: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """The sizes of each room: a folder of `claimjobs/`, the files beside the folders, `dialects/`."""
    names = {name: name.split("/")[1] if name.count("/") > 1 else "" for name in texts}
    names |= {name: "dialects" for name in texts if name.startswith("dialects/")}
    found = sorted(set(names.values()))
    return {room: sizes({name: text for name, text in texts.items() if names[name] == room}) for room in found}


def _error_classes(trees: Mapping[str, ast.Module]) -> set[str]:
    parents = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    errors = {"ClaimjobsError"}
    while more := {name for name, bases in parents.items() if bases & errors} - errors:
        errors |= more
    return errors


def kinds_of_lines(text: str) -> Counter[str]:
    """How many lines of a file are imports, signatures, docstrings, comments, blank, and all others: bodies."""
    kinds = dict.fromkeys(range(1, text.count("\n") + 1), "bodies")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.strip().startswith("#"):
            kinds[number] = "comments" if line.strip() else "blank"
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import() | ast.ImportFrom():
                kinds |= dict.fromkeys(range(node.lineno, _last(node) + 1), "imports")
            case ast.FunctionDef(body=[first, *_]) | ast.ClassDef(body=[first, *_]):
                top = min((node.lineno, *(each.lineno for each in node.decorator_list)))
                lines = range(top, max(node.lineno + 1, first.lineno))
                kinds |= dict.fromkeys((line for line in lines if kinds[line] == "bodies"), "signatures")
            case ast.Expr(value=ast.Constant(value=str())):
                kinds |= dict.fromkeys(range(node.lineno, _last(node) + 1), "docstrings")
    return Counter(kinds.values())


def _last(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


# --- imports ---------------------------------------------------------------------------------------------------------


def _circles(trees: Mapping[str, ast.Module], *, for_types: bool) -> int:
    """How many sets of files import each other."""
    modules = {_module(name): tree for name, tree in trees.items()}
    imports = {module: set(_imports(tree, modules, for_types=for_types)) for module, tree in modules.items()}
    reached = {module: _reached(imports, module) for module in modules}
    circles = {frozenset(each for each in there if module in reached[each]) for module, there in reached.items()}
    return len(circles - {frozenset()})


def _module(name: str) -> str:
    dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return dotted if dotted.split(".")[0] == "claimjobs" else f"claimjobs.{dotted}"


def _imports(tree: ast.Module, modules: Mapping[str, ast.Module], *, for_types: bool) -> Iterator[str]:
    only_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in only_types and not for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else node.module for name in named)


def _reached(imports: Mapping[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    ahead = [*imports[start]]
    while ahead:
        module = ahead.pop()
        if module not in reached:
            reached.add(module)
            ahead += imports[module]
    return reached


# --- conditionals by kind --------------------------------------------------------------------------------------------


def asks_for_kind(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Each conditional by kind outside the seams: its place, and the test."""
    for name, tree in trees.items():
        if name not in SEAMS:
            found = (test for test in _tests(tree) if any(map(_is_kind, _operands(test))))
            yield from (f"{name}:{test.lineno}: {ast.unparse(test)}" for test in found)


def _tests(tree: ast.Module) -> Iterator[ast.expr]:
    """All tests of a file, but not the parts of a test."""
    parts: set[ast.AST] = set()
    for node in ast.walk(tree):  # the outer ones first
        match node:
            case ast.If() | ast.IfExp() | ast.While() | ast.Assert():
                tests = [node.test]
            case ast.comprehension():
                tests = node.ifs
            case ast.BoolOp():
                tests = [node]
            case _:
                tests = []
        for test in tests:
            if test not in parts:
                yield test
                parts.update(ast.walk(test))


def _operands(test: ast.expr) -> Iterator[ast.expr]:
    """The parts of a test that `and`, `or` and `not` connect, and the sides of a comparison."""
    match test:
        case ast.BoolOp():
            inner = test.values
        case ast.UnaryOp(op=ast.Not()):
            inner = [test.operand]
        case ast.Compare():
            inner = [test.left, *test.comparators]
        case ast.NamedExpr():
            inner = [test.value]
        case _:
            yield test
            return
    for part in inner:
        yield from _operands(part)


def _is_kind(part: ast.expr) -> bool:
    match part:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in KIND_NAMES
        case ast.Constant(value=str(value)):
            return value in KIND_WORDS
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
            return any(isinstance(node, ast.Name) and node.id in KIND_CLASSES for node in ast.walk(kinds))
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=value), *_]):
            return value in KIND_WORDS
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in KIND_NAMES
    return False


# --- the page --------------------------------------------------------------------------------------------------------


def page(texts: Mapping[str, str]) -> str:
    """The page for these files."""
    today = figures(texts)
    rows = [f"| {name} | {BEFORE[name]:,} | {count:,} | {_bound(name)} |" for name, count in today.items()]
    sizes_of = [
        f"| {f'`{room}/`' if room else 'beside the rooms'} | {' | '.join(f'{count:,}' for count in size.values())} |"
        for room, size in rooms(texts).items()
    ]
    return "\n".join(
        [
            *(HEAD, "| figure | before | today | at most |\n| --- | ---: | ---: | ---: |", *rows, ""),
            *("## Rooms", "", "| room | lines | files | classes | functions |\n| --- | ---: | ---: | ---: | ---: |"),
            *(*sizes_of, ""),
        ]
    )


def _bound(name: str) -> str:
    return f"{BOUNDS[name]:,}" if name in BOUNDS else ""


def main() -> None:
    """Write the page, or print what was asked for."""
    match sys.argv[1:]:
        case []:
            PAGE.write_text(page(house()), encoding="utf-8")
            sys.stderr.write(f"{PAGE}: written\n")
        case ["lines"]:
            counts = Counter[str]()
            for text in house().values():
                counts += kinds_of_lines(text)
            sys.stdout.writelines(f"{kind}: {count:,}\n" for kind, count in counts.most_common())
        case ["kinds"]:
            trees = {name: ast.parse(text) for name, text in house().items()}
            sys.stdout.writelines(f"{place}\n" for place in asks_for_kind(trees))
        case [commit]:
            sys.stdout.writelines(f"{name}: {count:,}\n" for name, count in figures(house_at(commit)).items())


if __name__ == "__main__":
    main()
