"""`python -m tests.mutants`: prints the mutants that no test notices; 1 if one of them is unexplained."""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.mutants.explained import EXPLAINED
from tests.mutants.mutations import Mutant, mutants
from tests.mutants.reach import Reach
from tests.mutants.targets import ROOT, TARGETS, files, files_of
from tests.mutants.trial import Laboratory, laboratory

UNEXPLAINED = 1
UNSOUND = 2

Found = dict[tuple[str, str, str], dict[str, Any]]
"""What became of mutants, by their keys."""


def main() -> int:
    """Try the mutants that were asked for."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    there = {mutant.key: mutant for file in files() for mutant in mutants(file, (ROOT / file).read_text("utf-8"))}
    found = _read(options.json)
    chosen = _chosen(options, there, found)
    print(f"{len(chosen)} mutants of {len(there)}", flush=True)
    with laboratory() as lab:
        if not any(options.reach.glob("*.jsonl")) and (failed := lab.look(_tests(), options.reach)):
            print(f"without any mutant this fails: {failed}", flush=True)
            return UNSOUND
        bench = _Bench(options, lab, len(there), found)
        bench.try_all(chosen, far=False)
        bench.try_all([mutant for mutant in chosen if _is_open(found, mutant)], far=True)
        tried_now = [found[mutant.key] for mutant in chosen if mutant.key in found]
        noticing = {tried["noticed_by"] for tried in tried_now if "::" in (tried["noticed_by"] or "")}
        if failed := lab.fails_anyway(sorted(noticing)):
            print(f"without any mutant this fails, too: {failed}", flush=True)
            return UNSOUND
    return UNEXPLAINED if any(_is_unexplained(tried) for tried in tried_now) else 0


class _Bench:
    """Tries mutants, and writes down what becomes of each."""

    def __init__(self, options: argparse.Namespace, lab: Laboratory, there: int, found: Found) -> None:
        self._options, self._lab, self._there, self._found = options, lab, there, found
        self._reach = Reach(options.reach)
        self._ends = time.monotonic() + 60 * options.minutes

    def try_all(self, chosen: list[Mutant], *, far: bool) -> None:
        """Those that survive the nearest tests are tried again with others that reach them."""
        for number, mutant in enumerate(chosen, 1):
            if not far and time.monotonic() > self._ends:
                break
            began = time.monotonic()
            _add(self._found, mutant, self._noticed_by(mutant, far), self._options.since)
            print(_line(number, self._found[mutant.key], time.monotonic() - began), flush=True)
            _write(self._options, self._there, self._found)

    def _noticed_by(self, mutant: Mutant, far: bool) -> str | None:
        if mutant.key in EXPLAINED:
            return None
        reaching = [] if self._options.tests else self._reach.tests(mutant)
        return self._lab.noticed_by(mutant, reaching, self._options.tests or files()[mutant.file], far=far)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--files", nargs="+", default=[], help="only files whose path holds one of these words")
    parser.add_argument("--sample", type=int, help="so many of them, drawn by lot (default: all, in that order)")
    parser.add_argument("--seed", type=int, default=1, help="of the lot (default: 1)")
    parser.add_argument("--minutes", type=float, default=1e6, help="no mutant is begun after so many minutes")
    parser.add_argument("--again", action="store_true", help="those of --json that survived, and no others")
    parser.add_argument("--since", action="store_true", help="with --again: by tests that were written for them")
    parser.add_argument("--tests", nargs="+", help="these tests, in place of those that reach the line")
    parser.add_argument("--reach", type=Path, required=True, help="a folder that tells which lines each test reaches")
    parser.add_argument("--json", type=Path, help="what is found is added to this file")
    return parser


def _chosen(options: argparse.Namespace, there: dict[tuple[str, str, str], Mutant], found: Found) -> list[Mutant]:
    if options.again:
        return [mutant for key, mutant in there.items() if key in found and found[key]["noticed_by"] is None]
    wanted = [mutant for mutant in there.values() if any(word in mutant.file for word in options.files or ("",))]
    random.Random(options.seed).shuffle(wanted)
    return [mutant for mutant in wanted[: options.sample] if mutant.key not in found]


def _tests() -> list[str]:
    return sorted({test for tests in files().values() for test in tests})


def _add(found: Found, mutant: Mutant, by: str | None, since: bool) -> None:
    """What became of it. What the tests of the day of the draw missed is kept: those that were written since for what
    was drawn prove nothing about the rest."""
    told = {name: getattr(mutant, name) for name in ("file", "line", "operator", "before", "after")}
    parts = [part for part in TARGETS if mutant.file in files_of(part)]
    said = {"noticed_by": by, "missed_at_first": since or by is None, "why": EXPLAINED.get(mutant.key)}
    found[mutant.key] = {**told, "parts": parts, **said}


def _is_open(found: Found, mutant: Mutant) -> bool:
    return mutant.key in found and _is_unexplained(found[mutant.key])


def _is_unexplained(tried: dict[str, Any]) -> bool:
    return tried["noticed_by"] is None and tried["why"] is None


def _line(number: int, tried: dict[str, Any], seconds: float) -> str:
    where = f"{number:4} {tried['file']}:{tried['line']} {tried['operator']} ({seconds:.0f} s)"
    if tried["noticed_by"] is not None:
        return f"{where}: {tried['noticed_by']}"
    word = "SURVIVES" if _is_unexplained(tried) else "survives, as is explained"
    return f"{where}: {word}\n     - {tried['before']}\n     + {tried['after']}"


def _read(path: Path | None) -> Found:
    known = json.loads(path.read_text(encoding="utf-8"))["tried"] if path is not None and path.exists() else []
    return {(tried["file"], tried["before"], tried["after"]): tried for tried in known}


def _write(options: argparse.Namespace, there: int, found: Found) -> None:
    if options.json is not None:
        ordered = sorted(found.values(), key=lambda tried: (tried["file"], tried["line"], tried["after"]))
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        told = {"seed": options.seed, "commit": commit.stdout.strip(), "there": there, "tried": ordered}
        options.json.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
