"""Write docs/benchmarks-peers.md from docs/benchmarks-peers.json and from what each system's file says of its settings.

`make bench-peers PEERS_ARGS='--json docs/benchmarks-peers.json'`, then `python -m docs.make_peers` in the repository.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.catalogue import CLAIMJOBS, CLAIMJOBS_BATCHES, MYSQL, PEERS, POSTGRES, Peer
from benchmarks.peers.environments import SYSTEMS
from benchmarks.report import DEAD, LOG, said

PAGE: Final = Path(__file__).with_name("benchmarks-peers.md")
RESULTS: Final = PAGE.with_suffix(".json")
OURS: Final = (CLAIMJOBS, CLAIMJOBS_BATCHES)
COSTS: Final = {LOG: "log_bytes", DEAD: "dead_rows"}
COSTS_TOLD: Final = f"""\
`{LOG}`: of the WAL, or of the redo log; `{DEAD}`: versions of rows that an UPDATE or a DELETE
left. Both are those with the fewest workers that were measured.
"""
TITLES: Final = {POSTGRES: "Postgres", MYSQL: "MySQL"}

HEAD: Final = """\
# Beside other job queues

Made by `python -m docs.make_peers` from [benchmarks-peers.json](benchmarks-peers.json), which `make bench-peers`
writes, and from the files in `benchmarks/peers/systems`; do not edit. The tests fail when this page is stale.

A full queue is emptied by 1, 2, 4 or 8 workers, a process each. A job is two strings of 64 characters, its handler does
nothing. Each system has its best documented settings, its best batch size, and a new database in its turn; claimjobs
runs at the same batch size, with the public API in its defaults. The clock runs from the start line, which all workers
cross together, to the moment at which the database holds no job that is not done. Every job was done once in each run
that has a figure here. Figures are jobs a second, medians; compare ratios of one table, nothing else.
"""


def page(results: dict[str, Any]) -> str:
    """The page."""
    lines = [HEAD, *_facts(results), *(line for server in results["servers"].items() for line in _server(*server))]
    return "\n".join([*lines, "\n## The systems and their settings", *map(_system, _systems(results)), ""])


def _systems(results: dict[str, Any]) -> list[Peer]:
    """Those that are to have a figure; of claimjobs those that have one."""
    titles = {_title(line["contestant"]) for found in results["servers"].values() for line in found["medians"]}
    return [*(ours for ours in OURS if ours.title in titles), *PEERS]


def _facts(results: dict[str, Any]) -> Iterator[str]:
    yield f"    {results['command']}\n"
    yield from (f"- {remark}" for remark in results["remarks"])


def _server(name: str, found: dict[str, Any]) -> Iterator[str]:
    yield f"\n## On {TITLES[name]}\n"
    yield from (f"- {line}" for line in found["heading"])
    yield ""
    yield from _table(found["medians"])
    for absence in found["not_run"]:
        yield f"\n**Not run: {absence['title']}**: {_cell(absence['why'])}"


def _table(medians: list[dict[str, Any]]) -> Iterator[str]:
    """A line a contestant: its figures by workers, then by how much claimjobs is ahead."""
    workers = sorted({line["workers"] for line in medians})
    costs = {head: key for head, key in COSTS.items() if any(key in line for line in medians)}
    if costs:
        yield COSTS_TOLD
    heads = [*(f"{n}" for n in workers), *(f"claimjobs / it, {n}" for n in workers), *costs]
    yield f"| | batch | {' | '.join(heads)} |"
    yield f"| --- | {' | '.join(['---:'] * (len(heads) + 1))} |"
    for name in dict.fromkeys(line["contestant"] for line in medians):
        own = {line["workers"]: line for line in medians if line["contestant"] == name}
        rates = [f"{own[n]['rate']:,.0f}" if n in own else "-" for n in workers]
        ratios = [_ratio(own[n]["ratio"]) if n in own else "-" for n in workers]
        first = next(iter(own.values()))
        cells = [f"{first['batch']:,}", *rates, *ratios, *(said(first.get(key)) for key in costs.values())]
        yield f"| {_title(name)} | {' | '.join(cells)} |"


def _title(contestant: str) -> str:
    return contestant.partition(", batch")[0]


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _system(peer: Peer) -> str:
    pinned = ", ".join((*peer.npm, *peer.packages)) or "of this repository"
    done = "" if peer in OURS else f" At its best batch size here: {peer.batch:,}."
    return f"\n### {peer.title}\n\n`{pinned}`. A job that is done: {peer.done}.{done}\n\n{settings(peer)}"


def settings(peer: Peer) -> str:
    """What the system's file says of itself."""
    if peer.npm:
        text = (SYSTEMS / f"{peer.module}.mjs").read_text(encoding="utf-8")
        return text.partition("/*")[2].partition("*/")[0].strip()
    tree = ast.parse((SYSTEMS / f"{peer.module}.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
    sys.stderr.write(f"{PAGE}: written\n")


if __name__ == "__main__":
    main()
