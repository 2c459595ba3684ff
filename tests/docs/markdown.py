"""The parts of a Markdown page that a test looks at: fenced blocks, links, headings, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = ROOT / "README.md"
GUIDE = tuple(
    ROOT / "docs" / folder / f"{name}.md"
    for folder, names in {
        "guide": (
            *("worker", "job-table", "own-table", "enqueue", "claim", "waiting", "many-at-once", "failures"),
            *("log", "hooks", "transaction", "done-jobs", "batches", "liveness"),
        ),
        "recipes": (
            *("recurring", "per-key", "cancel", "other-database", "replica", "advisory-locks", "assignments"),
            *("outbox", "backfill", "webhooks", "tenants", "progress", "migrating"),
        ),
        "frameworks": ("fastapi", "flask", "alembic"),
        "reference": ("refused-tables", "events"),
    }.items()
    for name in names
)
"""What the library does, in the order in which the tests run its examples, in one folder."""
START = ROOT / "docs" / "start"
TUTORIAL = START / "tutorial.md"
TESTING = ROOT / "docs" / "testing.md"
DJANGO = ROOT / "docs" / "frameworks" / "django.md"
DJANGO_TASKS = ROOT / "docs" / "frameworks" / "django-tasks.md"
COMMANDS = ROOT / "docs" / "commands.md"
DBA = ROOT / "docs" / "dba.md"
MONITORING = ROOT / "docs" / "monitoring.md"
OPERATING = ROOT / "docs" / "operating.md"
DEPLOYING = ROOT / "docs" / "deploying.md"
SECURITY = ROOT / "docs" / "security.md"
OPERATION = (DBA, MONITORING, OPERATING, SECURITY, DEPLOYING)
MANUAL = (README, TUTORIAL, START / "kinds.md", *GUIDE, TESTING, COMMANDS, *OPERATION)
"""What users read, in this order."""

MADE = r"<!-- (options|bench): [\w -]+ -->\n.*?<!-- \1: end -->"


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file that this block is, said in its first line: `# shop/models.py`."""
        named = re.match(r"# (\S+\.(?:py|toml))\n", self.text)
        return named[1] if named else None


def blocks(page: Path, language: str) -> list[Block]:
    """The fenced blocks of one language; `line` is that of the first line inside."""
    return [block for block in _blocks(page, page.read_text(encoding="utf-8")) if block.language == language]


def written_blocks(page: Path, language: str) -> list[Block]:
    """Those of them that are written by hand."""
    return [block for block in _blocks(page, written(page)) if block.language == language]


def written(page: Path) -> str:
    """The page without the lines that a script has made between marks."""
    text = page.read_text(encoding="utf-8")
    return re.sub(MADE, lambda made: "\n" * made[0].count("\n"), text, flags=re.DOTALL)


def _blocks(page: Path, text: str) -> Iterator[Block]:
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield Block(page, text.count("\n", 0, found.start()) + 2, found[1], found[2])


def prose(page: Path) -> str:
    """What is written by hand on the page, without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", written(page), flags=re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[str]:
    """Where its links and pictures point."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))


def anchors(page: Path) -> set[str]:
    """The fragments that its headings can be reached by."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def table(page: Path, *header: str) -> list[tuple[str, ...]]:
    """The rows of the first table with this header."""
    lines = iter(page.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if _cells(line) == header:
            next(lines)
            return list(_until_blank(lines))
    raise LookupError(f"{page.name} has no table {header}")


def _until_blank(lines: Iterator[str]) -> Iterator[tuple[str, ...]]:
    for line in lines:
        if not line.startswith("|"):
            return
        yield _cells(line)


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
