"""`python -m tests.mutants`: prints the mutants that no test notices; 1 if one of them is unexplained."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.mutants.explained import EXPLAINED
from tests.mutants.mutations import Mutant, mutants
from tests.mutants.targets import ROOT, files
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
    found = {key: tried for key, tried in _read(options.json).items() if key in there}
    chosen = _chosen(options, [mutant for key, mutant in there.items() if not options.again or _survived(found, key)])
    print(f"{len(chosen)} mutants", flush=True)
    with laboratory() as lab:
        if not options.trust and (failed := _unsound(lab, chosen)):
            print(f"without any mutant this fails: {failed}", flush=True)
            return UNSOUND
        for number, mutant in enumerate(chosen, 1):
            found[mutant.key] = tried = _tried(lab, mutant)
            print(_line(number, tried), flush=True)
            _write(options.json, found)
    tried_now = [found[mutant.key] for mutant in chosen]
    return UNEXPLAINED if any(_is_unexplained(tried) for tried in tried_now) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--files", nargs="+", default=[], help="only files whose path holds one of these words")
    parser.add_argument("--sample", type=int, help="so many of them, drawn by lot (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the lot (default: 1)")
    parser.add_argument("--again", action="store_true", help="those of --json that survived, and no others")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without any mutant first")
    parser.add_argument("--json", type=Path, help="what is found is added to this file")
    return parser


def _survived(found: Found, key: tuple[str, str, str]) -> bool:
    return key in found and found[key]["noticed_by"] is None


def _chosen(options: argparse.Namespace, there: list[Mutant]) -> list[Mutant]:
    wanted = [mutant for mutant in there if any(word in mutant.file for word in options.files or ("",))]
    if options.sample is None or options.sample >= len(wanted):
        return wanted
    return random.Random(options.seed).sample(wanted, options.sample)


def _unsound(lab: Laboratory, chosen: list[Mutant]) -> str | None:
    tests = sorted({test for mutant in chosen for test in files()[mutant.file]})
    return lab.first_failure(tests) if tests else None


def _tried(lab: Laboratory, mutant: Mutant) -> dict[str, Any]:
    began = time.monotonic()
    by = None if mutant.key in EXPLAINED else lab.noticed_by(mutant, files()[mutant.file])
    told = {name: getattr(mutant, name) for name in ("file", "line", "operator", "before", "after")}
    return {**told, "noticed_by": by, "seconds": round(time.monotonic() - began, 1)}


def _is_unexplained(tried: dict[str, Any]) -> bool:
    return tried["noticed_by"] is None and (tried["file"], tried["before"], tried["after"]) not in EXPLAINED


def _line(number: int, tried: dict[str, Any]) -> str:
    where = f"{number:4} {tried['file']}:{tried['line']} {tried['operator']} ({tried['seconds']} s)"
    if tried["noticed_by"] is not None:
        return f"{where}: {tried['noticed_by']}"
    word = "SURVIVES" if _is_unexplained(tried) else "survives, as is explained"
    return f"{where}: {word}\n     - {tried['before']}\n     + {tried['after']}"


def _read(path: Path | None) -> Found:
    known = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else []
    return {(tried["file"], tried["before"], tried["after"]): tried for tried in known}


def _write(path: Path | None, found: Found) -> None:
    if path is not None:
        ordered = sorted(found.values(), key=lambda tried: (tried["file"], tried["line"], tried["after"]))
        path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
