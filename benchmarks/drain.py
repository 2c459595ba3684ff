"""Drain: consumers empty a preloaded table, with a handler that does nothing. `python -m benchmarks.drain --help`

Counted is the time from the start line, which all consumers cross together with their modules imported and their
connections open, to the last settle. After each run every job must have been done once, and none be left.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import article, machine, report
from benchmarks.harness import SECONDS_TO_START, Contestant, Run, Share, interleaved, now, run_of, together
from claimjobs import Queue, make, tables_for
from claimjobs.connect import engine_of
from servers import Server, start
from servers.sources import BACKENDS

BATCH = article.BATCH
AT_ONCE = 1_000


class WrongCount(Exception):
    """A job was done twice, or not at all: the run's figures mean nothing."""


# --- the contestants -----------------------------------------------------------------------------------------


def with_claimjobs(url: str, _number: int, line: Any) -> Share:
    """Through the public API, on the table that `setup-tables` makes."""
    keys: list[int] = []
    with Queue(url) as queue:
        assert queue.owner_id  # connected and registered
        line.wait(SECONDS_TO_START)
        began = now()
        last = began.at
        for batch in queue.batches(BATCH, drain=True):
            with batch:
                keys += [job.key for job in batch.jobs]
                batch.done()
            last = now().at
        done = queue.report
        return Share(keys, began, now(), last, done.claims, done.empty_claims, sum(done.transients.values()))


def with_article(url: str, number: int, line: Any, *, letters: bool, read_committed: bool) -> Share:
    """The article's loop, on the article's table."""
    keys: list[int] = []
    with article.connected(url, read_committed=read_committed) as db:
        line.wait(SECONDS_TO_START)
        began = now()
        tally = article.consume(db, number, lambda jobs: keys.extend(job[0] for job in jobs), letters=letters)
        return Share(keys, began, now(), tally.last or began.at, tally.claims, tally.empty, tally.again)


def contestants(*, read_committed: bool) -> list[Contestant]:
    plain = partial(with_article, letters=False, read_committed=read_committed)
    letter = partial(with_article, letters=True, read_committed=read_committed)
    return [
        Contestant("article's loop, no letter", article.setup_tables, plain),
        Contestant("article's loop, random letter", article.setup_tables, letter),
        Contestant("claimjobs", setup_claimjobs, with_claimjobs),
    ]


def setup_claimjobs(url: str) -> None:
    engine = engine_of(url)
    make(engine, tables_for("jobs"))
    engine.dispose()


# --- a run ---------------------------------------------------------------------------------------------------


def drain(contestant: Contestant, consumers: int, *, url: str, rows: Sequence[tuple[str, str]]) -> Run:
    """Fill a new table, let the consumers empty it, and see that they did."""
    print(f"{consumers:>3} {contestant.name} ...", end=" ", file=sys.stderr, flush=True)
    clear(url)
    contestant.setup_tables(url)
    keys = fill(url, rows)
    shares = together(contestant, url, consumers)
    verify(url, keys, shares)
    run = run_of(contestant.name, shares)
    print(f"{run.rate:,.0f} jobs/s", file=sys.stderr)
    return run


def clear(url: str) -> None:
    with article.connected(url) as db, db.cursor() as cursor:
        cursor.execute("drop table if exists jobs, claimjobs_owners")
        if article.is_postgres(url):
            cursor.execute("drop type if exists jobs_status")
        db.commit()


def fill(url: str, rows: Sequence[tuple[str, str]]) -> list[int]:
    """Insert the rows and let the planner learn of them; return their keys."""
    with article.connected(url) as db, db.cursor() as cursor:
        for first in range(0, len(rows), AT_ONCE):
            chunk = rows[first : first + AT_ONCE]
            cursor.executemany("insert into jobs (d, e, status) values (%s, %s, 'unclaimed')", chunk)
        db.commit()
        cursor.execute("analyze jobs" if article.is_postgres(url) else "analyze table jobs")
        db.commit()
        cursor.execute("select id from jobs")
        return [row[0] for row in cursor.fetchall()]


def verify(url: str, keys: Sequence[int], shares: Sequence[Share]) -> None:
    """Every job once, none left. Raises WrongCount."""
    done = Counter(key for share in shares for key in share.keys)
    twice = [key for key, times in done.items() if times > 1]
    missing = set(keys) - set(done)
    with article.connected(url) as db, db.cursor() as cursor:
        cursor.execute("select count(*) from jobs")
        left = cursor.fetchone()[0]
    if twice or missing or left or sum(done.values()) != len(keys):
        raise WrongCount(f"{len(twice)} jobs twice, {len(missing)} not done, {left} left in the table")


# --- the command ---------------------------------------------------------------------------------------------


def main() -> None:
    options = _parser().parse_args()
    before = machine.load()
    rows = list(article.payload(options.jobs))
    with start(options.backend) as server:
        run = partial(drain, url=server.url, rows=rows)
        runs = list(interleaved(_chosen(options), options.consumers, options.repeat, run))
        facts = _facts(options, server, before)
    print(_heading(facts), report.table(runs), sep="\n\n")
    if options.json:
        report.write(options.json, facts, runs)


def _chosen(options: argparse.Namespace) -> list[Contestant]:
    return contestants(read_committed=options.read_committed)


def _facts(options: argparse.Namespace, server: Server, before: float) -> dict[str, Any]:
    return {
        "command": shlex.join(["python", "-m", "benchmarks.drain", *sys.argv[1:]]),
        "server": f"{server.backend} {server.version} ({server.how})",
        "durability": machine.durability(server.backend, server.url),
        "remarks": machine.remarks(before),
        "jobs": options.jobs,
        "batch": BATCH,
        "repeat": options.repeat,
    }


def _heading(facts: dict[str, Any]) -> str:
    durability = ", ".join(f"{name}={value}" for name, value in facts["durability"].items())
    return "\n".join(
        [
            facts["command"],
            f"{facts['server']}; {durability}",
            *facts["remarks"],
            f"{facts['jobs']:,} jobs of two {article.LENGTH}-character strings, batches of {facts['batch']}, a handler "
            f"that does nothing; medians of {facts['repeat']} interleaved runs, each job verified done once",
        ]
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drain", description=__doc__)
    parser.add_argument("--backend", choices=BACKENDS, default="mysql")
    parser.add_argument("--jobs", type=int, default=30_000, help="in the table at the start")
    parser.add_argument("--consumers", type=_numbers, default=[1, 4, 10], metavar="N,N,...", help="processes at once")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each contestant")
    parser.add_argument("--read-committed", action="store_true", help="the article's loop at READ COMMITTED, on MySQL")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run there")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
