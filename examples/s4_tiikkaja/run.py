"""The snapshot race, the convoy, the locks that are not released: with the naive statements, and with claimjobs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from examples.report import Figure
from examples.s4_tiikkaja import ours, scenes

ARTICLE = "S4 Marko Tiikkaja 2010, Queues in SQL"
DEFAULTS: Mapping[str, Any] = {"claims": 10_000, "consumers": 8}
SMALL: Mapping[str, Any] = {"claims": 500, "consumers": 4}
ITEMS = 100


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--claims", type=int, help="after which no advisory lock may be left")
    parser.add_argument("--consumers", type=int, help="that stand in a convoy")


def run(url: str, options: argparse.Namespace) -> Iterator[Figure]:
    yield from races(url)
    yield from convoys(url, options.consumers)
    yield from locks(url, options.claims)


def races(url: str) -> Iterator[Figure]:
    scenes.setup(url, ITEMS)
    yield Figure("sessions that have one row: plain select", f"{scenes.read_twice(url)} of 2", "2 of 2")
    yield Figure("... lock tried, no recheck", f"{scenes.snapshot_race(url, recheck=False)} of 2", "2 of 2")
    scenes.setup(url, ITEMS)
    yield Figure("... lock tried, then rechecked", f"{scenes.snapshot_race(url, recheck=True)} of 2", "1 of 2")
    scenes.setup(url, ITEMS)
    both = ours.snapshot_race(url, ITEMS)
    yield Figure("... claimjobs, a row taken at each of its steps", f"{both} of {ITEMS} rows held twice", "-")


def convoys(url: str, consumers: int) -> Iterator[Figure]:
    scenes.setup(url, ITEMS)
    yield Figure("that wait for the first row: for update", f"{scenes.convoy(url, consumers)} of {consumers}", "all")
    yield Figure("that wait for the first row: claimjobs", f"{ours.convoy(url, consumers)} of {consumers}", "none")


def locks(url: str, claims: int) -> Iterator[Figure]:
    scenes.setup(url, ITEMS)
    yield Figure("advisory locks of a claim: outer order by", f"{scenes.locks_of_a_sorted_claim(url)}", "every row's")
    yield Figure("... left by a recheck that fails", f"{scenes.locks_after_a_failed_recheck(url)}", "1")
    yield Figure("row 1 of two queues at once: one lock key", _yes(scenes.same_number_in_two_queues(url)), "no")
    scenes.setup(url, claims)
    yield Figure("row 1 of two queues at once: claimjobs", _yes(ours.same_number_in_two_queues(url)), "yes")
    yield Figure("the row of a dead consumer is claimed again: claimjobs", f"{ours.after_a_death(url):.2f} s", "asked")
    yield Figure("advisory locks of a claim: claimjobs", f"{ours.locks_while_claimed(url)}", "1")
    yield Figure("... with row locks", f"{ours.locks_while_claimed(url, locking=None)}")
    yield Figure(f"... left after {claims:,} claims", f"{ours.locks_left(url, claims)}", "0")


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"
