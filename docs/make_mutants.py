"""Make docs/mutants.md from docs/mutants.json: `python -m docs.make_mutants` in the repository.

`make mutants MUTANTS_ARGS='--json docs/mutants.json'` adds to that file what it has found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.mutants.explained import EXPLAINED
from tests.mutants.targets import TARGETS, files_of

PAGE: Final = Path(__file__).with_name("mutants.md")
FOUND: Final = PAGE.with_suffix(".json")
HEAD: Final = """\
# What the tests notice

Made by `python -m docs.make_mutants` from what `make mutants` found. A line of the protocol is changed, one at a time,
and the tests that stand for its file are run. A mutant is noticed where one of them fails, or hangs; else it survives.
A survivor is equivalent, which means that nobody who uses the package could see the change; or a test is missing.

{count} mutants were tried, drawn by lot from all that there are: {noticed} were noticed, {explained} equivalent,
and {missing} ({percent:.1f} %) are not explained.
"""


def page() -> str:
    """The page, from the figures that are there."""
    found = json.loads(FOUND.read_text(encoding="utf-8"))
    return "\n".join([_head(found), _table(found), *_survivors(found)])


def _head(found: Sequence[Any]) -> str:
    survivors = [tried for tried in found if tried["noticed_by"] is None]
    missing = sum(_why(tried) is None for tried in survivors)
    return HEAD.format(
        count=len(found),
        noticed=len(found) - len(survivors),
        explained=len(survivors) - missing,
        missing=missing,
        percent=100 * missing / len(found),
    )


def _table(found: Sequence[Any]) -> str:
    rows = ["| part | mutants | noticed | equivalent | not explained |", "| --- | --: | --: | --: | --: |"]
    for part in TARGETS:
        tried = [one for one in found if one["file"] in files_of(part)]
        survivors = [one for one in tried if one["noticed_by"] is None]
        explained = sum(_why(one) is not None for one in survivors)
        counts = (len(tried), len(tried) - len(survivors), explained, len(survivors) - explained)
        rows.append(f"| {part} | {' | '.join(map(str, counts))} |")
    return "\n".join([*rows, ""])


def _survivors(found: Sequence[Any]) -> list[str]:
    survivors = [tried for tried in found if tried["noticed_by"] is None]
    return ["## Survivors\n", *map(_survivor, sorted(survivors, key=lambda tried: _why(tried) is not None))]


def _survivor(tried: Any) -> str:
    why = _why(tried) or "Not explained: a test is missing."
    diff = f"```diff\n- {tried['before']}\n+ {tried['after']}\n```"
    return f"`{tried['file']}`: {tried['operator']}. {why}\n\n{diff}\n"


def _why(tried: Any) -> str | None:
    return EXPLAINED.get((tried["file"], tried["before"], tried["after"]))


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    sys.stderr.write(f"{PAGE}: written\n")


if __name__ == "__main__":
    main()
