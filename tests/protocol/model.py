"""The models of the protocol, docs/protocol/claim.pml and keys.pml (limits and order per key), run through spin:
`make model`.

Spin is the installed one, or that of the distribution's package, unpacked into the cache of servers. A C compiler
must be there: spin writes a program that is as large as the model, and that program does the searching.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from servers import Unavailable, cache, packages
from servers.prefix import Program

MODELS = Path(__file__).parents[2] / "docs/protocol"
CLAIM = "claim.pml"
KEYS = "keys.pml"

SAFETY = "safety"
"""Every assertion, and no end but a good one."""
STAYS = "nothing_stays_claimed"
DONE = "everything_is_done"


@dataclass(frozen=True)
class Rule:
    """A rule of the protocol, and what is found out when it is left out."""

    left_out: str
    violates: str
    where: tuple[str, ...] = ()
    model: str = CLAIM

    @property
    def name(self) -> str:
        return " ".join((self.left_out, *self.where))


KEYED: tuple[tuple[str, ...], ...] = ((), ("ORDER",))
"""With a limit per key, and with an order."""

PROTOCOLS: tuple[tuple[str, ...], ...] = (
    (),
    ("LOCKING_FENCE",),
    ("LEASE_ONLY",),
    ("LEASE_ONLY", "LOCKING_FENCE"),
    ("BATCHES",),
    ("LEASE_ONLY", "BATCHES"),
)
"""Postgres, MySQL, and each of them where no session lock can be had. Claims per batch are the same on both: the fence
is in an INSERT ... SELECT, which locks no row that it reads."""

RULES = (
    Rule("NO_GUARD", SAFETY),
    Rule("NO_ASK", SAFETY, ("LEASE_ONLY",)),
    Rule("NO_DOUBT", STAYS),
    Rule("NO_WREST", STAYS),
    Rule("NO_SWEEP", STAYS, ("LEASE_ONLY",)),
    Rule("NO_KILL", DONE),
    Rule("NO_FENCE", DONE, ("LEASE_ONLY",)),
    Rule("NO_SECOND_LOOK", SAFETY, ("BATCHES",)),
    Rule("NO_GUARD", SAFETY, ("BATCHES",)),
    Rule("NO_SWEEP", STAYS, ("LEASE_ONLY", "BATCHES")),
    Rule("COUNT_FIRST", SAFETY, model=KEYS),
    Rule("NO_KEY_LOCK", SAFETY, model=KEYS),
    Rule("EARLY_UNLOCK", SAFETY, model=KEYS),
    Rule("ANY_JOB", SAFETY, ("ORDER",), KEYS),
)
"""What ending a dead owner's session does not leave to do, the sweep and the fence do where it cannot be ended."""


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    errors: int
    states: int
    output: str


def check(claim: str, *defines: str, mishaps: int = 2, model: str = CLAIM) -> Found:
    """Search all that can happen to the model for something that violates a claim. Raises Unavailable."""
    compiler = _compiler()
    with tempfile.TemporaryDirectory(prefix="claimjobs-model-") as place:
        run = _runner(Path(place))
        run([*_spin(), *(f"-D{name}" for name in (f"MISHAPS={mishaps}", *defines)), "-a", str(MODELS / model)])
        kind = ["-DSAFETY", "-DNOCLAIM"] if claim == SAFETY else ["-DNFAIR=3"]
        run([compiler, "-w", "-O1", *kind, "-o", "pan", "pan.c"])
        # -f: weak fairness. Who could always go on does at last; without it nobody need ever do anything.
        said = run(["./pan", "-m1000000", *([] if claim == SAFETY else ["-a", "-f", "-N", claim])])
    return _read(said)


def _runner(place: Path) -> Callable[[list[str]], str]:
    def run(command: list[str]) -> str:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    return run


def _read(said: str) -> Found:
    errors, states = re.search(r"errors: (\d+)", said), re.search(r"([\d.e+]+) states, stored", said)
    if errors is None or states is None or ("Search not completed" in said and errors[1] == "0"):
        raise RuntimeError(f"the search did not come to its end:\n{said}")
    return Found(int(errors[1]), int(float(states[1])), said)


def _compiler() -> str:
    """Also spin itself needs it, as the preprocessor of models."""
    found = shutil.which("gcc")
    if found is None:
        raise Unavailable("no gcc to compile the model with: run `apt-get install gcc libc6-dev`")
    return found


def _spin() -> list[str]:
    installed = shutil.which("spin")
    if installed:
        return [installed]
    prefix = cache.fill("spin", _fetch)
    return Program(prefix / "usr/bin/spin", prefix, "package spin").command()


def _fetch(into: Path) -> None:
    print(f"fetching spin into {into.parent.parent}, once ...", file=sys.stderr, flush=True)  # noqa: T201
    packages.unpack_server("spin", into)


# --- by hand -------------------------------------------------------------------------------------------------


def main() -> int:
    """One line a search; 1 if one of them did not come to what it should, or there is nothing to search with."""
    try:
        return 1 if _all() else 0
    except Unavailable as error:
        print(f"the model of the protocol cannot be searched: {error}", file=sys.stderr)  # noqa: T201
        return 1


def _all() -> int:
    """How many searches did not come to what they should."""
    wrong = 0
    for name, claim, found, expected, seconds in _searches():
        wrong += bool(found.errors) is not expected
        came_to = "violated" if found.errors else "holds"
        said = came_to if bool(found.errors) is expected else f"{came_to}, which it must not:\n{found.output}"
        print(f"{name:26} {claim:22} {found.states:>9,} states {seconds:6.1f} s  {said}", flush=True)  # noqa: T201
    return wrong


def _searches() -> Iterator[tuple[str, str, Found, bool, float]]:
    for defines in PROTOCOLS:
        for claim in (SAFETY, STAYS, DONE):
            began = time.monotonic()
            found = check(claim, *defines)
            yield " ".join(defines) or "the protocol", claim, found, False, time.monotonic() - began
    for defines in KEYED:
        for claim in (SAFETY, DONE):
            began = time.monotonic()
            found = check(claim, *defines, model=KEYS)
            yield " ".join(("keys", *defines)), claim, found, False, time.monotonic() - began
    for rule in RULES:
        began = time.monotonic()
        found = check(rule.violates, rule.left_out, *rule.where, model=rule.model)
        yield rule.name, rule.violates, found, True, time.monotonic() - began


__all__ = ["CLAIM", "DONE", "KEYED", "KEYS", "PROTOCOLS", "RULES", "SAFETY", "STAYS", "Found", "Rule", "check"]

if __name__ == "__main__":
    sys.exit(main())
