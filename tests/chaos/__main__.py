"""`python -m tests.chaos`: every fault, under load, on both databases; one table, and 1 if a promise was broken."""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import servers
from claimjobs.options import ALL_KINDS
from tests.chaos import report
from tests.chaos.arena import Arena, own_server
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.verdict import Verdict, run

BACKENDS: tuple[servers.Backend, ...] = ("postgres", "mysql")
BROKEN = 1


def main() -> int:
    options = _parser().parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of every connection that is lost
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}, kind {options.kind}: `make chaos SEED={seed}` does the same again", flush=True)
    verdicts = list(_all(options, seed))
    report.show(verdicts)
    if options.markdown:
        options.markdown.write_text(report.markdown(verdicts, seed))
    return BROKEN if any(verdict.broken for verdict in verdicts) else 0


def _all(options: argparse.Namespace, seed: int) -> Iterator[Verdict]:
    for backend in options.backends or BACKENDS:
        faults = [fault for fault in FAULTS if not options.only or any(word in fault.name for word in options.only)]
        with _arena(backend, random.Random(f"{seed} {backend}"), options) as arena:
            for fault in faults:
                yield _tried(arena, fault, options.times or fault.times)


def _tried(arena: Arena, fault: Fault, times: int) -> Verdict:
    began = time.monotonic()
    verdict = run(arena, fault, times)
    print(f"{report.line(verdict)} ({time.monotonic() - began:.1f} s)", flush=True)
    return verdict


@contextlib.contextmanager
def _arena(backend: servers.Backend, rng: random.Random, options: argparse.Namespace) -> Iterator[Arena]:
    """A server of its own, and a folder for the logs of consumers."""
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cj-chaos-")))
        folder.mkdir(exist_ok=True)
        server = stack.enter_context(own_server(backend))
        print(f"{backend} {server.version} ({server.how})", flush=True)
        yield Arena(server, rng, folder, options.kind, per_key=options.per_key)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the random times; printed at the start of every run")
    parser.add_argument("--backend", dest="backends", action="append", choices=("postgres", "mysql", "mariadb"))
    parser.add_argument("--kind", choices=ALL_KINDS, default="rows", help="the kind of queue that consumers have")
    parser.add_argument("--per-key", type=int, default=0, metavar="N", help="claim at most N jobs of a key at once")
    parser.add_argument("--only", action="append", metavar="WORD", help="faults whose name has this word")
    parser.add_argument("--times", type=int, help="strikes of each fault, in place of its own figure")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there as well")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what consumers say in this folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
