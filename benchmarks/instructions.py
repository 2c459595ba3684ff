"""Instructions: what a batch costs its consumer, by count. `python -m benchmarks.instructions --against TREE`

The CPU time of a client differs by a fifth from run to run on a machine that others use. The instructions that its main
thread runs differ by less than a hundredth, so two versions of the code can be compared. valgrind counts them, of two
runs with different numbers of jobs; the difference is that of the batches between them, without the start.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import article, tables
from claimjobs import Queue
from claimjobs.options import Liveness
from servers import start
from servers.sources import BACKENDS

BATCH = 100
FEW, MANY = 4_000, 14_000
"""The jobs of the two runs."""
KINDS: Mapping[str, Mapping[str, Any]] = {
    "rows": {},
    "batches": {"claims": "batches"},
    "transaction": {"hold": "transaction"},
}
HERE = Path(__file__).resolve().parent.parent


def consume(url: str, kind: str) -> None:
    """Empty the table, with a handler that does nothing. No heartbeat is due meanwhile, however slow valgrind is."""
    with Queue(url, "jobs", on_done="delete", liveness=Liveness(lease=600), **KINDS[kind]) as queue:
        for batch in queue.batches(BATCH, drain=True):
            with batch:
                batch.done()


def each(url: str, kind: str, tree: Path) -> float:
    """The instructions of the main thread for a batch, with the library of this tree."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "claimjobs").symlink_to(tree / "claimjobs")  # only the library is of that tree
        _run(url, kind, folder, FEW)  # it compiles the files
        few, many = (_counted(url, kind, folder, jobs) for jobs in (FEW, MANY))
    return (many - few) / ((MANY - FEW) / BATCH)


def _counted(url: str, kind: str, folder: Path, jobs: int) -> int:
    counts = folder / "counts"
    valgrind = ["valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={counts}"]
    _run(url, kind, folder, jobs, under=valgrind)
    return total(Path(f"{counts}-01").read_text(encoding="utf-8"))


def _run(url: str, kind: str, folder: Path, jobs: int, *, under: Sequence[str] = ()) -> None:
    tables.clear(url)
    tables.setup_claimjobs(url)
    tables.fill(url, list(article.payload(jobs)))
    script = "import sys; from benchmarks.instructions import consume; consume(*sys.argv[1:])"
    command = [*under, sys.executable, "-c", script, url, kind]
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{HERE}", "PYTHONHASHSEED": "0"}
    subprocess.run(command, check=True, cwd=folder, env=environment, stderr=subprocess.DEVNULL)


def total(counts: str) -> int:
    """The sum in a file of callgrind."""
    line = next(line for line in counts.splitlines() if line.startswith(("totals:", "summary:")))
    return int(line.split()[1])


def compare(options: argparse.Namespace) -> None:
    """Print the instructions of a batch, and their ratio to those of the other tree."""
    trees = [tree for tree in (options.against, HERE) if tree is not None]
    for backend in options.backend:
        with start(backend) as server:
            for kind in options.kind:
                found = [each(server.url, kind, tree) for tree in trees]
                ratio = f", {found[-1] / found[0]:.3f} of {found[0] / 1e3:,.0f}" if len(found) > 1 else ""
                print(f"{backend} {kind}: {found[-1] / 1e3:,.0f} thousand instructions a batch{ratio}", flush=True)


def _folder(name: str) -> Path:
    return Path(name).resolve(strict=True)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    made.add_argument("--backend", nargs="+", choices=BACKENDS, default=["postgres", "mysql"])
    made.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    made.add_argument("--against", metavar="TREE", type=_folder, help="a folder with other code of the library")
    return made


if __name__ == "__main__":
    compare(parser().parse_args())
