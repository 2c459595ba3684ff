"""Make docs/internals/mutants.md from mutants.json beside it: `python -m docs.make_mutants` in the repository.

`make mutants MUTANTS_ARGS='--json docs/internals/mutants.json'` adds to that file what it has found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

from tests.mutants.targets import TARGETS
from tests.mutants.trial import FAR, NEAR

PAGE: Final = Path(__file__).parent / "internals" / "mutants.md"
FOUND: Final = PAGE.with_suffix(".json")
HEAD: Final = """\
# What the tests notice

Made by `python -m docs.make_mutants` from what `make mutants` found. A line of the protocol is changed, one at a time,
and tests are run: at first the quickest that reach it, {near} s of them on Postgres and {near} s on MySQL, then, for
a survivor, {far} s of others that reach it. It is noticed where one of them fails, or hangs; else it survives.
A survivor is equivalent, which means that nobody who uses the package could see the change; or a test is missing.
Words for people (log, errors' texts, docstrings) and the tuning (constants of modules and classes) are not changed.

**The sample:** {count} of {there} mutants, drawn by lot (seed {seed}) from the code of commit {commit}. The tests
noticed {noticed} at first. Of the {survived} survivors {explained} are equivalent, {closed} are noticed by tests
that were written since, and {missing} are not explained.

{note}

**What that says of the mutants that were not drawn:** the tests missed {missed} of {count}, {share:.1f} %, not counting
those that are equivalent. With 95 % confidence the share among all {there} lies between {low:.1f} % and {high:.1f} %
(Wilson's score interval; E. B. Wilson, J. Am. Stat. Assoc. 22, 1927). The tests that were written since close the
mutants of the sample, and what is like them; of the others nothing is known.
"""
SURE: Final = 0.95


def page() -> str:
    """The page, from the figures that are there."""
    told = json.loads(FOUND.read_text(encoding="utf-8"))
    return "\n".join([_head(told), _table(told["tried"]), *_survivors(told["tried"])])


def _head(told: dict[str, Any]) -> str:
    tried = told["tried"]
    survived = [one for one in tried if one["missed_at_first"]]
    explained = sum(one["why"] is not None for one in survived)
    missing = sum(one["why"] is None and one["noticed_by"] is None for one in survived)
    low, high = interval(len(survived) - explained, len(tried))
    return HEAD.format(
        near=NEAR,
        far=FAR,
        note=told.get("note", ""),
        count=len(tried),
        there=told["there"],
        seed=told["seed"],
        commit=told["commit"],
        noticed=len(tried) - len(survived),
        survived=len(survived),
        explained=explained,
        missing=missing,
        closed=len(survived) - explained - missing,
        missed=len(survived) - explained,
        share=100 * (len(survived) - explained) / len(tried),
        low=100 * low,
        high=100 * high,
    )


def interval(hits: int, count: int) -> tuple[float, float]:
    """Wilson's score interval of a share, at the confidence SURE."""
    z = NormalDist().inv_cdf((1 + SURE) / 2)
    middle = (hits + z * z / 2) / (count + z * z)
    half = z / (count + z * z) * sqrt(hits * (count - hits) / count + z * z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def _table(found: Sequence[Any]) -> str:
    rows = [
        "| part | mutants | noticed at first | equivalent | noticed since | not explained |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for part in TARGETS:
        tried = [one for one in found if part in one["parts"]]
        survivors = [one for one in tried if one["missed_at_first"]]
        explained = sum(one["why"] is not None for one in survivors)
        since = sum(one["why"] is None and one["noticed_by"] is not None for one in survivors)
        counts = (len(tried), len(tried) - len(survivors), explained, since, len(survivors) - explained - since)
        rows.append(f"| {part} | {' | '.join(map(str, counts))} |")
    return "\n".join([*rows, "", "A file that belongs to two parts is counted in both.", ""])


def _survivors(found: Sequence[Any]) -> list[str]:
    survivors = [tried for tried in found if tried["missed_at_first"]]
    return ["## Survivors\n", *map(_survivor, sorted(survivors, key=lambda tried: tried["why"] is not None))]


def _survivor(tried: Any) -> str:
    since = f"Noticed since by `{tried['noticed_by']}`." if tried["noticed_by"] else "Not explained: a test is missing."
    diff = f"```diff\n- {tried['before']}\n+ {tried['after']}\n```"
    return f"`{tried['file']}`: {tried['operator']}. {tried['why'] or since}\n\n{diff}\n"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    sys.stderr.write(f"{PAGE}: written\n")


if __name__ == "__main__":
    main()
