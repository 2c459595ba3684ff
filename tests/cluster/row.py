"""Row: runs one setting, and says what became of it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import servers
from claimjobs.cli import exits
from claimjobs.dialects import DIALECTS
from tests.chaos import audit
from tests.chaos.arena import Arena
from tests.chaos.bare import CLAIMS, TRANSIENTS
from tests.chaos.faults.fault import Fault
from tests.chaos.fleet import HANDLER, ROOT
from tests.chaos.verdict import run as strike_and_judge
from tests.cluster.setting import Setting


@dataclass
class Row:
    """One line of the table."""

    setting: str
    jobs: int = 0
    lost: int = 0
    settled_twice: int = 0
    longest_gap: float = 0.0
    """The most seconds in which no job was done."""
    refusals: int = 0
    """How often the database refused a statement or a commit that was then tried again."""
    per_second: float = 0.0
    said: str = ""
    """Why it was left out, or how it was refused."""
    broken: list[str] = field(default_factory=list)
    """Promises that were not kept."""
    claims: int = 0
    """How many claims those consumers made who told it at their end."""

    @property
    def share(self) -> float:
        """The part of claims that was refused. A settle and the claim after it are one transaction."""
        return self.refusals / max(1, self.refusals + self.claims)


def run(setting: Setting, folder: Path, seconds: float) -> Row:
    """Run a setting, with so many seconds of work before each fault."""
    try:
        with setting.place(folder) as arena:
            return _refused(setting, arena) if setting.refused else _worked(setting, arena, seconds)
    except servers.Unavailable as error:
        return Row(setting.name, said=f"left out: {error}".splitlines()[0])


def _worked(setting: Setting, arena: Arena, seconds: float) -> Row:
    strike = partial(_in_turn, setting=setting, seconds=seconds)
    fault = Fault(setting.name, strike, setting.formation, 1, math.inf, pause=(0.0, 0.0))
    verdict = strike_and_judge(arena, fault, 1)
    story = audit.read(arena.engine, arena.kind)
    row = Row(
        setting.name,
        jobs=verdict.jobs,
        lost=verdict.lost,
        settled_twice=verdict.settled_twice,
        longest_gap=story.longest_gap,
        refusals=_refusals(arena),
        claims=sum(map(int, _told(arena, CLAIMS))),
        per_second=story.per_second,
        broken=verdict.broken,
    )
    limit = setting.limit(arena.backlog, row.per_second)
    if (verdict.longest or 0) > limit:
        row.broken.append(f"work went on after {verdict.longest:.1f} s, later than {limit:.1f}")
    if row.share > setting.most_refusals:
        row.broken.append(f"{row.share:.1%} of the claims were refused, more than {setting.most_refusals:.0%}")
    return row


def _in_turn(arena: Arena, setting: Setting, seconds: float) -> None:
    for strike in setting.strikes:
        time.sleep(seconds)
        strike(arena)
        arena.restore()
    time.sleep(seconds)


def _refusals(arena: Arena) -> int:
    """What consumers say at their end: those that were killed do not."""
    passing = set(DIALECTS[arena.engine.dialect.name]().errors.transient.values())
    kinds: Counter[str] = Counter()
    for told in _told(arena, TRANSIENTS):
        kinds.update(json.loads(told))
    return sum(count for kind, count in kinds.items() if kind in passing)


def _told(arena: Arena, begins: str) -> Iterator[str]:
    """The rest of each line that begins so, in what consumers said."""
    for group in arena.groups:
        for line in group.log.read_text().splitlines():
            if line.startswith(begins):
                yield line.removeprefix(begins)


def _refused(setting: Setting, arena: Arena) -> Row:
    command = [sys.executable, "-m", "claimjobs", "start-processing", HANDLER]
    locked = {None: "auto", True: "on", False: "off"}[setting.formation.settings.session_lock]
    words = ["--url", arena.url(setting.formation.settings.road), "--session-lock", locked]
    ended = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    row = Row(setting.name, said="refused at the start")
    if ended.returncode != exits.CONNECTION or str(setting.refused) not in ended.stderr:
        row.broken.append(f"it was not refused by {setting.refused!r}: {ended.returncode} {ended.stderr[-1000:]}")
    return row
